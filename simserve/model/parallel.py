"""How one replica spreads over GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parallelism:
    """Degrees of parallelism of one replica (names as in vLLM and SGLang).

    tp splits heads and matrices, pp splits layers, dp gives each attention rank its own requests and KV
    pool, ep spreads routed experts (1: experts are split by tp like any matrix). GPUs = tp * pp * dp.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.dp

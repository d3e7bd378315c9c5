"""The types that a checkpoint ships in, and what a deployment of it holds.

`quantization` reads them from a configuration; a model without any is in 16 bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.errors import ScenarioError
from simserve.model.dtypes import WeightsDtype, weight_types

AUTO = "auto"
"""What a deployment says that leaves a type to the checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """What is served unless a deployment says otherwise."""

    weights: WeightsDtype = "bf16"
    kv: str = "bf16"
    source: str = ""
    """What says so; empty if nothing does (16 bit)."""
    unpriced: str = ""
    """Why the weights have no price, where they have none."""

    def weights_dtype(self, asked: WeightsDtype) -> WeightsDtype:
        """Return what a deployment that asks for `asked` holds; raises `ScenarioError` without a price."""
        if isinstance(asked, str) and asked != AUTO:
            return asked
        if self.unpriced:
            raise ScenarioError(f"{self.unpriced}; weights_dtype can say what to take instead")
        if isinstance(asked, str):
            return self.weights
        return weight_types(self.weights).model_copy(update={name: value for name, value in asked if value})

    def kv_dtype(self, asked: str) -> str:
        """Return the type of the KV cache of a deployment that asks for `asked`."""
        return self.kv if asked == AUTO else asked


PLAIN = Checkpoint()
"""A checkpoint in 16 bit."""

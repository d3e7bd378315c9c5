"""The noun Engine: everything that is true of one serving engine, in one object.

Each engine is a module or a folder here that makes one `Engine` (`presets.ENGINES` lists them): its
scheduler, its modelled releases and their defaults, its own time per step, its rules for memory and window
layers, and its schedulers for disaggregation and speculative decoding. Layers below keep the classes of these
facts and name no engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from simserve.engines.base import DraftingEngine, Placement, Scheduler, SplitEngine
from simserve.latency.overhead import EngineOverhead
from simserve.model import ModelSpec
from simserve.model.kv import KvGroups
from simserve.model.memory_rules import MemoryRules

Options = dict[str, Any]


@dataclass(frozen=True)
class EnginePreset:
    """A named engine version."""

    name: str
    policy: str
    tokens_per_block: int | Callable[[Placement], int]
    """Default tokens per KV block, or how they follow from GPU and model."""
    memory: float | Callable[[int, Options, Placement], float]
    """Share of a GPU's memory that the engine may use, or how it follows from memory, settings, placement."""
    defaults: Callable[[int, str, Options, int], Options]
    source: str
    release: str = ""
    """The release whose defaults these are; empty if the engine has no versions."""
    by_placement: Callable[[Placement], Options] | None = None
    """Further defaults, which follow from model and GPUs."""

    def options(
        self,
        gpu_memory_bytes: int,
        gpu_name: str,
        given: Options,
        max_model_len: int,
        placement: Placement = Placement(),
    ) -> Options:
        """Return the version's settings: those that are `given`, and its defaults for all others.

        The GPU has that memory (bytes) and that name (`a100_sxm` ...); `max_model_len` as the engine is told.
        The settings are the server's, which attention ranks share (`PolicyParams.of_rank`).
        """
        defaults = self.defaults(gpu_memory_bytes, gpu_name, given, max_model_len)
        if self.by_placement is not None:
            defaults |= self.by_placement(placement)
        return defaults | given

    def block_size(self, placement: Placement) -> int:
        """Return the default tokens per KV block on such GPUs, for such a model."""
        return self.tokens_per_block(placement) if callable(self.tokens_per_block) else self.tokens_per_block

    @property
    def version(self) -> str | None:
        """The release that the policy follows, if it follows several."""
        return self.options(0, "", {}, 1).get("version")

    def memory_share(self, gpu_memory_bytes: int, options: Options, placement: Placement) -> float:
        """Return the share of the memory (0 to 1) with these settings, as told to the server."""
        return self.memory(gpu_memory_bytes, options, placement) if callable(self.memory) else self.memory


def no_defaults(gpu_memory_bytes: int, gpu_name: str, given: Options, max_model_len: int) -> Options:
    """Return no defaults: every option has one of its own."""
    return {}


@dataclass(frozen=True)
class Engine:
    """What is true of one engine, whatever is deployed with it."""

    name: str
    """Also the name of its scheduler (`policy: NAME`) and of its time per step (`overhead: NAME`)."""
    title: str
    scheduler: type[Scheduler] | None
    """Serves whole requests; None: only the engine's time per step is known, not how it schedules."""
    presets: tuple[EnginePreset, ...] = ()
    """Releases that can be named in a scenario, the newest first."""
    overhead: EngineOverhead | None = None
    """Its own time per step; None: it is no product, and is compared on equal terms."""
    windows: Callable[[ModelSpec, BaseModel, int], KvGroups | str | None] | None = None
    """From model, settings and most tokens of a step to the KV groups of window layers, or why these keep all
    tokens (None: this mix of layers has no groups). None: its scheduler has one pool for all layers."""
    pp: bool = True
    """True if its scheduler is modelled with pipeline stages."""
    kv_tiers: bool = False
    """True if its scheduler can look for KV below HBM."""
    memory_rules: Callable[[tuple[int, ...] | None], MemoryRules] | None = None
    """From a release, modelled or not (None: the newest), to what it sets aside of the memory; None: it is
    no product, and is compared on equal terms."""
    disagg: SplitEngine | None = None
    """Its prefill and decode schedulers; None: it cannot be split."""
    spec_decode: DraftingEngine | None = None
    """Its schedulers with speculative decoding; None: not simulated."""

    @property
    def aborts(self) -> bool:
        """True if its scheduler can drop a request whose client gives up (`Scheduler.can_drop`)."""
        return self.scheduler is not None and self.scheduler.can_drop

    def kv_groups(self, model: ModelSpec, options: Options, tokens_per_step: int) -> KvGroups | None:
        """Return the KV groups of a model's layers with these options; None if all keep every token."""
        if self.windows is None or self.scheduler is None:
            return None
        found = self.windows(model, self.scheduler.Params.model_validate(options), tokens_per_step)
        return found if isinstance(found, KvGroups) else None

"""What SGLang sets aside: a static share holds weights and cache, all else lives outside it."""

from __future__ import annotations

from simserve.engines.sglang.packed import packed_pools
from simserve.model.memory_rules import FILTERING_SAMPLER, MemoryRules

_RULES = MemoryRules(
    "SGLang",
    activation_inside=False,
    graphs_inside=False,
    logit_bytes=FILTERING_SAMPLER,
    filters=False,
    keeps_expert_buffers=False,
    copies_latents=True,
    kernels_bytes=0,
    of_free_memory=True,
    packed=packed_pools,
)
"""Pool = free memory after loading - free memory before it x (1 - share) (0.5.23, `kv_cache_configurator`):
kernels and buffers that come later lie outside."""


def memory_rules(release: tuple[int, ...] | None) -> MemoryRules:
    """Return the rules, which are those of 0.5.23 whatever the release."""
    return _RULES

"""The operations that can be measured, one module each; their rows go to the table of the same name."""

from __future__ import annotations

from simserve.errors import ProfileError, nearest
from simserve.profiler.case import Op
from simserve.profiler.ops.attention import Decode, Mixed, Prefill, Uneven
from simserve.profiler.ops.collective import Collective, ExpertExchange, OverRanks
from simserve.profiler.ops.elementwise import Elementwise
from simserve.profiler.ops.gemm import Gemm
from simserve.profiler.ops.machine_ops import HostCopy, Launch
from simserve.profiler.ops.mla import MlaBmm, MlaDecode, MlaPrefill
from simserve.profiler.ops.moe import Moe, MoeCounts
from simserve.profiler.ranks import RankPool

_RANKS = RankPool()
_ALL: tuple[Op | OverRanks, ...] = (
    Gemm(), Decode(), Prefill(), Moe(), MlaDecode(), MlaPrefill(), MlaBmm(), Elementwise(),
    MoeCounts(), Mixed(), Uneven(), Collective(_RANKS), ExpertExchange(_RANKS), Launch(), HostCopy(),
)  # fmt: skip
OPS: dict[str, Op | OverRanks] = {op.name: op for op in _ALL}
"""In the order of their worth: what dominates a step first."""


def ops_named(names: list[str]) -> list[Op | OverRanks]:
    """Return the operations of these names (all if empty); raises `ProfileError` for an unknown one."""
    for name in names:
        if name not in OPS:
            raise ProfileError(f"--ops {name!r}{nearest(name, OPS)}; known: {', '.join(OPS)}")
    return [OPS[name] for name in names or OPS]

"""How much of a model's step time a profile has measured, and what it lacks."""

from __future__ import annotations

from typing import NamedTuple

from simserve.core import Chunk, Request
from simserve.hardware import GpuSpec
from simserve.latency.base import PROVENANCE
from simserve.latency.compile import compile_step_latency
from simserve.latency.explain import OpTime, explain_step
from simserve.latency.overhead import IDEAL
from simserve.latency.profiles import ProfileStore
from simserve.model.parallel import Parallelism
from simserve.model.spec import ModelSpec

STEPS = (
    ("decode, 1 sequence of 256", 1, 256, 0, 0),
    ("decode, 8 sequences of 512", 8, 512, 0, 0),
    ("decode, 64 sequences of 2,048", 64, 2048, 0, 0),
    ("prompt of 512", 0, 0, 512, 0),
    ("prompt of 512 on 1,024 cached", 0, 0, 512, 1024),
    ("8 decodes of 512, prompt of 256", 8, 512, 256, 0),
)
"""Steps that are looked at: name, decodes, their context, new tokens of a chunk, its cached tokens."""


class StepCoverage(NamedTuple):
    """Where the time of one step comes from."""

    step: str
    ms: float
    shares: dict[str, float]
    """Share of the time by provenance."""
    weakest: list[OpTime]
    """Kernels that were not measured or interpolated, the longest first."""


def coverage(
    model: ModelSpec, gpu: GpuSpec, parallel: Parallelism, dtype: str, profiles: ProfileStore
) -> tuple[list[StepCoverage], list[str]]:
    """Return the coverage of each of `STEPS`, and what had no table at all, in words."""
    latency = compile_step_latency(
        model,
        gpu,
        parallel,
        weights_dtype=dtype,
        kv_dtype=_kv_dtype(dtype),
        overhead=IDEAL,
        profiles=profiles,
    )
    found = []
    for name, decodes, context, new, cached in STEPS:
        chunks = [Chunk(Request(0, 0, new, 1), new, cached, True)] if new else []
        parts = explain_step(latency, decodes, decodes * context, chunks)
        total = sum(part.us for part in parts)
        shares = {
            kind: sum(max(0.0, part.us) for part in parts if part.provenance == kind) / total
            for kind in PROVENANCE
        }
        weak = [part for part in parts if part.provenance in PROVENANCE[2:] and part.us > 0]
        found.append(StepCoverage(name, total / 1000, shares, sorted(weak, key=lambda part: -part.us)[:4]))
    return found, list(latency.estimated)


def _kv_dtype(dtype: str) -> str:
    return dtype if dtype in ("fp32", "fp16") else "bf16"

"""Pools whose FFN layers have GPUs of their own, built: what these hold, step times, what to count."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from simserve.core import PoolFacts
from simserve.deploy.engine import ResolvedEngine
from simserve.errors import ScenarioError
from simserve.hardware import GpuSpec, load_gpu
from simserve.latency import ProfileStore
from simserve.latency.afd import AfdLatency, FfnGpus, check_alternating, compile_afd_latency
from simserve.latency.compile import KernelSettings
from simserve.latency.kernels.exchange import Network
from simserve.latency.tables.roofline import peaks_of
from simserve.model import ModelSpec, Parallelism
from simserve.model.memory import MemoryLine
from simserve.model.memory_lines import ffn_ledger
from simserve.scenario.pool_spec import PoolSpec


class FfnPool(NamedTuple):
    """The FFN GPUs of all replicas of a pool."""

    gpu: GpuSpec
    gpus: int
    """Of each replica."""
    ledger: tuple[MemoryLine, ...]
    """The memory of one."""


def check_afd(spec: PoolSpec, model: ModelSpec) -> None:
    """Raise `ScenarioError` for models that `afd` cannot cut, and for keys that cannot stand beside it."""
    check_alternating(model)
    price = None if spec.afd is None else spec.afd.price_per_gpu_hour
    if price is not None and spec.price_per_gpu_hour is None:
        raise ScenarioError(
            "needs price_per_gpu_hour of the pool, too: a cost counts both", "afd.price_per_gpu_hour", price
        )
    if spec.placement is not None and spec.placement.kind == "topology":
        raise ScenarioError(
            "cannot be combined with afd, where no FFN GPU is near a token",
            "placement.kind",
            "topology",
            "eplb",
        )


def ffn_pool(
    spec: PoolSpec, model: ModelSpec, own: GpuSpec, share: float, redundant: int, profiles: ProfileStore
) -> FfnPool | None:
    """Return the FFN GPUs of a pool, with their memory; None without `afd`."""
    afd = spec.afd
    if afd is None:
        return None
    gpu = own if afd.gpu is None else load_gpu(afd.gpu, profiles.folders)
    ledger = ffn_ledger(
        model,
        gpu,
        afd.ffn_gpus,
        weights_dtype=spec.weights_dtype,
        experts_dtype=spec.experts_dtype,
        redundant_experts=redundant,
        share=share,
    )
    return FfnPool(gpu, afd.ffn_gpus, ledger)


def afd_latency(
    model: ModelSpec,
    gpu: GpuSpec,
    ffn: FfnPool,
    spec: PoolSpec,
    engine: ResolvedEngine,
    settings: KernelSettings,
    *,
    redundant_experts: int,
    solve_us: float,
) -> AfdLatency:
    """Return the step times of one replica: its attention ranks and its FFN GPUs."""
    afd = spec.afd
    assert afd is not None
    network = Network(afd.network_us, afd.network_gb_s * 1e9, afd.copies == "node")
    return compile_afd_latency(
        model,
        gpu,
        Parallelism(tp=spec.tp, dp=spec.dp),
        FfnGpus(ffn.gpu, ffn.gpus, afd.microbatches, network if afd.exchange == "network" else None),
        redundant_experts=redundant_experts,
        solve_us=solve_us,
        overhead=engine.overhead,
        **settings,
    )


def with_ffn(facts: PoolFacts, ffn: FfnPool | None, spec: PoolSpec) -> PoolFacts:
    """Return the facts of a pool with its FFN GPUs counted.

    `facts` are those of attention ranks that also held every FFN weight.
    """
    if ffn is None or spec.afd is None:
        return facts
    every = ffn.gpus * spec.replicas
    held = {line.weights_of: line.bytes for line in ffn.ledger}
    copied = held.get("dense_ffn", 0) + held.get("shared_expert", 0)
    own = facts.weight_bytes - copied
    price = spec.afd.price_per_gpu_hour
    price = facts.price_per_gpu_hour if price is None else price  # None: nothing of the pool has one
    return replace(
        facts,
        weight_bytes=own + copied * ffn.gpus / spec.dp,
        expert_bytes=held["routed_expert"] * ffn.gpus / spec.dp,
        beside_gpus=every,
        beside_flops=every * peaks_of(ffn.gpu).flops(str(spec.types.routed_experts)),
        beside_bytes_per_s=every * ffn.gpu.hbm_bytes_per_s,
        beside_price_per_hour=every * (price or 0.0),
    )


def afd_assumptions(ffn: FfnPool | None) -> tuple[str, ...]:
    """Return what is taken for granted about FFN GPUs, in words."""
    if ffn is None:
        return ()
    return (
        "attention-FFN disaggregation: every step fills the pipeline of microbatches anew; each FFN GPU "
        "computes shared experts and dense MLPs for its part of the tokens",
    )

"""What is said about a deployment's kernels whatever is compiled from them, and what blocks make of it."""

from __future__ import annotations

from typing import Literal, TypedDict

from simserve.errors import ScenarioError, nearest
from simserve.hardware import GpuSpec
from simserve.latency.blocks.plan import All2All, Setting
from simserve.latency.kernels import Machine
from simserve.latency.kernels.experts import ExpertLoad
from simserve.latency.kernels.machine import MoeBackend
from simserve.latency.profiles import ProfileStore, shipped_profiles
from simserve.latency.roofline import BYTES, peaks_of
from simserve.model.dtypes import WeightsDtype, kernel_types
from simserve.model.parallel import Parallelism
from simserve.model.spec import ModelSpec

Analytic = Literal["allow", "refuse"]


class KernelSettings(TypedDict, total=False):
    """Types, load and profiles; defaults as in `setting_of`."""

    weights_dtype: WeightsDtype
    """Of the layers' matrices, or of each part; embedding, router and head stay at 16 bit."""
    kv_dtype: str
    experts_dtype: str | None
    """Of routed experts, where it differs (gpt-oss: bf16 and mxfp4)."""
    expert_load: ExpertLoad
    moe_backend: MoeBackend | None
    """The kernel of routed experts; None: the engine's own choice."""
    profiles: ProfileStore | None
    """None: those that ship."""
    max_model_len: int | None
    """Longest context that the engine was started with; None: the model's."""
    analytic: Analytic
    """What to do without a measured table: refuse raises `ProfileError`; allow costs the kernel by roofline,
    tagged so, and names it in `estimated`."""


class CopySettings(KernelSettings, total=False):
    """The same of ranks that step together, which may hold copies of experts."""

    redundant_experts: int


class GroupSettings(CopySettings, total=False):
    """The same of ranks that exchange their tokens among themselves."""

    all2all: All2All


def setting_of(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    *,
    weights_dtype: WeightsDtype = "bf16",
    kv_dtype: str = "bf16",
    experts_dtype: str | None = None,
    expert_load: ExpertLoad = "uniform",
    moe_backend: MoeBackend | None = None,
    profiles: ProfileStore | None = None,
    max_model_len: int | None = None,
    analytic: Analytic = "allow",
    engine: str = "vllm",
    lockstep: bool = False,
    all2all: All2All = "deepep",
    redundant_experts: int = 0,
) -> Setting:
    """Return what every block needs to know (see `KernelSettings`)."""
    types = kernel_types(weights_dtype, experts_dtype)
    _check_dtype(kv_dtype)
    machine = Machine(
        gpu.name,
        peaks_of(gpu),
        profiles or shipped_profiles(),
        analytic == "allow",
        gpu.sm_arch,
        gpu.gpus_per_node,
        engine,
        moe_backend,
    )
    return Setting(
        machine,
        spec.hidden_size,
        parallelism,
        types,
        kv_dtype,
        expert_load,
        gpu.gpus_per_node,
        lockstep,
        all2all,
        redundant_experts,
        max_model_len=max_model_len or spec.max_position_embeddings,
    )


def _check_dtype(kv_dtype: str) -> None:
    if kv_dtype not in BYTES:
        hint = nearest(kv_dtype, BYTES)
        raise ScenarioError(f"kv_dtype: unknown dtype {kv_dtype!r}{hint}; known: {', '.join(BYTES)}")

"""What a scenario says of a pool: its GPUs and how they share the model, types, limits, tiers, prices."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simserve.latency.blocks.plan import All2All
from simserve.latency.kernels.experts import ExpertLoad
from simserve.latency.kernels.machine import MoeBackend
from simserve.latency.overlap import OverlapSpec
from simserve.model.checkpoint import AUTO
from simserve.model.dtypes import WeightTypes, weight_types
from simserve.scenario.afd_spec import AfdSpec
from simserve.scenario.component_spec import EngineSpec
from simserve.scenario.kv_tier_spec import KvTierPolicySpec, KvTierSpec
from simserve.scenario.moe_spec import ExpertLoadSpec, PlacementSpec
from simserve.scenario.part import NAME, Degree, Part
from simserve.scenario.speculation_spec import SpeculationSpec


class PoolSpec(Part):
    """Equal replicas on one kind of GPU."""

    name: str = Field("all", pattern=NAME, description="Name of the pool in the report.")
    role: Literal["mixed", "prefill", "decode"] = Field(
        "mixed",
        description="mixed: every replica computes prompts and answers; prefill and decode: one half each, "
        "KV moving from one to the other as `transfer` says.",
    )
    gpu: str = Field(description="A GPU's name, such as h100_sxm (see `simserve gpus`).")
    replicas: Degree = Field(1, description="Equal copies of what tp, pp, dp and ep describe.")
    tp: Degree = Field(1, description="Tensor parallelism: GPUs that share every matrix.")
    pp: Degree = Field(1, description="Pipeline parallelism: stages of consecutive layers.")
    dp: Degree = Field(1, description="Attention data parallelism.")
    ep: Degree = Field(1, description="Expert parallelism.")
    engine: EngineSpec = Field(
        default=EngineSpec.model_validate({}),
        description="Engine options of this pool; they win over the scenario's engine.",
    )
    weights_dtype: str | WeightTypes = Field(
        AUTO,
        description="Type of the weights: bf16, fp8 ..., or a mapping of one for each part; auto: what the "
        "model's checkpoint ships in.",
    )
    kv_dtype: str = Field(
        AUTO,
        description="Type of the KV cache: bf16, fp8 ...; auto: what the checkpoint asks for, else bf16.",
    )
    experts_dtype: str | None = Field(
        None, description="Type of the routed experts' weights; default: that of weights_dtype."
    )
    moe_backend: MoeBackend | None = Field(
        None,
        description="Kernel of the routed experts, by the names of vLLM's --moe-backend and SGLang's "
        "--moe-runner-backend; default: what the engine was measured to run.",
    )
    expert_load: ExpertLoad | ExpertLoadSpec | None = Field(
        None,
        description="How tokens choose experts: independently and uniformly (default), balanced (dealt out "
        "evenly), by a measured power law, or as a mapping says (kind: zipf, s: 0.8).",
    )
    placement: PlacementSpec | None = Field(
        None, description="Which GPU holds which expert (ep > 1); default: in order."
    )
    all2all: All2All | None = Field(
        None,
        description="How tokens reach experts with dp and ep: deepep (default: low-latency kernels for small "
        "steps), deepep_low_latency, deepep_normal, nccl (all-to-all), allgather (with reduce-scatter), "
        "analytic (topology).",
    )
    overlap: OverlapSpec | None = Field(
        None, description="What runs beside dispatch and combine; default: the shared expert."
    )
    afd: AfdSpec | None = Field(
        None,
        description="Attention-FFN disaggregation: FFN layers on GPUs of their own beside the pool's; "
        "default: every GPU does both.",
    )
    speculation: SpeculationSpec | None = Field(
        None, description="Speculative decoding: drafts that each step verifies; default: none."
    )
    max_model_len: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Longest sequence; default: the model's maximum, or what the KV pool holds if less."
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Share of the GPU's memory that the engine may use; default: the engine version's."
    )
    kv_tiers: Annotated[tuple[KvTierSpec, ...], Field(strict=False)] | None = Field(
        None, description="KV tiers below HBM, fastest first; default: none."
    )
    kv_tier_policy: KvTierPolicySpec | None = Field(None, description="How blocks move between the tiers.")
    price_per_gpu_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="Price of one GPU for one hour, in the scenario's `currency`."
    )

    @property
    def types(self) -> WeightTypes:
        """The type of every part of the weights, once nothing is left to the checkpoint."""
        return weight_types(self.weights_dtype, self.experts_dtype)

    def shown(self, key: str) -> str:
        """Return the value of a key for a message: a number or a word, or `...` for a mapping or a list."""
        value = getattr(self, key)
        return str(value) if isinstance(value, int | float | str) else "..."

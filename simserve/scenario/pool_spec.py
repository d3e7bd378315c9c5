"""What a scenario says of a pool: its GPUs and how they share the model, types, limits, tiers, prices."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simserve.latency.blocks.plan import All2All
from simserve.latency.kernels.experts import ExpertLoad
from simserve.latency.kernels.machine import MoeBackend
from simserve.latency.overlap import OverlapSpec
from simserve.model.dtypes import AUTO, WeightTypes, weight_types
from simserve.scenario.part import NAME, Degree, EngineSpec, Part
from simserve.scenario.split_spec import KvTierPolicySpec, KvTierSpec, SpeculationSpec

# What a pool says about FFN GPUs of its own: attention-FFN disaggregation.

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AfdSpec(Part):
    """FFN GPUs beside the attention ranks of each replica, and the network between."""

    ffn_gpus: Annotated[int, Field(ge=1, le=65_536)] = Field(
        description="GPUs of each replica that compute FFN layers: routed experts spread over them, dense "
        "MLPs and shared experts are copied to each."
    )
    gpu: str | None = Field(None, description="Their kind; default: the pool's.")
    microbatches: Annotated[int, Field(ge=1, le=16)] = Field(
        3,
        description="Parts of each rank's batch that are on the way at once (Step-3: 3, MegaScale-Infer: 2).",
    )
    exchange: Literal["network", "deepep"] = Field(
        "network",
        description="How tokens get there and back: over the network by formula, or as DeepEP's low-latency "
        "kernels did among as many GPUs (exchange tables).",
    )
    network_gb_s: Positive = Field(
        40.0, description="network: GB/s that each GPU reaches, each way (one 400 Gb/s NIC at 80 %)."
    )
    network_us: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        20.0, description="network: start of a transfer in microseconds (assumption)."
    )
    copies: Literal["gpu", "node"] = Field(
        "gpu",
        description="network: a token goes once to each FFN GPU, or once to each FFN node, that holds one of "
        "its experts (and over NVLink from there).",
    )
    price_per_gpu_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="Price of one FFN GPU for one hour; default: the pool's."
    )


# What a pool says about its experts: how tokens choose them, where they lie, how they are reached.

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


BALANCED = ("eplb", "topology")
"""Placements that follow the load."""
EXPERT_LOAD_KEYS = ("kind", "seed", "swaps", "drift")
"""Keys of an expert load that are not settings of its kind."""


class SwapSpec(Part):
    """A sudden change of popularity."""

    at_s: Seconds = Field(description="When.")
    share: Share = Field(description="Share of each layer's experts that exchange their popularity.")


class DriftSpec(Part):
    """A slow change of popularity."""

    every_s: Seconds = Field(description="How often some experts exchange their popularity.")
    share: Share = Field(description="Share of each layer's experts that take part each time.")


class ExpertLoadSpec(Part):
    """How often each expert is picked, layer by layer."""

    kind: str = Field(description="uniform, zipf, dirichlet, power_law, histogram or trace.")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Which experts are popular in which layer.")
    swaps: Annotated[tuple[SwapSpec, ...], Field(strict=False)] = Field(
        (), description="Sudden changes, in order of time."
    )
    drift: DriftSpec | None = Field(None, description="Slow change; not together with swaps.")
    options: dict[str, Any] = Field(default_factory=dict, description="Settings of the kind, by name.")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        """Take every key that is not ours as a setting of the kind."""
        if not isinstance(value, dict):
            return value
        own = {key: item for key, item in value.items() if key in EXPERT_LOAD_KEYS}
        return {**own, "options": {key: item for key, item in value.items() if key not in own}}

    @model_validator(mode="after")
    def _one_kind_of_change(self) -> ExpertLoadSpec:
        if self.swaps and self.drift is not None:
            raise ValueError("expert_load: give swaps or drift, not both")
        times = [swap.at_s for swap in self.swaps]
        if times != sorted(times):
            raise ValueError(f"expert_load: swaps must be in order of time, found {times}")
        return self

    def as_mapping(self) -> dict[str, Any]:
        """Return what was written, as one mapping."""
        return {**self.model_dump(mode="json", exclude={"options"}, exclude_none=True), **self.options}


class PlacementSpec(Part):
    """Where experts lie, and when they move."""

    kind: Literal["contiguous", "random", "eplb", "topology"] = Field(
        "contiguous",
        description="In order, shuffled, balanced by EPLB, or (topology) with copies on different nodes, of "
        "which tokens take the nearest.",
    )
    redundant_experts: Annotated[int, Field(ge=0, le=4096)] = Field(
        0, description="Copies per layer beyond the model's own experts."
    )
    start: Literal["balanced", "contiguous"] = Field(
        "balanced",
        description="balanced: placed for the load at the start, or in order until a rebalance.",
    )
    interval_steps: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="balanced: steps between rebalances (vLLM: 3000, SGLang: 1000); default: never again.",
    )
    window_steps: Annotated[int, Field(ge=1)] = Field(
        1000, description="balanced: last steps whose picks a rebalance counts (vLLM and SGLang: 1000)."
    )
    hierarchical: bool = Field(
        True, description="eplb: expert groups stay on one node where they divide over nodes (else global)."
    )
    blocking: bool = Field(
        False, description="balanced: True if steps wait until weights have moved; False: it is hidden."
    )
    skip_above: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="balanced: leave the placement if mean / busiest rank exceeds this; 1: never leave it.",
    )
    move_gb_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        40.0, description="GB/s at which a rank fetches weights (one 400 Gb/s NIC at 80 %)."
    )
    per_batch: bool = Field(
        False, description="Spread each batch anew over the copies (LPLB), instead of evenly."
    )
    solve_us: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        100.0, description="per_batch: solving and the all-reduce of counts, per layer (assumption)."
    )
    capacity_factor: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Most picks of an expert over the mean; default: no limit, as engines have it."
    )
    overflow: Literal["drop", "reroute"] = Field(
        "drop", description="What happens to picks beyond the capacity."
    )

    @model_validator(mode="after")
    def _goes_together(self) -> PlacementSpec:
        if self.interval_steps is not None and self.kind not in BALANCED:
            raise ValueError(
                f"placement: interval_steps = {self.interval_steps} with kind {self.kind}, which is never "
                f"made anew; kinds that are: {', '.join(BALANCED)}"
            )
        if self.per_batch and self.kind == "topology":
            raise ValueError(
                "placement: per_batch = true with kind topology: a batch is spread over all copies, or "
                "tokens take the nearest; give one"
            )
        return self


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

    def scalar(self, key: str) -> int | float | str | None:
        """Return the value of a key if it is a number or a word; None for a mapping or a list."""
        value = getattr(self, key)
        return value if isinstance(value, int | float | str) else None

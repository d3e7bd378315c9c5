"""What a scenario says: a workload, a model, an engine, pools of GPUs, a router and targets.

Frozen pydantic models that refuse unknown keys. A policy's and a router's own settings are kept as given
and validated by the component itself (`scenario.resolve`), so that this file does not grow with them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from simserve.errors import nearest
from simserve.latency.blocks.plan import All2All
from simserve.latency.kernels.experts import ExpertLoad
from simserve.latency.overlap import OverlapSpec
from simserve.scenario.afd_spec import AfdSpec
from simserve.scenario.closed_loop_spec import ClosedLoopSpec
from simserve.scenario.kv_tier_spec import KvTierPolicySpec, KvTierSpec
from simserve.scenario.moe_spec import ExpertLoadSpec, PlacementSpec
from simserve.scenario.published_spec import PublishedSpec
from simserve.scenario.speculation_spec import SpeculationSpec
from simserve.scenario.split_spec import RoleSwitchSpec, TransferSpec
from simserve.scenario.study_spec import CapacitySpec, SearchSpec, SizeSpec, SweepSpec
from simserve.workload.synthetic import SyntheticSpec

STUDIES = ("sweep", "capacity", "size", "search")
"""Keys that say how a scenario is studied; a run of it does not depend on them."""

Degree = Annotated[int, Field(ge=1, le=4096)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class EngineSpec(_Part):
    """Scheduler semantics, and options that depart from its defaults."""

    preset: str | None = Field(None, description="An engine and its version, such as vllm-0.33.")
    policy: str | None = Field(
        None,
        description="A scheduling policy without an engine version: static, orca, or package.module:Class.",
    )
    block_size: Degree | None = Field(None, description="Tokens per KV block; default: the engine version's.")
    overhead: str | None = Field(
        None,
        description="The engine's own time per step and request: vllm, sglang, ideal (none), or a file that "
        "`simserve calibrate` wrote; default: the engine's.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Settings of the policy, by name.")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        """Accept a bare preset name, and take every key that is not ours as a setting of the policy.

        Beside a preset, `policy` is vLLM's option of that name (fcfs or priority).
        """
        if isinstance(value, str):
            return {"preset": value}
        if not isinstance(value, dict):
            return value
        ours = {"preset", "block_size", "overhead"} | (set() if value.get("preset") else {"policy"})
        own = {key: item for key, item in value.items() if key in ours}
        return {**own, "options": {key: item for key, item in value.items() if key not in ours}}

    def as_mapping(self) -> dict[str, Any]:
        """Return what was written, as one mapping."""
        own = self.model_dump(exclude={"options"}, exclude_none=True)
        return {**own, **self.options}


class RouterSpec(_Part):
    """Which replica gets an arriving request."""

    kind: str = Field("round_robin", description="A router's name, or package.module:Class.")
    options: dict[str, Any] = Field(default_factory=dict, description="Settings of the router, by name.")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        if not isinstance(value, dict):
            return value
        own = {key: item for key, item in value.items() if key == "kind"}
        return {**own, "options": {k: v for k, v in value.items() if k != "kind"}}

    def as_mapping(self) -> dict[str, Any]:
        """Return what was written, as one mapping."""
        return {"kind": self.kind, **self.options}


class WorkloadSpec(_Part):
    """What arrives, and when."""

    trace: str | None = Field(
        None, min_length=1, description="A trace file: relative to this file, or one that ships."
    )
    format: str | None = Field(None, description="Format of the trace; default: recognised from its content.")
    trace_options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the trace's format, such as its time unit or block size.",
    )
    synthetic: SyntheticSpec | None = Field(None, description="A generated workload instead of a trace.")
    window_s: tuple[float, float] | None = Field(
        None, strict=False, description="Keep only arrivals in [start, end) seconds of the trace's own time."
    )
    quantised: Literal["literal", "spread"] = Field(
        "literal",
        description="Arrivals that share a coarse time stamp: take as given, or spread in the quantum.",
    )
    rate_scale: Annotated[float, Field(ge=1e-4, le=1e6)] = Field(
        1.0, description="Multiply the request rate by this factor."
    )
    scale_by: Literal["compress", "thin"] = Field(
        "compress",
        description="Scale the rate by compressing time, or (factors below 1) by dropping requests.",
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(None, description="Simulate only the first N requests.")
    max_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | Literal["exact"] | None = Field(
        None,
        description="Output limit that clients declare: a number, or 'exact' (the recorded length); default: "
        "the trace's own column, else none (what the model's maximum leaves).",
    )
    closed_loop: ClosedLoopSpec | None = None
    give_up_s: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None,
        description="Seconds after which a client that has not got the whole answer gives up; the engine "
        "then drops the request, as it does when a connection closes. Default: never.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadSpec:
        if (self.trace is None) == (self.synthetic is None):
            found = "none" if self.trace is None else "both"
            raise ValueError(f"give exactly one of trace and synthetic, found {found}")
        if self.format is not None and self.trace is None:
            raise ValueError("format belongs to a trace, not to a synthetic workload")
        if self.window_s is not None and not 0 <= self.window_s[0] < self.window_s[1]:
            raise ValueError(
                f"window_s must be [start, end] with 0 <= start < end, found {list(self.window_s)}"
            )
        if self.scale_by == "thin" and self.rate_scale > 1:
            raise ValueError(
                f"scale_by: thin can only lower the rate (rate_scale <= 1, found {self.rate_scale})"
            )
        return self


class PoolSpec(_Part):
    """Equal replicas on one kind of GPU."""

    name: str = Field(
        "all", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="Name of the pool in the report."
    )
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
    weights_dtype: str = Field("bf16", description="Type of the weights: bf16, fp8 ...")
    kv_dtype: str = Field("bf16", description="Type of the KV cache: bf16, fp8 ...")
    experts_dtype: str | None = Field(
        None, description="Type of the routed experts' weights; default: weights_dtype."
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
        None, description="Price of one GPU for one hour, in any currency."
    )


VariantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""Names a folder of results, so what is allowed is what every file system allows."""

Milliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LatencyName = Literal["ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"]
PercentileName = Annotated[str, Field(pattern=r"^p\d{1,2}(\.\d{1,3})?$")]


class SloSpec(_Part):
    """Latency targets in milliseconds; a request is good if it meets all that are given."""

    ttft_ms: Milliseconds | None = Field(None, description="Time to the first token.")
    tpot_ms: Milliseconds | None = Field(None, description="Mean time per output token after the first.")
    itl_ms: Milliseconds | None = Field(None, description="Each gap between tokens, pooled over requests.")
    e2e_ms: Milliseconds | None = Field(None, description="Time from arrival to the last token.")
    attainment: Annotated[float, Field(gt=0, le=1)] = Field(
        0.99, description="Share of requests that must be good for `simserve run --fail-on-slo`."
    )

    percentiles: dict[LatencyName, dict[PercentileName, Milliseconds]] = Field(
        default_factory=dict,
        description="Further targets for studies, such as ttft_ms: {p50: 300, p99: 1000}: the percentile "
        "over requests (of itl_ms: over gaps) must not exceed the limit.",
    )

    def limits(self) -> dict[str, float]:
        """Return the limits that are set, by name."""
        return self.model_dump(exclude={"attainment", "percentiles"}, exclude_none=True)


class Scenario(_Part):
    """One simulated deployment and its workload."""

    name: str = Field(min_length=1, description="Title of the report; the result folder is named after it.")
    model: str = Field(description="A model's name (see `simserve models`), or the path of a config.json.")
    engine: EngineSpec = Field(description="Engine version (vllm-0.33), or a mapping of it and its options.")
    workload: WorkloadSpec
    pools: Annotated[tuple[PoolSpec, ...], Field(strict=False, min_length=1)]
    router: RouterSpec = Field(
        default=RouterSpec.model_validate({}),
        description="Router's name, or a mapping of it and its settings.",
    )
    decode_router: RouterSpec | None = Field(
        None,
        description="Router of the decode replicas of a split; default: as router (for dynamo_kv without "
        "credit for caches and without prompt load, as Dynamo does).",
    )
    transfer: TransferSpec | None = Field(
        None, description="How KV gets from prefill to decode replicas, if pools have these roles."
    )
    ratio: Literal["sweep"] | None = Field(
        None,
        description="sweep: run all splits of the same GPUs between prefill and decode, and no split at all.",
    )
    role_switch: RoleSwitchSpec | None = Field(
        None, description="Let replicas of a split change sides as queues grow and shrink; default: never."
    )
    slo: SloSpec | None = Field(None, description="Latency targets that a good request meets.")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Seed of everything random.")
    replications: Annotated[int, Field(ge=1, le=1000)] = Field(
        1,
        description="Runs with the seeds seed, seed + 1 ..., for confidence intervals beside the numbers of "
        "`simserve run`; every variant gets the same seeds. Studies have replications of their own.",
    )
    profiles: tuple[str, ...] = Field((), strict=False, description="Extra folders of kernel profiles.")
    analytic: Literal["allow", "refuse"] = Field(
        "allow",
        description="Kernels without a measured table: estimate them by roofline (and say so), or refuse.",
    )
    fast_forward: bool = Field(True, description="False steps through every iteration (slow, same result).")
    compare: dict[VariantName, dict[str, Any]] = Field(
        default_factory=dict,
        description="Variants to run beside the scenario, by name: what each changes. Mappings merge with "
        "the scenario's (null takes a key away), lists and values replace; an engine or router that is "
        "named starts from its own defaults.",
    )
    published: Annotated[tuple[PublishedSpec, ...], Field(strict=False)] = Field(
        (), description="Figures that others published about this, to show ours beside them."
    )
    base_name: VariantName = Field("base", description="Name of the scenario itself beside its variants.")
    sweep: SweepSpec | None = Field(None, description="Points for `simserve sweep`.")
    capacity: CapacitySpec | None = Field(None, description="Loads for `simserve capacity`.")
    size: SizeSpec | None = Field(None, description="Deployments for `simserve size`.")
    search: SearchSpec | None = Field(None, description="Space and aims for `simserve search`.")

    @model_validator(mode="after")
    def _whole(self) -> Scenario:
        if self.engine.preset is None and self.engine.policy is None:
            raise ValueError("engine: name an engine version (preset: vllm-0.33) or a policy")
        names = [pool.name for pool in self.pools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"pools: two pools are named {twice[0]!r}; names must differ")
        _check_variant_names([self.base_name, *self.compare])
        _check_run_names(self.published, [self.base_name, *self.compare])
        return self

    def as_mapping(self) -> dict[str, Any]:
        """Return the scenario as a file writes it."""
        plain = self.model_dump(
            mode="json", exclude_none=True, exclude={"compare", "base_name", "published", *STUDIES}
        )
        if self.replications == 1:
            del plain["replications"]
        if self.slo is not None and not self.slo.percentiles:
            del plain["slo"]["percentiles"]
        plain["engine"] = self.engine.as_mapping()
        plain["router"] = self.router.as_mapping()
        if self.decode_router is not None:
            plain["decode_router"] = self.decode_router.as_mapping()
        for pool, spec in zip(plain["pools"], self.pools, strict=True):
            pool["engine"] = spec.engine.as_mapping()
            if isinstance(spec.expert_load, ExpertLoadSpec):
                pool["expert_load"] = spec.expert_load.as_mapping()
        if self.published:
            plain["published"] = [one.model_dump(mode="json", exclude_none=True) for one in self.published]
        if self.compare:
            plain |= {"base_name": self.base_name, "compare": self.compare}
        return plain


def _check_run_names(published: tuple[PublishedSpec, ...], runs: list[str]) -> None:
    """Refuse a published figure about a run that there is not."""
    for i, one in enumerate(published):
        for name in one.runs():
            if name not in runs:
                known = ", ".join(runs)
                raise ValueError(f"published[{i}]: no run {name!r}{nearest(name, runs)}; runs: {known}")


def _check_variant_names(names: list[str]) -> None:
    """Refuse names that would share a folder where upper and lower case are the same."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other is not name:
            raise ValueError(f"compare: {other!r} and {name!r} would share a folder; names must differ")

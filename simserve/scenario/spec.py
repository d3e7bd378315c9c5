"""What a scenario says: a workload, a model, an engine, pools of GPUs, a router and targets.

The parts have files of their own, `*_spec.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simserve.engines.presets import DEFAULT_ENGINE
from simserve.errors import nearest
from simserve.scenario.part import PERCENTILE, SHORT_NAME, EngineSpec, Part, RouterSpec
from simserve.scenario.pool_spec import ExpertLoadSpec, PoolSpec
from simserve.scenario.split_spec import RoleSwitchSpec, TransferSpec
from simserve.scenario.study_spec import CapacitySpec, PublishedSpec, SearchSpec, SizeSpec, SweepSpec
from simserve.scenario.workload_spec import WorkloadSpec

STUDIES = ("sweep", "capacity", "size", "search")
"""Keys that say how a scenario is studied; a run of it does not depend on them."""

VariantName = Annotated[str, Field(pattern=SHORT_NAME)]
"""Names a folder of results, so what is allowed is what every file system allows."""

Milliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LatencyName = Literal["ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"]
PercentileName = Annotated[str, Field(pattern=PERCENTILE)]


class SloSpec(Part):
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


class Scenario(Part):
    """One simulated deployment and its workload."""

    name: str = Field(min_length=1, description="Title of the report; the result folder is named after it.")
    model: str = Field(description="A model's name (see `simserve models`), or the path of a config.json.")
    engine: EngineSpec = Field(
        description=f"Engine version ({DEFAULT_ENGINE}), or a mapping of it and its options."
    )
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
    currency: Annotated[str, Field(min_length=1, max_length=8, pattern=r"^[^\s\d]+$")] = Field(
        "$", description="Currency of every price in the scenario, as results show it: $, €, EUR ..."
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
            raise ValueError(f"engine: name an engine version (preset: {DEFAULT_ENGINE}) or a policy")
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
        if self.currency == Scenario.model_fields["currency"].default:
            del plain["currency"]
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

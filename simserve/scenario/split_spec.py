"""What a scenario says of a prefill/decode split, and the figures that stand in for what it leaves out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simserve.core.request import Acceptance
from simserve.errors import SettingError
from simserve.latency.overhead import HostLink
from simserve.model.draft import DraftMethod
from simserve.scenario.part import Part

LinkKind = Literal["nvlink", "pcie", "rdma_100g", "rdma_200g", "rdma_400g", "rdma_800g"]

RDMA_GB_PER_S = {"rdma_100g": 12.5, "rdma_200g": 25.0, "rdma_400g": 50.0, "rdma_800g": 100.0}
"""Line rate of one card, each way."""
FEW_LINKS = 4
RDMA_EFFICIENCY = {"few": 0.87, "many": 0.48}
"""Share of the line rate with up to 4 cards, and with more: Mooncake reports 87 GB/s on four of 200 Gb/s and
190 GB/s on eight of 400 Gb/s (README, August 2026)."""
PCIE_EFFICIENCY = 52 / 64
"""As for KV tiers: 52 GB/s of the 64 of a PCIe 5 x16 link."""
NVLINK_EFFICIENCY = 0.8
"""[assumption] copies between GPUs over NVLink reach some 80 % of the line rate."""
MOST_CARDS = 8
"""RDMA cards of one replica unless it says otherwise: one per GPU, but no more than a node has."""

Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class LocalSpec(Part):
    """Which requests are not split (Dynamo's conditional disaggregation); either condition is enough."""

    uncached_tokens: Annotated[int, Field(ge=0)] = Field(
        0, description="Prompt tokens that the decode replica has not cached, up to which a request stays."
    )
    prefill_queue: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Requests waiting per prefill replica, from which on requests stay; default: never."
    )


class TransferSpec(Part):
    """How KV gets from prefill to decode replicas."""

    link: LinkKind = Field("rdma_400g", description="Kind of link of each replica.")
    links: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Links of one replica; default: one per GPU, RDMA cards at most 8."
    )
    gb_s: Positive | None = Field(
        None, description="GB/s of one link, each way; default: the line rate of its kind (the GPU's own)."
    )
    efficiency: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="Share of the line rate that a transfer gets; default: RDMA 0.87 with up to 4 links and "
        "0.48 with more, PCIe 0.81, NVLink 0.8.",
    )
    overlap: Literal["request", "chunk", "layer"] | None = Field(
        None,
        description="When KV leaves: after the whole prompt (vLLM's default), after each chunk (SGLang's), "
        "or layer by layer while it is computed.",
    )
    handshake_ms: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = Field(
        None,
        description="From room on the decode side to the first byte; default: 0.4 (vLLM), 2 (SGLang).",
    )
    reshard_gb_s: Positive | None = Field(
        None,
        description="GB/s at which KV is cut or joined where prefill and decode ranks hold other heads; "
        "default: one more read and write of it in the memory of the side with fewer GPUs.",
    )
    lease_s: Positive | None = Field(
        None,
        description="How long a computed prompt is kept for a reader that has no room yet; default: for ever "
        "(vLLM renews its 30 s while the request waits).",
    )
    failure_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="Share of the transfers that turn out to be broken at their end."
    )
    on_failure: Literal["recompute", "error"] | None = Field(
        None,
        description="What a lost prompt means: the decode replica computes it (vLLM's default), or the "
        "request fails (SGLang's).",
    )
    local: LocalSpec | None = Field(None, description="Which requests are not split; default: none.")
    reserved_decode_tokens: Annotated[int, Field(ge=0)] = Field(
        512, description="SGLang: tokens that each request on the decode side keeps free for its answer."
    )
    decode_cache: bool = Field(
        False,
        description="SGLang: keep a prefix cache on the decode side (vLLM's follows enable_prefix_caching).",
    )


class RoleSwitchSpec(Part):
    """Replicas that change sides as queues grow and shrink."""

    check_s: Positive = Field(1.0, description="Time between two looks at the queues.")
    switch_s: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(
        5.0, description="From a replica's last request on one side to its first on the other."
    )
    queue: Annotated[int, Field(ge=1)] = Field(
        4, description="Requests waiting per replica of a side, from which on it asks for one more."
    )
    idle_queue: Annotated[int, Field(ge=0)] = Field(
        0, description="Requests waiting per replica, up to which a side gives one up."
    )

    @model_validator(mode="after")
    def _apart(self) -> RoleSwitchSpec:
        if self.idle_queue >= self.queue:
            raise SettingError("", "idle_queue", self.idle_queue, f"less than queue = {self.queue}")
        return self


# What a scenario says of KV tiers below HBM, and the figures that stand in for what it leaves out.

GigabytesPerSecond = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]

LATENCY_US = {"cpu": 10.0, "ssd": 100.0, "remote": 1000.0}
"""To the first byte. Remote: 1 ms, the low end of what a hand-shake takes; cpu and ssd [assumption]."""
GB_PER_S = {"ssd": 6.0, "remote": 43.5}
"""Of one link. ssd: one NVMe drive reads 6 to 12 GB/s; remote: 87 % of a 400 Gb/s NIC, the share that
Mooncake reports on four of 200 Gb/s. cpu depends on the GPU: see `pcie_gb_per_s`."""


class KvTierSpec(Part):
    """One tier below HBM."""

    kind: Literal["cpu", "ssd", "remote"] = Field(
        description="cpu: host memory over PCIe; ssd: drives; remote: a store over RDMA."
    )
    capacity_gib: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = Field(
        None, description="Size of the store in GiB of KV; 0 is the same as no tier."
    )
    capacity_blocks: Annotated[int, Field(ge=0, le=1 << 40)] | None = Field(
        None, description="Size of the store in KV blocks, instead of capacity_gib."
    )
    read_gb_s: GigabytesPerSecond | None = Field(
        None,
        description="GB/s of one link to HBM; default: cpu 52 (PCIe 5) or 24 (PCIe 4), ssd 6, remote 43.5.",
    )
    write_gb_s: GigabytesPerSecond | None = Field(
        None, description="GB/s of one link away from HBM; default: as read_gb_s."
    )
    links: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None,
        description="Links side by side: drives, NICs; default: one, for cpu one per GPU of the replica.",
    )
    latency_us: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = Field(
        None, description="Time to the first byte of a load; default: cpu 10, ssd 100, remote 1000."
    )
    shared_by: Literal["replica", "node", "cluster"] = Field(
        "replica",
        description="Who shares the store: nobody, the pool's replicas on one node, or all of the pool. "
        "Drives are shared with their store; PCIe links and NICs are each replica's own.",
    )

    @model_validator(mode="after")
    def _one_size(self) -> KvTierSpec:
        if (self.capacity_gib is None) == (self.capacity_blocks is None):
            found = "none" if self.capacity_gib is None else "both"
            raise ValueError(f"give exactly one of capacity_gib and capacity_blocks, found {found}")
        return self

    def filled_in(self, gpus: int, pcie_bytes_per_s: float, measured: HostLink | None = None) -> KvTierSpec:
        """Return the tier with every figure, for a replica of `gpus` GPUs.

        `measured` is the link to the host's memory, where a profile has it.
        """
        link = measured if self.kind == "cpu" else None
        usual = link.read_gb_s if link else GB_PER_S.get(self.kind) or pcie_gb_per_s(pcie_bytes_per_s)
        read = self.read_gb_s or usual
        write = self.write_gb_s or (link.write_gb_s if link and not self.read_gb_s else read)
        latency_us = link.latency_us if link else LATENCY_US[self.kind]
        return self.model_copy(
            update={
                "read_gb_s": read,
                "write_gb_s": write,
                "links": self.links or (gpus if self.kind == "cpu" else 1),
                "latency_us": latency_us if self.latency_us is None else self.latency_us,
            }
        )


class KvTierPolicySpec(Part):
    """How blocks move between HBM and the tiers."""

    write: Literal["back", "through"] = Field(
        "back", description="When a block is written below: when HBM drops it, or when it becomes full."
    )
    inclusive: bool = Field(
        True, description="True: a loaded block stays in its tier too, and in those above; False: it moves."
    )
    min_hit_tokens: Annotated[int, Field(ge=0)] = Field(
        0, description="Do not load what is shorter than this."
    )

    @model_validator(mode="after")
    def _consistent(self) -> KvTierPolicySpec:
        if self.write == "through" and not self.inclusive:
            raise SettingError("keeps a copy below, so it needs inclusive: true", "write", "through")
        return self


def pcie_gb_per_s(line_bytes_per_s: float) -> float:
    """Return what one x16 link achieves: 52 GB/s on PCIe 5, 24 on PCIe 4 and older."""
    return 52.0 if line_bytes_per_s > 50e9 else 24.0


# What a pool says about speculative decoding: what drafts, how many tokens, how many are accepted.

Chance = Annotated[float, Field(ge=0, le=1)]
MOST_DRAFTS = 64


class SpeculationSpec(Part):
    """Drafts that a step verifies, under the names of vLLM's `speculative_config`."""

    method: DraftMethod = Field(
        description="mtp: the model's own prediction layer; eagle: one layer like its last; draft_model: "
        "`model`; ngram: looked up in the prompt, at no cost on the GPU."
    )
    num_speculative_tokens: Annotated[int, Field(ge=1, le=MOST_DRAFTS)] = Field(
        description="Tokens drafted for each sequence and step."
    )
    acceptance: Chance | Annotated[tuple[Chance, ...], Field(strict=False, min_length=1)] | None = Field(
        None,
        description="Chance that a draft is accepted if all before it were: one number for all, or a list of "
        "one per draft.",
    )
    acceptance_length: Annotated[float, Field(ge=1)] | None = Field(
        None,
        description="Tokens per step and sequence in the mean, as engines report them (1 + accepted drafts), "
        "instead of `acceptance`: every draft is then given the same chance that makes this mean.",
    )
    model: str | None = Field(
        None, description="The draft model: its name, or the path of a config.json (method draft_model)."
    )
    seed: Annotated[int, Field(ge=0)] = Field(
        0, description="Draws of what is accepted, with the scenario's."
    )

    @model_validator(mode="after")
    def _whole(self) -> SpeculationSpec:
        drafts = self.num_speculative_tokens
        if (self.acceptance is None) == (self.acceptance_length is None):
            found = "none" if self.acceptance is None else "both"
            raise ValueError(f"give exactly one of acceptance and acceptance_length, found {found}")
        if isinstance(self.acceptance, tuple) and len(self.acceptance) != drafts:
            raise SettingError(
                key="acceptance",
                value=self.acceptance,
                allowed=f"one number, or num_speculative_tokens = {drafts} of them",
            )
        if self.acceptance_length is not None and self.acceptance_length > drafts + 1:
            raise SettingError(
                key="acceptance_length",
                value=self.acceptance_length,
                allowed=f"at most num_speculative_tokens + 1 = {drafts + 1}",
            )
        if (self.model is None) == (self.method == "draft_model"):
            if self.model is None:
                raise SettingError("needs a model", "method", self.method)
            raise SettingError(f"belongs to method draft_model, not to {self.method}", "model", self.model)
        return self

    @property
    def chances(self) -> tuple[float, ...]:
        """Chance of each draft to be accepted if all before it were."""
        drafts = self.num_speculative_tokens
        if isinstance(self.acceptance, tuple):
            return self.acceptance
        if self.acceptance is not None:
            return (self.acceptance,) * drafts
        assert self.acceptance_length is not None
        return (chance_for(self.acceptance_length, drafts),) * drafts

    def drawn(self, seed: int) -> Acceptance:
        """Return the draws under the scenario's seed."""
        return Acceptance(self.chances, self.seed + seed)

    def as_mapping(self) -> dict[str, Any]:
        """Return what was written, as one mapping."""
        return self.model_dump(mode="json", exclude_none=True)


def chance_for(length: float, drafts: int) -> float:
    """Return the p for which 1 + p + p^2 + ... + p^drafts = length (by bisection, to 1e-12)."""
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        p = (low + high) / 2
        reached = sum(p**depth for depth in range(drafts + 1))
        low, high = (p, high) if reached < length else (low, p)
    return (low + high) / 2

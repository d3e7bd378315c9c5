"""What a scenario says of a prefill/decode split, and the figures that stand in for what it leaves out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

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
        "(vLLM 0.33 renews its 30 s while the request waits).",
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
            raise ValueError(f"idle_queue must be below queue = {self.queue}, found {self.idle_queue}")
        return self

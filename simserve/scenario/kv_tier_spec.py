"""What a scenario says of KV tiers below HBM, and the figures that stand in for what it leaves out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simserve.latency.host_link import HostLink
from simserve.scenario.part import Part

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
            raise ValueError("write: through keeps a copy below, so it needs inclusive: true")
        return self


def pcie_gb_per_s(line_bytes_per_s: float) -> float:
    """Return what one x16 link achieves: 52 GB/s on PCIe 5, 24 on PCIe 4 and older."""
    return 52.0 if line_bytes_per_s > 50e9 else 24.0

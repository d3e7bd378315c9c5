"""What a GPU is, for a simulator: memory, bandwidths and peaks, each with its source and date."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from simserve.errors import ScenarioError, nearest


class Figure(BaseModel):
    """One figure of a GPU and where it was read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float = Field(gt=0)
    source: str = Field(min_length=1)
    date: str = Field(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$")
    """When the source was published or read: year, month or day."""
    note: str = ""


class GpuSpec(BaseModel):
    """One kind of GPU. Rates are vendor figures, dense, and what no kernel reaches quite."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Name of the profile folder, set by the loader."""
    title: str
    """The vendor's name."""
    words: tuple[str, ...] = ()
    """Words that its names are made of, lower case, the chip first; what a scenario may call it."""
    sm_arch: int
    """CUDA compute capability times ten (90 = Hopper); of AMD's, the number in gfx942."""
    gpus_per_node: int = Field(gt=0)
    """GPUs that reach each other over `nvlink` (72 in a GB200 NVL72)."""
    hbm: Figure
    """Bytes that CUDA reports as the device's memory (less than the sticker says)."""
    hbm_bandwidth: Figure
    """Bytes/s."""
    peak: dict[str, Figure]
    """Dense FLOP/s by dtype."""
    nvlink: Figure | None = None
    """Bytes/s per direction of one GPU over NVLink (AMD: Infinity Fabric); None without."""
    pcie: Figure
    """Bytes/s per direction."""
    multiprocessors: Figure | None = None
    """Streaming multiprocessors (AMD: compute units); None: taken as an H100's, which the report says."""
    l2: Figure | None = None
    """Bytes of L2 cache; None: taken as an H100's, which the report says."""

    @property
    def hbm_bytes(self) -> int:
        """Usable device memory."""
        return int(self.hbm.value)

    @property
    def hbm_bytes_per_s(self) -> float:
        """Memory bandwidth."""
        return self.hbm_bandwidth.value

    @property
    def nvlink_bytes_per_s(self) -> float:
        """NVLink bandwidth per direction, 0 without NVLink."""
        return self.nvlink.value if self.nvlink else 0.0

    @property
    def pcie_bytes_per_s(self) -> float:
        """PCIe bandwidth per direction."""
        return self.pcie.value

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth per direction between the GPUs of a node: NVLink, or PCIe where there is none."""
        return self.nvlink_bytes_per_s or self.pcie_bytes_per_s

    @property
    def peak_flops(self) -> dict[str, float]:
        """Dense peak in FLOP/s by dtype."""
        return {dtype: figure.value for dtype, figure in self.peak.items()}

    def peak_of(self, dtype: str) -> float:
        """Return the dense peak in FLOP/s; raises `ScenarioError` if the GPU has no units for `dtype`."""
        if dtype not in self.peak:
            known = ", ".join(self.peak)
            raise ScenarioError(
                f"GPU {self.name} has no peak for {dtype!r}{nearest(dtype, self.peak)}; has {known}"
            )
        return self.peak[dtype].value

    def ridge(self, dtype: str = "bf16") -> float:
        """Return the FLOPs per byte of memory traffic above which a kernel is compute-bound."""
        return self.peak_of(dtype) / self.hbm_bytes_per_s

"""Hardware: the GPUs, as data with provenance."""

from simserve.hardware.load import gpu_called, gpu_names, gpus_called, load_gpu
from simserve.hardware.spec import Figure, GpuSpec

__all__ = ["Figure", "GpuSpec", "gpu_called", "gpu_names", "gpus_called", "load_gpu"]

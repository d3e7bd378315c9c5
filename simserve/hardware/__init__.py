"""Hardware: the GPUs, as data with provenance."""

from simserve.hardware.gpu import Figure, GpuSpec, gpu_called, gpu_names, gpus_called, load_gpu

__all__ = ["Figure", "GpuSpec", "gpu_called", "gpu_names", "gpus_called", "load_gpu"]

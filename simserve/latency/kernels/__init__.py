"""Kernel families: from the shape of one kernel call to its time, out of the measured tables."""

from simserve.latency.kernels.machine import Machine

__all__ = ["Machine"]

"""Which shares of peak rates the best kernels reach: the roofline and the names of limits are held to them.

FlashMLA's README (April 2026) reports 660 of 989 TFLOP/s and 3.0 of 3.35 TB/s on H800.
"""

COMPUTE_EFFICIENCY = 0.67
"""Share of peak FLOP/s."""
MEMORY_EFFICIENCY = 0.9
"""Share of HBM bandwidth."""

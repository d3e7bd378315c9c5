"""Measures kernels on the machine at hand and writes them in the format of the shipped profiles.

The only place that imports torch; nothing that simulates knows it. Every kernel is compared with a float64
reference before it is timed. `run` plans, measures within a time budget and survives interruption; `check`
judges what was measured.
"""

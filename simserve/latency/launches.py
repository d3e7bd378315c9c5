"""What launching kernels costs the CPU, where `simserve profile run` has measured it (table `launch`).

An engine's constants for it are assumptions. A step outside CUDA graphs launches every kernel of the plan one
by one, each at the measured slope of launches; a step within one launches the graph. A table without graphs
is that of a device whose kernels were timed with their launch: nothing is added. A file of constants
(`simserve calibrate`) is left as it is.
"""

from __future__ import annotations

from dataclasses import replace

from simserve.latency.blocks.plan import Plan
from simserve.latency.kernels import Machine
from simserve.latency.overhead import EngineOverhead, is_built_in


def with_measured_launches(overhead: EngineOverhead, machine: Machine, plan: Plan) -> EngineOverhead:
    """Return the constants with those replaced that were measured on this machine."""
    times = {kind: _times(machine, kind) for kind in ("eager", "graph")}
    if not all(times.values()) or not overhead.capture_sizes or not is_built_in(overhead):
        return overhead
    kernel_us = _slope(times["eager"])
    # A line through scattered times can meet zero kernels below zero: launching takes no less than nothing.
    graph_us = max(0.0, min(times["graph"].items())[1] - min(times["graph"]) * _slope(times["graph"]))
    per_layer = kernels_of(plan) / max(1, plan.layers)
    measured = {
        "launch_layer_us": f"measured: {kernel_us:.1f} us per kernel, {per_layer:.0f} kernels per layer",
        "step_us": f"{overhead.provenance['step_us']}; measured: {graph_us:.1f} us to launch a CUDA graph",
    }
    return replace(
        overhead,
        launch_layer_us=kernel_us * per_layer,
        step_us=overhead.step_us + graph_us,
        provenance={**overhead.provenance, **measured},
    )


def kernels_of(plan: Plan) -> int:
    """Return the kernels of a step, as the plan counts them."""
    counted = sum(op.times for op in (*plan.per_token, *plan.per_sequence))
    return counted + sum(layers.times for layers in plan.attention)


def _times(machine: Machine, kind: str) -> dict[float, float]:
    """Return microseconds by number of kernels."""
    rows = machine.rows("launch", kind=kind)
    if rows is None or len(rows) < 2:
        return {}
    return dict(zip(rows.numbers("kernels").tolist(), rows.numbers("latency_us").tolist(), strict=True))


def _slope(times: dict[float, float]) -> float:
    """Return microseconds of one more kernel, from the two largest numbers of them."""
    (fewer, less_us), (more, us) = sorted(times.items())[-2:]
    return (us - less_us) / (more - fewer)

"""What a step costs beside its kernels: the engine's own work on the CPU, launches, CUDA-graph padding.

Follows vLLM's async scheduling and SGLang's overlap scheduler: when overlapped, a step lasts as long as the
longer of GPU and CPU work; otherwise they add up. A step outside the captured graph sizes must launch every
kernel, so the GPU waits if launching takes longer than computing.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from simserve.latency.blocks.plan import Plan
from simserve.latency.kernels import Machine
from simserve.latency.overlap import Order
from simserve.latency.tables.profiles import ProfileStore

# The link between a GPU and its host's memory, where `simserve profile run` measured it (`host_copy`).


class HostLink(NamedTuple):
    """What one GPU's link achieves from and to pinned memory."""

    read_gb_s: float
    """From the host to the GPU, by the largest copy measured."""
    write_gb_s: float
    latency_us: float
    """A copy of next to nothing from the host."""


def measured_host_link(profiles: ProfileStore, gpu: str) -> HostLink | None:
    """Return the measured link of a GPU, None if there is no table with copies both ways."""
    table = profiles.table(gpu, "host_copy")
    if table is None:
        return None
    ways = [table.select(direction=direction, pinned=1) for direction in ("h2d", "d2h")]
    if not all(len(rows) for rows in ways):
        return None
    speeds = []
    for rows in ways:
        largest = int(rows.numbers("bytes").argmax())
        speeds.append(float(rows.numbers("bytes")[largest] / rows.numbers("latency_us")[largest] / 1000))
    return HostLink(speeds[0], speeds[1], float(ways[0].numbers("latency_us").min()))


@dataclass(frozen=True)
class EngineOverhead:
    """Constants of one engine. `provenance` has one line for each of them."""

    name: str
    step_us: float = 0.0
    """CPU work of the engine loop per step: schedule, prepare inputs, process outputs."""
    sequence_us: float = 0.0
    """The same for each sequence in the step."""
    request_us: float = 0.0
    """The same for each prompt chunk in the step."""
    visits_all: bool = False
    """True if a microbatch of a pipeline costs `sequence_us` for every running request, not just its own."""
    overlapped: bool = True
    """True if the CPU prepares the next step while the GPU computes this one."""
    gap_us: float = 0.0
    """GPU idle time between two steps that overlap does not hide."""
    saved_us: float = 0.0
    """What a step takes less than its kernels, timed one by one, add up to: back to back, one starts while
    the one before ends."""
    capture_sizes: tuple[int, ...] = ()
    """Batch sizes with a CUDA graph, ascending; empty: no graphs and no launch cost (an ideal engine)."""
    launch_layer_us: float = 0.0
    """CPU time to launch one layer's kernels when no graph holds them."""
    client_us: float = 0.0
    """Time of a request outside the engine loop: HTTP, tokenise, hand over, detokenise, stream, network.

    It delays what the client sees of every token alike; the GPU does not wait for it.
    """
    kernels: str = "vllm"
    """Engine whose kernels run where tables hold those of several (`backend` in the tables)."""
    two_batch: Order = "vllm"
    """Order of the two halves of a step that overlap (`overlap.order_of`)."""
    built_in: bool = field(default=False, compare=False)
    """True if the constants are assumptions of ours, which a machine's measured launches may replace."""
    provenance: dict[str, str] = field(default_factory=dict, hash=False, compare=False)

    def padded(self, tokens: int) -> int:
        """Return the captured size that runs a step of `tokens` tokens; `tokens` itself if none does."""
        place = bisect_left(self.capture_sizes, tokens)
        return self.capture_sizes[place] if place < len(self.capture_sizes) else tokens

    def captured(self, tokens: int) -> bool:
        """Return True if a graph of at least this size exists, or launches are free."""
        return not self.capture_sizes or tokens <= self.capture_sizes[-1]


CPU_ASSUMED = (
    "assumption, of the order of the coefficients that inference-sim publishes for vLLM on H100 (2026-08): "
    "126 us per step, 4.4 us per sequence, 32 us per layer launched"
)
CLIENT_ASSUMED = "0: time between client and engine loop (HTTP, tokeniser, network) is not counted"
SAVED_ASSUMED = "0: kernels take as long back to back as one by one"

IDEAL = EngineOverhead("ideal", built_in=True, provenance={"all": "no engine cost: kernels only"})


# What launching kernels costs the CPU, where `simserve profile run` has measured it (table `launch`).
#
# An engine's constants for it are assumptions. A step outside CUDA graphs launches every kernel of the plan
# one
# by one, each at the measured slope of launches; a step within one launches the graph. A table without graphs
# is that of a device whose kernels were timed with their launch: nothing is added. A file of constants
# (`simserve calibrate`) is left as it is.


def with_measured_launches(overhead: EngineOverhead, machine: Machine, plan: Plan) -> EngineOverhead:
    """Return the constants with those replaced that were measured on this machine."""
    times = {kind: _times(machine, kind) for kind in ("eager", "graph")}
    if not all(times.values()) or not overhead.capture_sizes or not overhead.built_in:
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
        built_in=False,
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

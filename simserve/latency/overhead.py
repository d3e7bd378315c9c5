"""What a step costs beside its kernels: the engine's own work on the CPU, launches, CUDA-graph padding.

Follows vLLM's async scheduling and SGLang's overlap scheduler: when overlapped, a step lasts as long as the
longer of GPU and CPU work; otherwise they add up. A step outside the captured graph sizes must launch every
kernel, so the GPU waits if launching takes longer than computing.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, fields, replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from simserve.errors import ScenarioError, nearest
from simserve.latency.blocks.plan import Plan
from simserve.latency.kernels import Machine
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
    provenance: dict[str, str] = field(default_factory=dict, hash=False, compare=False)

    def padded(self, tokens: int) -> int:
        """Return the captured size that runs a step of `tokens` tokens; `tokens` itself if none does."""
        place = bisect_left(self.capture_sizes, tokens)
        return self.capture_sizes[place] if place < len(self.capture_sizes) else tokens

    def captured(self, tokens: int) -> bool:
        """Return True if a graph of at least this size exists, or launches are free."""
        return not self.capture_sizes or tokens <= self.capture_sizes[-1]


def _vllm_capture_sizes(largest: int = 512) -> tuple[int, ...]:
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def _sglang_capture_sizes(largest: int = 256) -> tuple[int, ...]:
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), *range(512, largest + 1, 32)]
    return tuple(size for size in sizes if size <= largest)


_CPU = (
    "assumption, of the order of the coefficients that inference-sim publishes for vLLM on H100 (2026-08): "
    "126 us per step, 4.4 us per sequence, 32 us per layer launched"
)
_CLIENT = "0: time between client and engine loop (HTTP, tokeniser, network) is not counted"
_SAVED = "0: kernels take as long back to back as one by one"

IDEAL = EngineOverhead("ideal", provenance={"all": "no engine cost: kernels only"})
VLLM = EngineOverhead(
    "vllm",
    step_us=126.0,
    sequence_us=4.4,
    request_us=0.0,
    overlapped=True,
    gap_us=0.0,
    capture_sizes=_vllm_capture_sizes(),
    launch_layer_us=32.0,
    provenance={
        "step_us": _CPU,
        "sequence_us": _CPU,
        "request_us": "0: requests are tokenised in another process",
        "visits_all": "assumption: a microbatch costs its own sequences only",
        "overlapped": "vLLM 0.33.0 default: asynchronous scheduling",
        "gap_us": "0: assumed hidden by asynchronous scheduling",
        "saved_us": _SAVED,
        "capture_sizes": "vLLM 0.33.0 default: 1, 2, 4, 8..248 by 8, 256..512 by 16",
        "launch_layer_us": _CPU,
        "client_us": _CLIENT,
    },
)
SGLANG = EngineOverhead(
    "sglang",
    step_us=126.0,
    sequence_us=4.4,
    request_us=0.0,
    overlapped=True,
    gap_us=0.0,
    capture_sizes=_sglang_capture_sizes(),
    launch_layer_us=32.0,
    kernels="sglang",
    provenance={
        "step_us": _CPU,
        "sequence_us": _CPU,
        "request_us": "0: requests are tokenised in another process",
        "visits_all": "assumption: a microbatch costs its own sequences only",
        "overlapped": "SGLang 0.5.23 default: overlap scheduler",
        "gap_us": "0: assumed hidden by the overlap scheduler",
        "saved_us": _SAVED,
        "capture_sizes": "SGLang 0.5.23 default on 80-141 GB cards: 1, 2, 4, 8, 12, 16..256 by 8",
        "launch_layer_us": _CPU,
        "client_us": _CLIENT,
    },
)
TRTLLM = EngineOverhead(
    "trtllm",
    step_us=126.0,
    sequence_us=29.0,
    request_us=0.0,
    visits_all=True,
    overlapped=True,
    gap_us=0.0,
    capture_sizes=(1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192),
    launch_layer_us=32.0,
    kernels="trtllm",
    provenance={
        "step_us": _CPU,
        "sequence_us": (
            "fitted to one row of TensorRT-LLM 1.0's table without a pipeline, the highest rate there: "
            "Qwen3-30B-A3B on GB200, 128/2048, 31,311 tokens/s. TensorRT-LLM's own measurements say 34 us "
            "(pull request 16564: 8.8 ms of an iteration for 256 requests) and 9 (issue 13957: 580 us for 64)"
        ),
        "request_us": "0: requests are tokenised in another process",
        "visits_all": "PyExecutor 1.0 looks at every active request for responses and to schedule, each time",
        "overlapped": "TensorRT-LLM 1.0, PyTorch backend: overlap scheduler on by default",
        "gap_us": "0: assumed hidden by the overlap scheduler",
        "saved_us": _SAVED,
        "capture_sizes": "cuda_graph_config of TensorRT-LLM's performance overview (v1.0)",
        "launch_layer_us": _CPU,
        "client_us": _CLIENT,
    },
)
OVERHEADS = {overhead.name: overhead for overhead in (IDEAL, VLLM, SGLANG, TRTLLM)}
_UP_TO = ", graphs up to "


def overhead_named(name: str) -> EngineOverhead:
    """Return the overhead constants called `name`; raises `ScenarioError` if there are none.

    Beside those of `OVERHEADS`, the names that `with_graphs` gives.
    """
    known, up_to, largest = name.partition(_UP_TO)
    if known not in OVERHEADS:
        names = ", ".join(sorted(OVERHEADS))
        raise ScenarioError(f"unknown engine overhead {name!r}{nearest(name, OVERHEADS)}; known: {names}")
    if not up_to:
        return OVERHEADS[known]
    if not largest.isdecimal() or not int(largest) or not OVERHEADS[known].capture_sizes:
        raise ScenarioError(f"engine overhead {name!r}: graphs go up to 1 or more sequences, and need graphs")
    return with_graphs(OVERHEADS[known], int(largest))


def with_graphs(overhead: EngineOverhead, largest: int) -> EngineOverhead:
    """Return the constants with CUDA graphs up to `largest` sequences, and of it; their name says so."""
    sizes = (*(size for size in overhead.capture_sizes if size < largest), largest)
    return replace(overhead, name=f"{overhead.name}{_UP_TO}{largest}", capture_sizes=sizes)


def is_built_in(overhead: EngineOverhead) -> bool:
    """Return True if the constants are ours, not those of a file."""
    try:
        return overhead_named(overhead.name) == overhead
    except ScenarioError:
        return False


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


# Engine overhead constants in a small YAML file: the constants of a named engine, and those that differ.
#
# Written by `simserve calibrate`, cited by a scenario as `engine.overhead: file.yaml`.

_HEADINGS = ("base", "provenance", "fit")
NUMBERS = tuple(field.name for field in fields(EngineOverhead) if field.name.endswith("_us"))
"""Constants that a file may change (microseconds)."""


def read_overhead(path: Path) -> EngineOverhead:
    """Return the constants of a file; raises `ScenarioError` naming file, key and value."""
    try:
        data = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except YAMLError as error:
        raise ScenarioError(f"{path.name}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict) or "base" not in data:
        raise ScenarioError(f"{path.name}: overhead constants need 'base', the engine that they depart from")
    base = overhead_named(str(data["base"]))
    values = {key: _number(path, key, value) for key, value in data.items() if key not in _HEADINGS}
    provenance = {**base.provenance, **(data.get("provenance") or {})}
    return replace(base, name=path.name, provenance=provenance, **values)


def overhead_yaml(
    base: str, values: dict[str, float], provenance: dict[str, str], fit: dict[str, Any]
) -> str:
    """Return the text of such a file; `fit` says how good the constants are, for readers."""
    text = StringIO()
    yaml = YAML()
    yaml.width = 110
    yaml.dump({"base": base, **values, "provenance": provenance, "fit": fit}, text)
    return text.getvalue()


def _number(path: Path, key: str, value: Any) -> float:
    if key not in NUMBERS:
        hint = nearest(str(key), NUMBERS)
        raise ScenarioError(f"{path.name}: unknown key {key!r}{hint}; allowed: {', '.join(NUMBERS)}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ScenarioError(f"{path.name}: {key} = {value!r}, allowed are microseconds from 0 to 1e9")
    return float(value)

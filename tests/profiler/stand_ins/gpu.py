"""A CPU that calls itself a Hopper GPU: the profiler takes its paths for GPUs, on tensors of the CPU.

Graphs record torch's operations and run them again; what waits for the GPU cannot be captured, as on a real
one.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simserve.profiler.device import Device

WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::bincount")
"""Operations whose results a GPU must hand to the CPU first."""


class Event:
    """A CUDA event by the wall clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, end: Event) -> float:
        return 1000 * (end.at - self.at)


class Recorder(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in WAITING:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        self.graph.calls.append((func, args, kwargs or {}))
        return out


class Graph:
    """A CUDA graph: what was called, to be called again."""

    replayed = 0

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any]] = []

    def replay(self) -> None:
        Graph.replayed += 1
        for func, args, kwargs in self.calls:
            func(*args, **kwargs)


@contextmanager
def recording(graph: Graph):
    with Recorder(graph):
        yield


@contextmanager
def nothing(*_: Any):
    yield


class Stream:
    def wait_stream(self, _: Stream) -> None:
        return None


def as_gpu(patch: pytest.MonkeyPatch, capability: int = 90) -> Device:
    """Return a device that is a GPU to the profiler, in place of torch's CUDA."""
    cuda = torch.cuda
    for name, value in {
        "Event": Event, "CUDAGraph": Graph, "graph": recording, "Stream": Stream, "stream": nothing,
        "current_stream": Stream, "synchronize": lambda: None, "empty_cache": lambda: None,
        "device_count": lambda: 1, "mem_get_info": lambda: (2 * 10**9, 4 * 10**9),
    }.items():  # fmt: skip
        patch.setattr(cuda, name, value)
    return Device("cuda", "a CPU in place of a GPU", 2**20, capability, "cpu")

"""What the machine itself takes: copies between host and device, launches, replay of CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simserve.profiler.case import Case, Kernel, refinement
from simserve.profiler.device import Device, need_torch, version_of
from simserve.profiler.shapes import Shapes
from simserve.profiler.tensors import copies, relative_error

LAUNCHES = (1, 10, 100)


class HostCopy:
    """`host_copy`: bytes between host and device ("h2d", "d2h"), or within the device ("d2d")."""

    name = "host_copy"
    key_columns = ("direction", "pinned", "bytes")

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield both directions, pinned and not; on a CPU only copies within memory."""
        kinds = [("d2d", 0)]
        if device.is_cuda:
            kinds += [("h2d", 1), ("d2h", 1), ("h2d", 0), ("d2h", 0)]
        sizes = shapes.sizes.message_bytes
        for direction, pinned in kinds:
            for size, level in zip(sizes, refinement(len(sizes)), strict=True):
                key = (("direction", direction), ("pinned", pinned), ("bytes", size))
                yield Case(self.name, key, "torch", level)

    def build(self, case: Case, device: Device) -> Kernel:
        """Return the copy of a case."""
        torch = need_torch()
        sets = device.rotation(2 * case["bytes"])
        ends = {"d2d": (device.place,) * 2, "h2d": ("cpu", device.place), "d2h": (device.place, "cpu")}
        source_on, target_on = ends[case["direction"]]

        def make(place: str) -> Any:
            pinned = bool(case["pinned"]) and place == "cpu"
            return torch.randint(0, 256, (case["bytes"],), dtype=torch.uint8).pin_memory() if pinned else (
                torch.randint(0, 256, (case["bytes"],), dtype=torch.uint8, device=place)
            )  # fmt: skip

        sources, targets = copies(make(source_on), sets), copies(make(target_on), sets)

        def error() -> float:
            targets[0].copy_(sources[0])
            return relative_error(targets[0].cpu(), sources[0].cpu().double())

        return Kernel(
            lambda i: targets[i].copy_(sources[i], non_blocking=True),
            sets, error, 0.0, "Tensor.copy_", version_of("torch"), False,
        )  # fmt: skip


class Launch:
    """`launch`: the least that `kernels` kernels take, one element each.

    "eager": launched one by one by Python; "graph": replayed from a CUDA graph; "wait": one launch and
    waiting for its result.
    """

    name = "launch"
    key_columns = ("kind", "kernels")

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield what the device can do."""
        kinds = ("eager", "graph", "wait") if device.is_cuda else ("eager", "wait")
        for kind in kinds:
            for kernels in LAUNCHES if kind != "wait" else (1,):
                yield Case(self.name, (("kind", kind), ("kernels", kernels)), "torch", 0)

    def build(self, case: Case, device: Device) -> Kernel:
        """Return the calls of a case."""
        torch = need_torch()
        x = torch.zeros(1, device=device.place)
        kernels = case["kernels"]

        def several(_: int) -> Any:
            for _ in range(kernels):
                x.add_(1.0)
            return x

        def waiting(_: int) -> Any:
            return x.add_(1.0).item()

        def error() -> float:
            x.zero_()
            several(0)
            return abs(float(x.item()) - kernels) / kernels

        call = waiting if case["kind"] == "wait" else several
        if case["kind"] == "graph":
            graph = torch.cuda.CUDAGraph()
            several(0)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                several(0)
            return Kernel(
                lambda _: graph.replay(), 1, error, 0.0, "graph of Tensor.add_", version_of("torch"), False
            )
        return Kernel(call, 1, error, 0.0, "Tensor.add_", version_of("torch"), False)

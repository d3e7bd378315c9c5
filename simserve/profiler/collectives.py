"""The collectives themselves, run on every rank, with answers that are known in closed form.

`bytes` of the tables: the message per rank of an all-reduce or a send, the gathered whole of an all-gather,
the whole input of a reduce-scatter and of an all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simserve.profiler.distributed import Order
from simserve.profiler.need import need_torch
from simserve.profiler.tensors import torch_dtype


def collective_call(
    order: Order, rank: int, ranks: int, device: str
) -> tuple[Callable[[], Any], Callable[[], float]]:
    """Return the call, and the check: run once on fresh inputs, the largest deviation from the right answer.

    Rank r contributes r + 1 everywhere, so sums and gathered parts are small whole numbers, exact in any
    dtype.
    """
    torch = need_torch()
    make = _CALLS[order.collective]
    dtype = torch_dtype(order.dtype)
    elements = -(-order.elements // ranks) * ranks
    run, fresh, output, expected = make(torch, elements, rank, ranks, dtype, device)

    def error() -> float:
        fresh()
        torch.distributed.barrier()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        return float((output().double() - expected).abs().max())

    return run, error


Made = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any], Any]
"""The call, what makes its inputs fresh, its output, and what that must be."""


def _all_reduce(torch: Any, elements: int, rank: int, ranks: int, dtype: Any, device: str) -> Made:
    x = torch.zeros(elements, dtype=dtype, device=device)
    total = ranks * (ranks + 1) / 2
    return lambda: torch.distributed.all_reduce(x), lambda: x.fill_(rank + 1), lambda: x, total


def _newer(torch: Any, name: str, old_name: str) -> Callable[..., Any]:
    """Return a function under its newer name where this torch has it."""
    return getattr(torch.distributed, name, None) or getattr(torch.distributed, old_name)


def _all_gather(torch: Any, elements: int, rank: int, ranks: int, dtype: Any, device: str) -> Made:
    own = torch.full((elements // ranks,), rank + 1.0, dtype=dtype, device=device)
    whole = torch.full((elements,), float("nan"), dtype=dtype, device=device)
    expected = (torch.arange(ranks, device=device).double() + 1).repeat_interleave(elements // ranks)
    gather = _newer(torch, "all_gather_single", "all_gather_into_tensor")
    return lambda: gather(whole, own), lambda: whole.fill_(float("nan")), lambda: whole, expected


def _reduce_scatter(torch: Any, elements: int, rank: int, ranks: int, dtype: Any, device: str) -> Made:
    whole = torch.full((elements,), rank + 1.0, dtype=dtype, device=device)
    own = torch.full((elements // ranks,), float("nan"), dtype=dtype, device=device)
    total = ranks * (ranks + 1) / 2
    scatter = _newer(torch, "reduce_scatter_single", "reduce_scatter_tensor")
    return lambda: scatter(own, whole), lambda: own.fill_(float("nan")), lambda: own, total


def _all_to_all(torch: Any, elements: int, rank: int, ranks: int, dtype: Any, device: str) -> Made:
    whole = torch.full((elements,), rank + 1.0, dtype=dtype, device=device)
    got = torch.full((elements,), float("nan"), dtype=dtype, device=device)
    expected = (torch.arange(ranks, device=device).double() + 1).repeat_interleave(elements // ranks)
    return (
        lambda: torch.distributed.all_to_all_single(got, whole),
        lambda: got.fill_(float("nan")),
        lambda: got,
        expected,
    )


def _send_recv(torch: Any, elements: int, rank: int, ranks: int, dtype: Any, device: str) -> Made:
    """Rank 0 sends to rank 1; the others wait."""
    x = torch.full((elements,), 7.0 if rank == 0 else float("nan"), dtype=dtype, device=device)
    if rank > 1:
        x.fill_(7.0)

    def run() -> Any:
        if rank == 0:
            torch.distributed.send(x, 1)
        elif rank == 1:
            torch.distributed.recv(x, 0)

    return run, lambda: x.fill_(float("nan")) if rank == 1 else None, lambda: x, 7.0


_CALLS: dict[str, Callable[..., Made]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
}

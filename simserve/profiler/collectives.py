"""The collectives themselves, run on every rank, with answers that are known in closed form.

`bytes` of the tables: the message per rank of an all-reduce or a send, the gathered whole of an all-gather,
the whole input of a reduce-scatter and of an all-to-all. Rank r contributes r + 1 everywhere, so sums and
gathered parts are small whole numbers, exact in any dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from simserve.profiler.need import need_torch
from simserve.profiler.rank_work import Member, Order, RankCall
from simserve.profiler.tensors import torch_dtype


class _Shape(NamedTuple):
    elements: int
    dtype: Any
    member: Member


def collective_call(order: Order, member: Member) -> RankCall:
    """Return the call for an order with (elements, dtype); its error is the largest deviation."""
    torch = need_torch()
    elements, dtype = order.arguments
    padded = -(-elements // member.ranks) * member.ranks
    run, fresh, output, expected = _CALLS[order.kind](_Shape(padded, torch_dtype(dtype), member))

    def error() -> float:
        fresh()
        torch.distributed.barrier(group=member.group)
        run()
        if member.device == "cuda":
            torch.cuda.synchronize()
        return float((output().double() - expected).abs().nan_to_num(float("inf")).max())

    return RankCall(run, error)


Made = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any], Any]
"""The call, what makes its inputs fresh, its output, and what that must be."""


def _full(it: _Shape, elements: int, value: float) -> Any:
    return need_torch().full((elements,), value, dtype=it.dtype, device=it.member.device)


def _newer(name: str, old_name: str) -> Callable[..., Any]:
    """Return a function under its newer name where this torch has it."""
    distributed = need_torch().distributed
    return getattr(distributed, name, None) or getattr(distributed, old_name)


def _one_part_per_rank(it: _Shape) -> Any:
    torch, ranks = need_torch(), it.member.ranks
    numbers = torch.arange(ranks, device=it.member.device).double() + 1
    return numbers.repeat_interleave(it.elements // ranks)


def _all_reduce(it: _Shape) -> Made:
    distributed, (rank, ranks, _, group) = need_torch().distributed, it.member
    x = _full(it, it.elements, 0.0)
    total = ranks * (ranks + 1) / 2
    return lambda: distributed.all_reduce(x, group=group), lambda: x.fill_(rank + 1), lambda: x, total


def _all_gather(it: _Shape) -> Made:
    rank, ranks, _, group = it.member
    own, whole = _full(it, it.elements // ranks, rank + 1.0), _full(it, it.elements, float("nan"))
    gather = _newer("all_gather_single", "all_gather_into_tensor")
    return (
        lambda: gather(whole, own, group=group),
        lambda: whole.fill_(float("nan")),
        lambda: whole,
        _one_part_per_rank(it),
    )


def _reduce_scatter(it: _Shape) -> Made:
    rank, ranks, _, group = it.member
    whole, own = _full(it, it.elements, rank + 1.0), _full(it, it.elements // ranks, float("nan"))
    scatter = _newer("reduce_scatter_single", "reduce_scatter_tensor")
    total = ranks * (ranks + 1) / 2
    return lambda: scatter(own, whole, group=group), lambda: own.fill_(float("nan")), lambda: own, total


def _all_to_all(it: _Shape) -> Made:
    whole, got = _full(it, it.elements, it.member.rank + 1.0), _full(it, it.elements, float("nan"))
    return (
        lambda: need_torch().distributed.all_to_all_single(got, whole, group=it.member.group),
        lambda: got.fill_(float("nan")),
        lambda: got,
        _one_part_per_rank(it),
    )


def _send_recv(it: _Shape) -> Made:
    """Rank 0 sends to rank 1; the others wait."""
    distributed, (rank, _, _, group) = need_torch().distributed, it.member
    x = _full(it, it.elements, float("nan") if rank == 1 else 7.0)

    def run() -> Any:
        if rank == 0:
            distributed.send(x, 1, group=group)
        elif rank == 1:
            distributed.recv(x, 0, group=group)

    return run, lambda: x.fill_(float("nan")) if rank == 1 else None, lambda: x, 7.0


_CALLS: dict[str, Callable[[_Shape], Made]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
}

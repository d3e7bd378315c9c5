"""The collectives themselves, run on every rank, with answers that are known in closed form.

`bytes` of the tables: the message per rank of an all-reduce or a send, the gathered whole of an all-gather,
the whole input of a reduce-scatter and of an all-to-all. Rank r contributes r + 1 everywhere, so sums and
gathered parts are small whole numbers, exact in any dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from simserve.profiler.device import need_torch, needed
from simserve.profiler.rank_work import Member, Order, RankCall
from simserve.profiler.tensors import by_row_groups, from_row_groups, relative_error, torch_dtype


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


# Tokens sent to the ranks of their experts and back, on every rank: DeepEP, or torch's all-to-all.
#
# A dispatch followed by a combine must give every token once per rank that it visited (DeepEP's low-latency
# kernels weigh by expert instead: once per weight). That is checked against float64 before anything is timed.
# Written against DeepEP 1.2 (`Buffer`; its second version keeps that class).

NVLINK_BYTES = 2**30
"""DeepEP's buffer for the GPUs of a node; that of its tests."""


class Exchange(NamedTuple):
    """What an order for an exchange says."""

    phase: str
    """dispatch or combine: the part that is timed."""
    mode: str
    """all_to_all (torch), normal or low_latency (DeepEP)."""
    dtype: str
    """Of what is sent: bf16, fp16, fp32; fp8 with a scale per 128 elements."""
    hidden: int
    topk: int
    experts: int
    sms: int
    tokens: int
    """Of each rank."""


class Passage(NamedTuple):
    """Both ways of one exchange."""

    dispatch: Callable[[], Any]
    """Send; returns what arrived."""
    combine: Callable[[Any], Any]
    """Send back what arrived; returns the sums, [tokens, hidden]."""
    returned: Any
    """How often each token comes back, float64 [tokens]."""


def exchange_call(order: Order, member: Member) -> RankCall:
    """Return the call for an order whose arguments are those of `Exchange`; its error is relative."""
    torch, it = need_torch(), Exchange(*order.arguments)
    # The same on every call, different on every rank.
    draw = torch.Generator().manual_seed(1 + member.rank)
    x = torch.randn(it.tokens, it.hidden, generator=draw)
    ids = torch.rand(it.tokens, it.experts, generator=draw).topk(it.topk, -1)[1]
    sent = torch_dtype("bf16" if it.dtype == "fp8" else it.dtype)
    x, ids = x.to(member.device, sent), ids.to(member.device)
    passage = _PASSAGES[it.mode](it, member, x, ids)

    def error() -> float:
        torch.distributed.barrier(group=member.group)
        back = passage.combine(passage.dispatch())
        return relative_error(back, x.double() * passage.returned[:, None])

    held: list[Any] = [passage.dispatch()]

    def dispatch() -> None:
        held[0] = passage.dispatch()

    def combine() -> None:
        passage.combine(held[0])

    # One is timed, the other runs in between, as the kernels expect.
    if it.phase == "dispatch":
        return RankCall(dispatch, error, after=combine)
    return RankCall(combine, error, before=dispatch)


def _exchanges_all_to_all(it: Exchange, member: Member, x: Any, ids: Any) -> Passage:
    """One all-to-all each way, every token once per rank that it visits; how many come is known before."""
    torch = need_torch()
    distributed = torch.distributed
    owner = ids // (it.experts // member.ranks)
    visits = torch.zeros(it.tokens, member.ranks, dtype=torch.bool, device=member.device)
    visits.scatter_(1, owner, True)
    rows = torch.cat([visits[:, rank].nonzero().flatten() for rank in range(member.ranks)])
    out = visits.sum(0)
    into = torch.empty_like(out)
    distributed.all_to_all_single(into, out, group=member.group)
    outgoing, incoming = out.tolist(), into.tolist()

    def dispatch() -> Any:
        got = x.new_empty(sum(incoming), it.hidden)
        distributed.all_to_all_single(got, x[rows], incoming, outgoing, group=member.group)
        return got

    def combine(got: Any) -> Any:
        back = x.new_empty(len(rows), it.hidden)
        distributed.all_to_all_single(back, got, outgoing, incoming, group=member.group)
        return torch.zeros_like(x).index_add_(0, rows, back)

    return Passage(dispatch, combine, visits.sum(1).double())


def _deepep_normal(it: Exchange, member: Member, x: Any, ids: Any) -> Passage:
    deep_ep = needed("deep_ep")
    deep_ep.Buffer.set_num_sms(it.sms)
    buffer = _buffer(member.ranks, False, _group(member), 0, 1)
    per_rank, per_node_rank, per_expert, visits, _ = buffer.get_dispatch_layout(ids, it.experts)
    config = {"dispatch": deep_ep.Buffer.get_dispatch_config, "combine": deep_ep.Buffer.get_combine_config}
    sent = by_row_groups(x, powers_of_two=False) if it.dtype == "fp8" else x

    def dispatch() -> Any:
        got, _, _, _, handle, _ = buffer.dispatch(
            sent, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node_rank,
            is_token_in_rank=visits, num_tokens_per_expert=per_expert,
            config=config["dispatch"](member.ranks),
        )  # fmt: skip
        return got, handle

    def combine(arrived: Any) -> Any:
        got, handle = arrived
        plain = _from_fp8(got) if isinstance(got, tuple) else got
        return buffer.combine(plain, handle, config=config["combine"](member.ranks))[0]

    return Passage(dispatch, combine, visits.sum(1).double())


def _deepep_low_latency(it: Exchange, member: Member, x: Any, ids: Any) -> Passage:
    torch, deep_ep = need_torch(), needed("deep_ep")
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(it.tokens, it.hidden, member.ranks, it.experts)
    buffer = _buffer(member.ranks, True, _group(member), hint, it.experts // member.ranks)
    weights = torch.full(ids.shape, 1.0 / it.topk, device=member.device)

    def dispatch() -> Any:
        got, _, handle, _, _ = buffer.low_latency_dispatch(
            x, ids, it.tokens, it.experts, use_fp8=it.dtype == "fp8"
        )
        return got, handle

    # Combine takes bf16, so what came in fp8 is turned back once, outside of what is timed.
    ready: dict[str, Any] = {}

    def combine(arrived: Any) -> Any:
        got, handle = arrived
        if "x" not in ready:
            ready["x"] = _from_fp8(got) if isinstance(got, tuple) else got
        return buffer.low_latency_combine(ready["x"], ids, weights, handle)[0]

    return Passage(dispatch, combine, weights.double().sum(1))


def _group(member: Member) -> Any:
    return member.group or need_torch().distributed.group.WORLD


@cache
def _buffer(ranks: int, low_latency: bool, group: Any, rdma_bytes: int, queue_pairs: int) -> Any:
    deep_ep = needed("deep_ep")
    return deep_ep.Buffer(
        group, 0 if low_latency else NVLINK_BYTES, rdma_bytes, low_latency_mode=low_latency,
        num_qps_per_rank=queue_pairs,
    )  # fmt: skip


def _from_fp8(got: tuple[Any, Any]) -> Any:
    return from_row_groups(*got).to(torch_dtype("bf16"))


_PASSAGES: dict[str, Callable[[Exchange, Member, Any, Any], Passage]] = {
    "all_to_all": _exchanges_all_to_all,
    "normal": _deepep_normal,
    "low_latency": _deepep_low_latency,
}

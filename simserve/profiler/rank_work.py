"""What one rank does for an order: check the call once, then take samples until the median is known."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simserve.profiler.device import CannotTime, need_torch
from simserve.profiler.timing import TARGET_ERROR, Timing, event_us, median_error, summary

ANSWER_S = 120.0
"""How long a rank may take for an order beyond the time that it is given."""
MOST_SAMPLES = 200
PER_ROUND = 5
"""Samples between two decisions whether to go on."""


@dataclass(frozen=True)
class Order:
    """What every rank is to do."""

    kind: str
    """A collective (see `collectives`), or "exchange" (see `exchanges`)."""
    arguments: tuple[Any, ...]
    most_s: float


class Member(NamedTuple):
    """One rank of a group."""

    rank: int
    ranks: int
    device: str
    group: Any
    """torch's process group; None: that of all ranks."""


class RankCall(NamedTuple):
    """A call made ready on one rank."""

    run: Callable[[], Any]
    error: Callable[[], float]
    """Run it once on fresh inputs and return how far off it is."""
    before: Callable[[], Any] = lambda: None
    """What must come before each call, not timed."""
    after: Callable[[], Any] = lambda: None


Answer = str | CannotTime | tuple[float, list[float]]
"""Error of one run and microseconds of every sample; or what failed, or cannot be done at all."""


def take_device(local_rank: int, device: str) -> None:
    """Make this process compute on its own GPU, or with one thread."""
    torch = need_torch()
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    else:
        torch.set_num_threads(1)


def group_backend(device: str) -> str:
    """Return what carries data between the ranks of a group."""
    return "nccl" if device == "cuda" else "gloo"


def slowest(answers: list[Answer]) -> tuple[Timing, float]:
    """Return the slowest rank's time, sample by sample, and the worst error.

    Raises `RuntimeError` with what a rank says that has failed, `CannotTime` if they all refuse.
    """
    failed = [answer for answer in answers if isinstance(answer, str)]
    if failed:
        raise RuntimeError(failed[0])
    refused = [answer for answer in answers if isinstance(answer, CannotTime)]
    if refused:
        raise refused[0]
    errors, samples = zip(*answers, strict=True)
    return summary(np.max(np.array(samples), axis=0).tolist(), "slowest rank"), max(errors)


def carry_out(order: Order, member: Member) -> Answer:
    """Return this rank's answer to an order."""
    from simserve.profiler.collectives import collective_call, exchange_call

    try:
        make = exchange_call if order.kind == "exchange" else collective_call
        return _measured(make(order, member), member, order.most_s)
    except CannotTime as error:
        return error
    except Exception as error:  # any failure of a library is this rank's answer
        return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _measured(call: RankCall, member: Member, most_s: float) -> tuple[float, list[float]]:
    distributed = need_torch().distributed
    wrong = call.error()
    for _ in range(3):
        _sample_us(call, member)
    samples: list[float] = []
    begin = time.monotonic()
    go_on = need_torch().ones(1, device=member.device)
    while True:
        samples += [_sample_us(call, member) for _ in range(PER_ROUND)]
        known = len(samples) >= 2 * PER_ROUND and median_error(np.array(samples)) < TARGET_ERROR
        late = len(samples) >= MOST_SAMPLES or time.monotonic() - begin > most_s
        # Rank 0 decides for all, so that every rank takes as many samples.
        go_on.fill_(0.0 if known or late else 1.0)
        distributed.broadcast(go_on, 0, group=member.group)
        if not go_on.item():
            return wrong, samples


def _sample_us(call: RankCall, member: Member) -> float:
    torch = need_torch()
    call.before()
    torch.distributed.barrier(group=member.group)
    if member.device == "cuda":
        torch.cuda.synchronize()
        us = event_us(torch, call.run)
    else:
        started = time.perf_counter_ns()
        call.run()
        us = (time.perf_counter_ns() - started) / 1000
    call.after()
    return us

"""Ranks that torchrun has started: `torchrun --nproc-per-node N -m simserve profile run ...`.

Rank 0 plans, measures what one GPU does and writes; the others take part when it asks them to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from simserve.profiler.need import CannotTime, need_torch
from simserve.profiler.rank_work import (
    ANSWER_S,
    Answer,
    Member,
    Order,
    carry_out,
    group_backend,
    slowest,
    take_device,
)
from simserve.profiler.timing import Timing

IDLE = timedelta(days=7)
"""How long ranks wait for the next order, while rank 0 measures what one GPU does."""


class Launch(NamedTuple):
    """Where torchrun has put this process."""

    rank: int
    world: int
    local_rank: int
    per_node: int


def launch() -> Launch | None:
    """Return this process's place among those that torchrun has started, None if it did not start it."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    values = [os.environ.get(name, "") for name in names]
    if not all(value.isdigit() for value in values) or "MASTER_ADDR" not in os.environ:
        return None
    return Launch(*map(int, values))


@contextmanager
def joined(place: Launch, device: str) -> Iterator[None]:
    """Meet the other processes of torchrun; at the end rank 0 lets them go, unless it failed."""
    torch = need_torch()
    # Rank 0 on a CPU measures kernels of its own with as many threads as it was told.
    if place.rank or device == "cuda":
        take_device(place.local_rank, device)
    # Orders and answers travel over gloo; what is timed has a group of its own.
    torch.distributed.init_process_group("gloo", timeout=IDLE)
    yield
    if place.rank == 0:
        torch.distributed.broadcast_object_list([None], 0)
    torch.distributed.destroy_process_group()


class Meeting:
    """How the processes of torchrun carry out orders together, as one of them sees it."""

    def __init__(self, place: Launch, device: str) -> None:
        """Groups are made as they are asked for, on all ranks in the same order."""
        self.place = place
        self._device = device
        self._groups: dict[int, Any] = {}

    def serve(self) -> None:
        """Carry out the orders of rank 0 until it has no more."""
        while True:
            message: list[Any] = [None]
            need_torch().distributed.broadcast_object_list(message, 0)
            if message[0] is None:
                return
            self._answer(*message[0])

    def ask(self, count: int, order: Order) -> list[Answer]:
        """Have the first `count` ranks carry out an order; return their answers (on rank 0 only)."""
        need_torch().distributed.broadcast_object_list([(count, order)], 0)
        return self._answer(count, order)[:count]

    def _answer(self, count: int, order: Order) -> list[Answer]:
        """Carry out an order if this rank takes part; return all answers on rank 0, nothing elsewhere."""
        torch = need_torch()
        if count not in self._groups:
            limit = timedelta(seconds=ANSWER_S)
            self._groups[count] = torch.distributed.new_group(
                list(range(count)), limit, group_backend(self._device)
            )
        own: Answer | None = None
        if self.place.rank < count:
            own = carry_out(order, Member(self.place.rank, count, self._device, self._groups[count]))
        answers: list[Any] | None = [None] * self.place.world if self.place.rank == 0 else None
        torch.distributed.gather_object(own, answers, 0)
        return answers or []


class LaunchedRanks:
    """The first `count` processes of a meeting, as rank 0 sees them (see `ranks.Ranks`)."""

    def __init__(self, meeting: Meeting, count: int) -> None:
        """Note who takes part; raises `CannotTime` if there are not so many."""
        if count > meeting.place.world:
            raise CannotTime(f"{count} ranks cannot start: torchrun has started {meeting.place.world}")
        self.count, self._meeting = count, meeting

    def measure(self, order: Order) -> tuple[Timing, float]:
        """Return the slowest rank's time and the worst error (see `ranks.Ranks`)."""
        return slowest(self._meeting.ask(self.count, order))

    def close(self) -> None:
        """Nothing: the processes are torchrun's."""

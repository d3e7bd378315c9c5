"""Ranks for what several GPUs do together: what a group of them offers, and the group that is at hand.

Processes of our own (`own_ranks`), or those that torchrun has started (`launched_ranks`). Either way every
rank answers with its samples, and the slowest rank's time counts, sample by sample.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from simserve.profiler.device import CannotTime, need_torch
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

# Ranks that torchrun has started: `torchrun --nproc-per-node N -m simserve profile run ...`.
#
# Rank 0 plans, measures what one GPU does and writes; the others take part when it asks them to.

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


# Ranks that the command starts itself: processes that meet on a free loopback port, over NCCL or gloo.

START_S = 120.0


class OwnRanks:
    """Processes that this one starts (see `ranks.Ranks`); use `close` when done."""

    def __init__(self, ranks: int, device: str) -> None:
        """Start `ranks` processes on `device` ("cuda" or "cpu"); raises `CannotTime` if they cannot meet."""
        context = multiprocessing.get_context("spawn")
        port = _free_port()
        self.count = ranks
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, ranks, device, port, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for answer in self._answers(START_S):
            if answer != "ready":
                self.close()
                raise CannotTime(f"{ranks} ranks cannot start: {answer}")

    def measure(self, order: Order) -> tuple[Timing, float]:
        """Return the slowest rank's time and the worst error (see `ranks.Ranks`)."""
        for pipe in self._pipes:
            pipe.send(order)
        return slowest(self._answers(ANSWER_S + order.most_s))

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:
                continue
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.terminate()

    def _answers(self, most_s: float) -> list[Any]:
        deadline = time.monotonic() + most_s
        answers: list[Any] = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                answers.append(f"rank {rank} did not answer within {most_s:.0f} s")
                continue
            try:
                answers.append(pipe.recv())
            except EOFError:
                answers.append(f"rank {rank} ended")
        return answers


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _serve(rank: int, ranks: int, device: str, port: int, pipe: Connection) -> None:
    """Life of one rank: join the group, then carry out orders until None comes."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch = need_torch()
    try:
        take_device(rank, device)
        torch.distributed.init_process_group(group_backend(device), rank=rank, world_size=ranks)
    except (RuntimeError, ValueError) as error:
        pipe.send(f"{type(error).__name__}: {' '.join(str(error).split())}")
        return
    pipe.send("ready")
    member = Member(rank, ranks, device, None)
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            break
        if order is None:
            break
        pipe.send(carry_out(order, member))
    torch.distributed.destroy_process_group()


class Ranks(Protocol):
    """Ranks that carry out orders."""

    count: int

    def measure(self, order: Order) -> tuple[Timing, float]:
        """Return the slowest rank's time and the worst error; raises `RuntimeError` if a rank fails."""
        ...

    def close(self) -> None:
        """Let them go."""
        ...


class RankPool:
    """At most one group of ranks at a time, kept while as many are asked for."""

    def __init__(self) -> None:
        """Start none yet."""
        self._running: Ranks | None = None
        self._meeting: Meeting | None = None
        self._cannot: dict[tuple[int, str], str] = {}

    def get(self, count: int, device: str) -> Ranks:
        """Return `count` ranks on `device` ("cuda" or "cpu").

        Raises `CannotTime` if they cannot start; so many are then not tried again.
        """
        if why := self._cannot.get((count, device)):
            raise CannotTime(why)
        if self._running is None or self._running.count != count:
            self.close()
            try:
                self._running = self._open(count, device)
            except CannotTime as error:
                self._cannot[count, device] = str(error)
                raise
        return self._running

    def close(self) -> None:
        """End the ranks, if any run."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def _open(self, count: int, device: str) -> Ranks:
        place = launch()
        if place is None:
            return OwnRanks(count, device)
        self._meeting = self._meeting or Meeting(place, device)
        return LaunchedRanks(self._meeting, count)

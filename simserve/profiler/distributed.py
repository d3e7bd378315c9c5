"""Ranks for what several GPUs do together: started here, or by torchrun, over NCCL or gloo.

Without torchrun the command starts processes of its own, on a free loopback port, once per number of ranks.
Under `torchrun --nproc-per-node N -m simserve profile run ...` rank 0 plans, measures what one GPU does and
writes; the others take part when it asks them to. Either way every rank answers with its samples, and the
slowest rank's time counts, sample by sample.
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

import numpy as np

from simserve.errors import ProfileError
from simserve.profiler.need import need_torch
from simserve.profiler.rank_work import Answer, Member, Order, carry_out
from simserve.profiler.timing import Timing, summary

START_S = 120.0
ANSWER_S = 120.0
IDLE = timedelta(days=7)
"""How long ranks under torchrun wait for the next order, while rank 0 measures what one GPU does."""


class Ranks(Protocol):
    """Ranks that carry out orders."""

    count: int

    def measure(self, order: Order) -> tuple[Timing, float]:
        """Return the slowest rank's time and the worst error; raises `RuntimeError` if a rank fails."""
        ...

    def close(self) -> None:
        """Let them go."""
        ...


def _summary(answers: list[Answer]) -> tuple[Timing, float]:
    failed = [answer for answer in answers if isinstance(answer, str)]
    if failed:
        raise RuntimeError(failed[0])
    errors, samples = zip(*answers, strict=True)
    return summary(np.max(np.array(samples), axis=0).tolist(), "slowest rank"), max(errors)


class OwnRanks:
    """Processes that this one starts; use `close` when done."""

    def __init__(self, ranks: int, device: str) -> None:
        """Start `ranks` processes on `device` ("cuda" or "cpu"); raises `ProfileError` if they cannot
        meet."""
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
                raise ProfileError(f"collectives over {ranks} ranks cannot start: {answer}")

    def measure(self, order: Order) -> tuple[Timing, float]:
        """Return the slowest rank's time and the worst error (see `Ranks`)."""
        for pipe in self._pipes:
            pipe.send(order)
        return _summary(self._answers(ANSWER_S + order.most_s))

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
        _take_device(rank, device)
        torch.distributed.init_process_group(_backend(device), rank=rank, world_size=ranks)
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


def _take_device(local_rank: int, device: str) -> None:
    torch = need_torch()
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    else:
        torch.set_num_threads(1)


def _backend(device: str) -> str:
    return "nccl" if device == "cuda" else "gloo"


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


class LaunchedRanks:
    """The first `count` of the processes that torchrun has started, as rank 0 sees them."""

    def __init__(self, place: Launch, count: int, device: str) -> None:
        """Note who takes part; raises `ProfileError` if there are not so many."""
        if count > place.world:
            raise ProfileError(f"collectives over {count} ranks: torchrun has started {place.world}")
        self.count, self._device, self._place = count, device, place

    def measure(self, order: Order) -> tuple[Timing, float]:
        """Return the slowest rank's time and the worst error (see `Ranks`)."""
        answers = _together(self._place, self._device, (self.count, order))
        return _summary(answers[: self.count])

    def close(self) -> None:
        """Nothing: the processes are torchrun's."""


def open_ranks(count: int, device: str) -> Ranks:
    """Return `count` ranks: torchrun's if it started this process, else processes of our own."""
    place = launch()
    return LaunchedRanks(place, count, device) if place else OwnRanks(count, device)


@contextmanager
def joined(place: Launch, device: str) -> Iterator[None]:
    """Meet the other processes of torchrun; at the end rank 0 lets them go, unless it failed."""
    torch = need_torch()
    # Rank 0 on a CPU measures kernels of its own with as many threads as it was told.
    if place.rank or device == "cuda":
        _take_device(place.local_rank, device)
    # Orders and answers travel over gloo; what is timed has a group of its own.
    torch.distributed.init_process_group("gloo", timeout=IDLE)
    yield
    if place.rank == 0:
        torch.distributed.broadcast_object_list([None], 0)
    torch.distributed.destroy_process_group()


def serve_launched(place: Launch, device: str) -> None:
    """Carry out the orders of rank 0 until it has no more."""
    while True:
        message: list[Any] = [None]
        need_torch().distributed.broadcast_object_list(message, 0)
        if message[0] is None:
            return
        _answer(place, device, message[0])


def _together(place: Launch, device: str, message: tuple[int, Order]) -> list[Answer]:
    need_torch().distributed.broadcast_object_list([message], 0)
    return _answer(place, device, message)


_groups: dict[int, Any] = {}


def _answer(place: Launch, device: str, message: tuple[int, Order]) -> list[Answer]:
    """Carry out an order if this rank takes part; return all answers on rank 0, nothing elsewhere."""
    torch = need_torch()
    count, order = message
    if count not in _groups:
        limit = timedelta(seconds=ANSWER_S)
        _groups[count] = torch.distributed.new_group(list(range(count)), limit, _backend(device))
    own: Answer | None = None
    if place.rank < count:
        own = carry_out(order, Member(place.rank, count, device, _groups[count]))
    answers: list[Any] | None = [None] * place.world if place.rank == 0 else None
    torch.distributed.gather_object(own, answers, 0)
    return answers or []

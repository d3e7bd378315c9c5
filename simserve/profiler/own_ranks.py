"""Ranks that the command starts itself: processes that meet on a free loopback port, over NCCL or gloo."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

from simserve.profiler.need import CannotTime, need_torch
from simserve.profiler.rank_work import (
    ANSWER_S,
    Member,
    Order,
    carry_out,
    group_backend,
    slowest,
    take_device,
)
from simserve.profiler.timing import Timing

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

"""Ranks for collectives: processes that this one starts, over NCCL across GPUs or gloo on a CPU.

Started once per run and number of ranks, on a free loopback port. The parent sends a request to every rank;
each answers with what it measured, and the slowest rank's time counts, sample by sample. Under torchrun the
ranks would be its own; here the command starts them itself, so one command is enough.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from simserve.errors import ProfileError
from simserve.profiler.need import need_torch
from simserve.profiler.timing import Timing, median_error

START_S = 120.0
ANSWER_S = 120.0


@dataclass(frozen=True)
class Order:
    """What every rank is to do."""

    collective: str
    elements: int
    """Elements of the message, as the table's bytes define it."""
    dtype: str
    most_s: float


class Ranks:
    """Running ranks; use `close` when done."""

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
        """Return the time of a collective, and the worst rank's error; raises `RuntimeError` if one fails."""
        for pipe in self._pipes:
            pipe.send(order)
        answers = self._answers(ANSWER_S + order.most_s)
        failed = [answer for answer in answers if isinstance(answer, str)]
        if failed:
            raise RuntimeError(failed[0])
        errors, samples = zip(*answers, strict=True)
        slowest = np.max(np.array(samples), axis=0)
        low, middle, high = (float(value) for value in np.quantile(slowest, (0.1, 0.5, 0.9)))
        spread = float(slowest.std(ddof=1))
        return Timing(middle, len(slowest), spread, low, high, "slowest rank"), max(errors)

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
        if device == "cuda":
            torch.cuda.set_device(rank)
        else:
            torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "nccl" if device == "cuda" else "gloo", rank=rank, world_size=ranks
        )
    except (RuntimeError, ValueError) as error:
        pipe.send(f"{type(error).__name__}: {' '.join(str(error).split())}")
        return
    pipe.send("ready")
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            break
        if order is None:
            break
        try:
            answer: Any = _carry_out(order, rank, ranks, device)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            answer = f"{type(error).__name__}: {' '.join(str(error).split())}"
        pipe.send(answer)
    torch.distributed.destroy_process_group()


def _carry_out(order: Order, rank: int, ranks: int, device: str) -> tuple[float, list[float]]:
    """Return the error of one run, and microseconds of every sample (as many on each rank)."""
    from simserve.profiler.collectives import collective_call

    torch = need_torch()
    run, error = collective_call(order, rank, ranks, device)
    wrong = error()
    samples: list[float] = []
    torch.distributed.barrier()
    for _ in range(3):
        run()
    begin = time.monotonic()
    go_on = torch.ones(1, device=device)
    while True:
        for _ in range(5):
            torch.distributed.barrier()
            samples.append(_once_us(torch, run, device))
        known = len(samples) >= 10 and median_error(np.array(samples)) < 0.02
        # Rank 0 decides for all, so that every rank takes as many samples.
        go_on.fill_(0.0 if known or len(samples) >= 200 or time.monotonic() - begin > order.most_s else 1.0)
        torch.distributed.broadcast(go_on, 0)
        if not go_on.item():
            return wrong, samples


def _once_us(torch: Any, run: Any, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return 1000.0 * begin.elapsed_time(end)
    started = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - started) / 1000

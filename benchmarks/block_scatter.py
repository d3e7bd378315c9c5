"""How scattered the KV blocks of running sequences lie, as time goes on: `python -m benchmarks.block_scatter`

vLLM's queue of free blocks (first in, first out; a sequence's last block first) with prefix caching, for the
lengths of three measured runs of docs/fidelity.md. Printed is the share of neighbouring blocks of a sequence
that lie in different pages of 2 MiB: what a kernel must translate anew. Not part of the simulation.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from itertools import count, pairwise
from typing import NamedTuple

PAGE_KIB = 2048
BLOCK = 16
PROMPTS, PER_GROUP, SHARED_BLOCKS = 100, 10, 6
"""Prompts sent in turn, of which ten in a row begin with the same 100 tokens."""


class Run(NamedTuple):
    """A measured run: lengths in tokens, requests/s, and KiB of keys of a block in one layer and rank."""

    name: str
    blocks: int
    prompt: int
    answer: int
    rate: Callable[[float], float]
    seconds: int
    step_s: float
    block_kib: int


RUNS = (
    Run("70B reasoning, TP 4", 31356, 1083, 1448, lambda _: 4.0, 900, 0.030, 8),
    Run("34B reasoning, TP 2", 26602, 1081, 1448, lambda _: 4.0, 900, 0.027, 16),
    Run("70B general, TP 4", 31356, 575, 248, lambda time_s: 8.0 if time_s < 600 else 20.0, 900, 0.020, 8),
)
SEQUENCES = 128


class Pool:
    """Blocks by number: free ones in the order in which they will be taken, and what each one holds."""

    def __init__(self, blocks: int) -> None:
        self.free = OrderedDict.fromkeys(range(blocks))
        self.holders = [0] * blocks
        self.cached: dict[tuple[int, int], int] = {}
        self.content: dict[int, tuple[int, int]] = {}

    def take(self) -> int:
        """Return the block that was free the longest; what it held is gone."""
        block, _ = self.free.popitem(last=False)
        self.cached.pop(self.content.pop(block, (-1, -1)), None)
        self.holders[block] = 1
        return block

    def prompt(self, prompt: int, tokens: int) -> list[int]:
        """Return the blocks of a prompt: those that are cached, then new ones."""
        blocks: list[int] = []
        for place in range(-(-tokens // BLOCK)):
            key = (-1 - prompt // PER_GROUP if place < SHARED_BLOCKS else prompt, place)
            found = self.cached.get(key) if len(blocks) == place and place < tokens // BLOCK else None
            if found is None:
                found = self.take()
                if place < tokens // BLOCK and key not in self.cached:
                    self.cached[key], self.content[found] = found, key
            else:
                self.free.pop(found, None)
                self.holders[found] += 1
            blocks.append(found)
        return blocks

    def give(self, blocks: list[int]) -> None:
        """Take back the blocks of a sequence, the last one first."""
        for block in reversed(blocks):
            self.holders[block] -= 1
            if not self.holders[block]:
                self.free[block] = None


def page_changes(run: Run, every_s: int = 60) -> list[tuple[int, float]]:
    """Return (second, share of neighbouring blocks in different pages) of the running sequences."""
    rng, pool = random.Random(1), Pool(run.blocks)
    running: list[tuple[list[int], int]] = []
    time_s, arrival_s, started, arrived, found = 0.0, 0.0, 0, 0, []
    for step in count():
        time_s = step * run.step_s
        if time_s > run.seconds:
            return found
        while arrival_s <= time_s:
            arrived += 1
            arrival_s += rng.expovariate(run.rate(arrival_s))
        while started < arrived and len(running) < SEQUENCES:
            running.append((pool.prompt(started % PROMPTS, run.prompt), step))
            started += 1
        for blocks, since in running:
            if -(-(run.prompt + step + 1 - since) // BLOCK) > len(blocks):
                blocks.append(pool.take())
        done = [blocks for blocks, since in running if step + 1 - since >= run.answer]
        running = [it for it in running if step + 1 - it[1] < run.answer]
        for blocks in done:
            pool.give(blocks)
        if time_s >= every_s * (len(found) + 1):
            page = PAGE_KIB // run.block_kib
            changes = [a // page != b // page for blocks, _ in running for a, b in pairwise(blocks)]
            found.append((every_s * (len(found) + 1), sum(changes) / len(changes)))
    return found


def main() -> None:
    """Print the share by minute."""
    shares = {run.name: dict(page_changes(run)) for run in RUNS}
    print("second  " + "  ".join(f"{name:>20}" for name in shares))
    for second in range(60, 901, 60):
        print(f"{second:6}  " + "  ".join(f"{of[second]:20.2f}" for of in shares.values() if second in of))


if __name__ == "__main__":
    main()

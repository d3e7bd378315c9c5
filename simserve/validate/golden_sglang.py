"""Replays scheduling logs of the real SGLang 0.5.23 scheduler through the policy, with no event loop.

Reads any folder of logs in the format of step-by-step SGLang recordings (gzipped JSON lines: a config, the
requests, the steps). Plays the model and the clients; the policy is told only what a scheduler may know.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from simserve.core import Batch, Request, Wait
from simserve.kv.radix_runs import Runs, canonical
from simserve.policy.sglang import Params, SglangPolicy
from simserve.validate.golden import Comparison, Difference

OUTPUT_SEGMENT = 10_000
"""Segment 10000 + i of a log is the output of request i."""

STEP_FIELDS = (
    "arr", "mode", "s", "new", "retract", "preempt", "abort", "ratio", "full", "chunk", "wait", "free",
    "evictable", "protected", "fin", "free_end", "evictable_end",
)  # fmt: skip


class LoggedContent:
    """The prompts of a log."""

    def __init__(self, requests: list[dict[str, Any]]) -> None:
        self._prompts = [canonical(r["prompt"]) for r in requests]

    def prompt(self, request: Request) -> Runs:
        return self._prompts[request.id]

    def output_segment(self, request: Request) -> int:
        return OUTPUT_SEGMENT + request.id


def read_log(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the config line, the request lines and the step lines of a log."""
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    requests = [row for row in rows if row["kind"] == "request"]
    return rows[0], requests, [row for row in rows if row["kind"] == "step"]


def params_of(config: dict[str, Any]) -> Params:
    """Translate the settings of a log."""
    return Params(
        max_total_tokens=config["kv_tokens"],
        max_running_requests=config["max_running"],
        chunked_prefill_size=config["chunk"],
        max_prefill_tokens=config["max_prefill"],
        schedule_policy=config["policy"],
        schedule_conservativeness=config["conservativeness"],
        disable_radix_cache=not config["radix"],
        enable_mixed_chunk=config["mixed"],
        disable_overlap_schedule=not config["overlap"],
        enable_priority_scheduling=config["priority"],
        disable_priority_preemption=not config["priority_preempt"],
        ignore_eos=config["ignore_eos"],
    )


class Replay:
    """One log, step by step."""

    def __init__(self, config: dict[str, Any], requests: list[dict[str, Any]]) -> None:
        self.policy = SglangPolicy(params_of(config), LoggedContent(requests))
        self._rows = requests
        self._factor = config["max_new_factor"]
        self._produced = [0] * len(requests)
        self._seen: set[int] = set()
        self._due: dict[int, list[int]] = {}
        self._overlap = config["overlap"]
        self._late: list[int] = []
        self._followers: dict[int, list[int]] = {}
        for row in requests:
            if "at" in row:
                self._due.setdefault(row["at"], []).append(row["id"])
            else:
                self._followers.setdefault(row["after"], []).append(row["id"])

    def step(self, t: int) -> dict[str, Any]:
        """Take the step with counter `t` and return it in the log's format."""
        policy = self.policy
        arrivals = sorted(self._due.pop(t, []))
        for index in arrivals:
            policy.add(self._request(index))
        batch = policy.next_batch(t)
        row: dict[str, Any] = {"t": t, "arr": arrivals, **self._decision(batch)}
        finished = [] if isinstance(batch, Wait) else self._play(batch)
        row["fin"] = finished
        row["free_end"] = policy.pool.free
        row["evictable_end"] = policy.pool.tree.evictable
        for index in finished:
            for follower in self._followers.get(index, ()):
                self._due.setdefault(t + self._rows[follower]["gap"], []).append(follower)
        return row

    def _request(self, index: int) -> Request:
        row = self._rows[index]
        prompt_tokens = sum(length for _, _, length in row["prompt"])
        return Request(index, index, prompt_tokens, row["out"] * self._factor, row["prio"])

    def _decision(self, batch: Batch | Wait) -> dict[str, Any]:
        policy = self.policy
        row = {
            "retract": [s.request.id for s in policy.last.retracted],
            "preempt": [s.request.id for s in policy.last.preempted],
            "abort": [],
            "ratio": round(policy.ratio.value, 5),
            "full": policy.full,
            "chunk": policy.chunked.request.id if policy.chunked else None,
            "wait": policy.waiting,
            "free": policy.pool.free,
            "evictable": policy.pool.tree.evictable,
            "protected": policy.pool.tree.protected,
        }
        if isinstance(batch, Batch):
            row["mode"] = ("mixed" if batch.decodes else "prefill") if batch.chunks else "decode"
            row["s"] = [[c.request.id, c.tokens, c.cached] for c in batch.chunks]
            if batch.decodes:
                row["s"] += [[s.request.id, 1, policy.batch.stored(s) - 1] for s in policy.batch]
            row["new"] = [r.id for r in batch.admitted if r.id not in self._seen]
            self._seen.update(row["new"])
        return row

    def _play(self, batch: Batch) -> list[int]:
        """Make the tokens of a step, report those that end, and return their ids."""
        policy = self.policy
        for request in batch.preempted:
            self._produced[request.id] = request.known - request.prompt_tokens
        tokens = [c.request for c in batch.chunks if c.last]
        if batch.decodes:
            tokens += [s.request for s in policy.batch]
        for request in tokens:
            self._produced[request.id] += 1
        finished = [r for r in tokens if self._produced[r.id] == self._rows[r.id]["out"]]
        policy.update(batch, 1, finished)
        shown, self._late = self._late, [r.id for r in finished]
        return shown if self._overlap else self._late


def replay(path: Path) -> Comparison:
    """Replay one log up to the first difference."""
    head, requests, steps = read_log(path)
    run = Replay(head["config"], requests)
    for done, theirs in enumerate(steps):
        ours = run.step(theirs["t"])
        parted = [name for name in STEP_FIELDS if ours.get(name) != theirs.get(name)]
        if parted:
            difference = Difference(
                theirs["t"], {n: ours.get(n) for n in parted}, {n: theirs.get(n) for n in parted}
            )
            return Comparison(path.name, len(steps), done, difference, STEP_FIELDS)
    return Comparison(path.name, len(steps), len(steps), None, STEP_FIELDS)

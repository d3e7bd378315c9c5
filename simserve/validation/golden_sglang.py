"""Replays scheduling logs of the real SGLang 0.5.23 scheduler through the policy, with no event loop.

Reads any folder of logs in the format of step-by-step SGLang recordings (gzipped JSON lines: a config, the
requests, the steps). Plays the model and the clients; the policy is told only what a scheduler may know.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simserve.core import Batch, Request
from simserve.engines.sglang import SglangParams, SglangPolicy
from simserve.kvcache.content import Runs, canonical
from simserve.validation.golden import Comparison, GoldenLog, LogClients, Vocabulary, compare

OUTPUT_SEGMENT = 10_000
"""Segment 10000 + i of a log is the output of request i."""
UNLIMITED = 1 << 60
"""Longest sequence accepted: the recordings refuse nothing."""
STEP_FIELDS = (
    "arr", "mode", "s", "new", "retract", "preempt", "abort", "ratio", "full", "chunk", "wait", "free",
    "evictable", "protected", "fin", "free_end", "evictable_end",
)  # fmt: skip
"""Fields of a step that are compared, all exactly (`ratio` as logged, to five decimals)."""

VERSIONS = ("0.5.23",)
"""Releases whose logs can be replayed."""
SETTINGS: dict[str, type] = {
    "policy": str, "chunk": int, "max_prefill": int, "max_running": int, "kv_tokens": int, "radix": bool,
    "mixed": bool, "conservativeness": float, "ignore_eos": bool, "priority": bool,
    "priority_preempt": bool, "overlap": bool, "max_new_factor": int,
}  # fmt: skip
"""Settings that a log must tell."""
OPTIONAL: dict[str, type] = {"page": int, "unified": bool}
"""Settings that a log may tell: tokens of a page (else 1), and the class of the tree (steps are the same)."""
VOCABULARY = Vocabulary(
    settings={*SETTINGS, *OPTIONAL, "max_len"},
    steps={*STEP_FIELDS, "t"},
    not_replayed={
        "window": "a pool for windows", "window_tokens": "a pool for windows",
        "free_window": "a pool for windows", "evictable_window": "a pool for windows",
        "free_window_end": "a pool for windows",
    },
)  # fmt: skip
"""What a replay understands; `max_len` bears on the engine's intake, which the recordings leave out."""


def replay(path: Path) -> Comparison:
    """Replay one log, up to the first step that differs."""
    return replay_log(GoldenLog.read(path))


def replay_log(log: GoldenLog) -> Comparison:
    """Replay a log that has been read."""
    run = Replay(log.config, log.requests)
    logged = {row["t"]: row.get("preempt", []) for row in log.steps}

    def step(t: int) -> dict[str, Any]:
        return run.step(t, logged[t])

    return compare(log, step, STEP_FIELDS)


def params_of(config: dict[str, Any]) -> SglangParams:
    """Translate the settings of a log."""
    return SglangParams(
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


class LoggedContent:
    """The prompts of a log."""

    def __init__(self, requests: list[dict[str, Any]]) -> None:
        """`requests` are the log's request lines, in order of their ids."""
        self._prompts = [canonical(row["prompt"]) for row in requests]

    def prompt(self, request: Request) -> Runs:
        """Return the logged prompt."""
        return self._prompts[request.id]

    def output_place(self, request: Request) -> tuple[int, int]:
        """Return the start of the segment that the log gives the request's output."""
        return OUTPUT_SEGMENT + request.id, 0


class Replay:
    """The clients and the model of one log, around a policy."""

    def __init__(self, config: dict[str, Any], requests: list[dict[str, Any]]) -> None:
        """`config` and `requests` as logged."""
        self.policy = SglangPolicy(
            params_of(config),
            kv_blocks=config["kv_tokens"] // config.get("page", 1),
            block_size=config.get("page", 1),
            max_model_len=UNLIMITED,
            content=LoggedContent(requests),
            keep_ratio_when_idle=True,
        )
        self._rows = requests
        self._allowance = config["max_new_factor"]
        self._overlap = config["overlap"]
        self._produced = [0] * len(requests)
        self._admitted: set[int] = set()
        self._unseen: list[int] = []
        self._ended: list[int] = []
        self._clients = LogClients(requests)

    def step(self, t: int, victims: list[int] | None = None) -> dict[str, Any]:
        """Take the step with counter `t` and return it in the log's format.

        `victims` are the log's preempted requests. The engine keeps them in a set: if it is the same set,
        they go back to the queue in the log's order.
        """
        return self.run(t, 1, victims)[0]

    def run(self, t: int, most_steps: int, victims: list[int] | None = None) -> tuple[dict[str, Any], int]:
        """Decide at `t`, repeat the step as often as the policy allows; return the first step and how often.

        A run stops, like the engine's, with the first answer that ends, and before an arrival that the
        decision is not sealed against.
        """
        arrivals = self._arrive(t)
        batch = self.policy.turn(t)
        if victims:
            self._requeue(victims)
        row: dict[str, Any] = {"t": t, "arr": arrivals, **self._decision(batch)}
        steps = 1
        if batch is not None:
            steps = min(most_steps, batch.repeats, self._steps_to_end(batch))
            for ahead in range(1, steps):
                if self._clients.are_due(t + ahead):
                    if not batch.sealed:
                        steps = ahead
                        break
                    self._arrive(t + ahead)
            self._play(batch, steps)
        row |= self._outcome(batch, t + steps - 1)
        return row, steps

    def _requeue(self, victims: list[int]) -> None:
        """Let the requests just preempted stand in the queue in the order of `victims`, if it is they."""
        preempted = {sequence.request.id: sequence for sequence in self.policy.last.preempted}
        if sorted(preempted) != sorted(victims):
            return
        self.policy.last.preempted = [preempted[index] for index in victims]
        queued = [sequence for sequence in self.policy.last.preempted if sequence.waiting]
        ranks = sorted(sequence.rank for sequence in queued)
        places = [i for i, sequence in enumerate(self.policy.state.queue) if sequence in queued]
        for place, rank, sequence in zip(places, ranks, queued, strict=True):
            sequence.rank = rank
            self.policy.state.queue[place] = sequence

    # -- clients ---------------------------------------------------------------------------------------

    def _arrive(self, t: int) -> list[int]:
        arrivals = self._clients.arrivals(t)
        for index in arrivals:
            row = self._rows[index]
            prompt_tokens = sum(length for _, _, length in row["prompt"])
            self.policy.add(Request(index, index, prompt_tokens, row["out"] * self._allowance, row["prio"]))
        return arrivals

    def _outcome(self, batch: Batch | None, t: int) -> dict[str, Any]:
        """Note whose result was processed at step `t`: this step's, or with overlap the one before."""
        if batch is None:
            self.policy.process_late()
            self._ended, self._unseen = self._unseen, []
        ended = self._ended
        self._clients.see_ends(ended, t)
        pool = self.policy.state.pool
        return {"fin": ended, "free_end": pool.free, "evictable_end": pool.tree.evictable}

    # -- the model -------------------------------------------------------------------------------------

    def _play(self, batch: Batch, steps: int) -> None:
        """Make the tokens of a step, taken `steps` times, and report the answers that end."""
        for request in batch.preempted:
            self._produced[request.id] = request.known - request.prompt_tokens
        tokens = self._sampling(batch)
        for request in tokens:
            self._produced[request.id] += steps
        finished = [r for r in tokens if self._left(r) == 0]
        ended = [request.id for request in finished]
        self._ended, self._unseen = (self._unseen, ended) if self._overlap else (ended, [])
        self.policy.update(batch, steps, finished)

    def _sampling(self, batch: Batch) -> list[Request]:
        """Return the requests that get a token from a step, in batch order."""
        tokens = [chunk.request for chunk in batch.chunks if chunk.last]
        return tokens + ([s.request for s in self.policy.state.batch] if batch.decodes else [])

    def _steps_to_end(self, batch: Batch) -> int:
        left = (self._left(request) for request in self._sampling(batch))
        return min((tokens for tokens in left if tokens > 0), default=1)

    def _left(self, request: Request) -> int:
        return self._rows[request.id]["out"] - self._produced[request.id]

    # -- the log's view --------------------------------------------------------------------------------

    def _decision(self, batch: Batch | None) -> dict[str, Any]:
        policy, state = self.policy, self.policy.state
        row = {
            "retract": [s.request.id for s in policy.last.retracted],
            "preempt": [s.request.id for s in policy.last.preempted],
            "abort": [],
            "ratio": round(state.ratio.value, 5),
            "full": state.full,
            "chunk": state.chunked.request.id if state.chunked else None,
            "wait": policy.waiting,
            "free": state.pool.free,
            "evictable": state.pool.tree.evictable,
            "protected": state.pool.tree.protected,
        }
        if batch is not None:
            row["mode"] = ("mixed" if batch.decodes else "prefill") if batch.chunks else "decode"
            row["s"] = [[chunk.request.id, chunk.tokens, chunk.cached] for chunk in batch.chunks]
            if batch.decodes:
                row["s"] += [[s.request.id, 1, state.batch.stored(s) - 1] for s in state.batch]
            row["new"] = [r.id for r in batch.admitted if r.id not in self._admitted]
            self._admitted.update(row["new"])
        return row

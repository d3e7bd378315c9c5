"""Replays scheduling logs of the real vLLM schedulers (0.33.0, 0.19.0, 0.15.1) through the policy.

There is no event loop: the log's step counter is the clock. This plays the model and the clients; the policy
is told only what a scheduler may know.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simserve.core import Batch, Chunk, Request, Wait
from simserve.engines.vllm import VllmParams, VllmPolicy
from simserve.kvcache.content import Run, RunContent, Runs, canonical
from simserve.validation.golden import Comparison, GoldenLog, LogClients, Vocabulary, compare

STEP_FIELDS = ("arr", "s", "new", "res", "pre", "free", "run", "wait", "fin", "free_end")
"""Fields of a step that are compared, all exactly."""
OUTPUT_SEGMENT = 10_000
"""Segment 10000 + i of a log is the output of request i."""

VERSIONS = ("0.33", "0.19", "0.15")
"""Releases whose logs can be replayed (patch releases are taken as equal)."""
SETTINGS: dict[str, type] = {
    "policy": str, "num_blocks": int, "block_size": int, "max_model_len": int, "prefix_caching": bool,
    "async_scheduling": bool,
}  # fmt: skip
"""Settings that a log must tell; others have the engine's defaults."""
OPTIONAL: dict[str, type] = {"sliding_window": int, "stop_early": bool}
"""Settings beside the engine's own that a log may tell."""
_SET_OTHERWISE = {
    "version", "enable_prefix_caching", "scheduling_policy", "performance_mode",
    "disable_hybrid_kv_cache_manager",
}  # fmt: skip
"""Settings of the policy that a log tells by another name, or that bear on a replay's surroundings."""
VOCABULARY = Vocabulary(
    settings={*SETTINGS, *OPTIONAL, *VllmParams.model_fields.keys() - _SET_OTHERWISE},
    steps={*STEP_FIELDS, "t", "pc", "upd", "blk"},
    not_replayed={
        "speculation": "speculative decoding", "spec": "speculative decoding", "prop": "speculative decoding",
        "remote": "KV from elsewhere", "delay": "KV from elsewhere", "sync": "KV from elsewhere",
        "load": "KV from elsewhere", "come": "KV from elsewhere",
        "lora": "LoRA adapters", "grammar": "grammars",
        "encoder": "images", "images": "images", "enc": "images",
        "mamba": "linear attention", "pp": "pipeline stages",
    },
)  # fmt: skip
"""What a replay understands; `pc`, `upd` and `blk` follow from what is compared."""


def replay(path: Path) -> Comparison:
    """Replay one log, up to the first step that differs."""
    return replay_log(GoldenLog.read(path))


def replay_log(log: GoldenLog) -> Comparison:
    """Replay a log that has been read.

    A step without `s` is no call of the scheduler: the last result is handed back and nothing is decided.
    """
    run = Replay(log)
    results_only = {row["t"]: row.keys() for row in log.steps if "s" not in row}

    def step(t: int) -> dict[str, Any]:
        row = run.step(t)
        told = results_only.get(t)
        return row if told is None or row["s"] else {name: row[name] for name in told if name in row}

    return compare(log, step, STEP_FIELDS)


def params_of(version: str, config: dict[str, Any], unsupported: Sequence[str]) -> VllmParams:
    """Translate the settings of a log."""
    known = {n: config[n] for n in VllmParams.model_fields if n in config and n not in unsupported}
    known["enable_prefix_caching"] = config["prefix_caching"]
    known["scheduling_policy"] = config["policy"]
    known["version"] = ".".join(version.split(".")[:2])
    if known["version"] == "0.33":
        known.setdefault("prefix_cache_retention_interval", "all")  # the logs' engines were built without one
    return VllmParams.model_validate(known)


class Replay:
    """The clients and the model of one log, around a policy."""

    def __init__(self, log: GoldenLog) -> None:
        """Starts from the log's settings and requests."""
        config, requests = log.config, log.requests
        self._rows = requests
        self._async = config["async_scheduling"]
        self._allowance = 2 if config.get("stop_early") else 1
        self._unseen: list[int] = []
        """Async scheduling: finished, handed back after the next decision."""
        self._prompts = [canonical(row["prompt"]) for row in requests]
        self._produced = [0] * len(requests)
        self._limit = config["max_model_len"]
        self.policy = VllmPolicy(
            params_of(log.head["version"], config, log.head.get("unsupported", ())),
            kv_blocks=config["num_blocks"] - 1,
            block_size=config["block_size"],
            max_model_len=config["max_model_len"],
            content=RunContent(self._text, config["block_size"]),
            windows=(0, config["sliding_window"]) if config.get("sliding_window") else (),
        )
        self._arrived = 0
        self._admitted: set[int] = set()
        self._clients = LogClients(requests)

    def step(self, t: int) -> dict[str, Any]:
        """Take the step with counter `t` and return it in the log's format."""
        return self.run(t, 1)[0]

    def run(self, t: int, most_steps: int) -> tuple[dict[str, Any], int]:
        """Decide at `t`, repeat the step as often as the policy allows; return the first step and how often.

        A run stops, like the engine's, with the first answer that ends, and before an arrival that the
        decision is not sealed against. What finished and the blocks free at the end are the last step's.
        """
        row: dict[str, Any] = {"t": t, "arr": self._arrive(t)}
        batch = self.policy.next_batch(t)
        row |= self._decision(batch)
        steps = 1
        if isinstance(batch, Batch) and most_steps > 1:
            steps = min(most_steps, batch.repeats, self._steps_to_end())
            steps = self._arrive_within(t, steps, batch.sealed)
        finished = self._play(batch, steps)
        if self._async:
            finished, self._unseen = self._unseen, finished
        self._clients.see_ends(finished, t + steps - 1)
        return row | {"fin": finished, "free_end": self.policy.pool.free}, steps

    def _arrive_within(self, t: int, steps: int, sealed: bool) -> int:
        """Let arrivals of a sealed run queue; return its steps, cut before the first if it is not sealed."""
        for ahead in range(1, steps):
            if self._clients.are_due(t + ahead):
                if not sealed:
                    return ahead
                self._arrive(t + ahead)
        return steps

    def _arrive(self, t: int) -> list[int]:
        arrivals = self._clients.arrivals(t)
        for index in arrivals:
            row = self._rows[index]
            prompt_tokens = sum(length for _, _, length in row["prompt"])
            self.policy.add(
                Request(index, self._arrived, prompt_tokens, row["out"] * self._allowance, row["prio"])
            )
            self._arrived += 1
        return arrivals

    def _text(self, request: Request) -> Runs:
        """Return prompt and output of a request, as far as it may get."""
        output = Run(OUTPUT_SEGMENT + request.id, 0, self._rows[request.id]["out"])
        return canonical((*self._prompts[request.id], output))

    def _decision(self, batch: Batch | Wait) -> dict[str, Any]:
        policy = self.policy
        row: dict[str, Any] = {
            "s": [],
            "new": [],
            "res": [],
            "pre": [],
            "free": policy.pool.free,
            "run": policy.running,
            "wait": policy.waiting,
        }
        if isinstance(batch, Wait):
            return row
        chunks: dict[int, Chunk] = {chunk.request.id: chunk for chunk in batch.chunks}
        group = policy.groups[0]
        for request in policy.run_list.values():
            if request.id in chunks:
                row["s"].append([request.id, chunks[request.id].tokens, chunks[request.id].cached])
            elif request.decoding:
                row["s"].append([request.id, 1, group.computed(request)])
        row["pre"] = [request.id for request in batch.preempted]
        row["new"] = [r.id for r in batch.admitted if r.id not in self._admitted]
        row["res"] = [r.id for r in batch.admitted if r.id in self._admitted]
        self._admitted.update(row["new"])
        return row

    def _play(self, batch: Batch | Wait, steps: int) -> list[int]:
        """Make the tokens of `steps` equal steps and report the answers that end, in scheduling order."""
        if isinstance(batch, Wait):
            return []
        last = {chunk.request.id for chunk in batch.chunks if chunk.last}
        finished: list[Request] = []
        for request in self.policy.run_list.values():
            if request.decoding or request.id in last:
                self._produced[request.id] += steps
                if request.id not in self._unseen and self._ended(request):
                    finished.append(request)
        self.policy.update(batch, steps, finished)
        return [request.id for request in finished]

    def _steps_to_end(self) -> int:
        """Return the steps until the first decoding request ends."""
        limit, rows, produced = self._limit, self._rows, self._produced
        left = (
            min(rows[request.id]["out"], limit - request.prompt_tokens) - produced[request.id]
            for request in self.policy.run_list.values()
            if request.decoding and request.id not in self._unseen
        )
        return max(1, min(left, default=1))

    def _ended(self, request: Request) -> bool:
        produced = self._produced[request.id]
        return produced >= self._rows[request.id]["out"] or request.prompt_tokens + produced >= self._limit

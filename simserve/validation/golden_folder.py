"""Replays all scheduling logs of a folder, each through the policy of its engine and version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from simserve.errors import UserError, nearest
from simserve.validation import golden_sglang, golden_vllm
from simserve.validation.golden import Comparison, GoldenLog, Vocabulary, check_fields, find_logs, is_log


@dataclass(frozen=True)
class _Engine:
    """How the logs of an engine are replayed."""

    versions: tuple[str, ...]
    settings: dict[str, type]
    optional: dict[str, type]
    vocabulary: Vocabulary
    replay: Callable[[GoldenLog], Comparison]


ENGINES = {
    "vllm": _Engine(
        golden_vllm.VERSIONS,
        golden_vllm.SETTINGS,
        golden_vllm.OPTIONAL,
        golden_vllm.VOCABULARY,
        golden_vllm.replay_log,
    ),
    "sglang": _Engine(
        golden_sglang.VERSIONS,
        golden_sglang.SETTINGS,
        golden_sglang.OPTIONAL,
        golden_sglang.VOCABULARY,
        golden_sglang.replay_log,
    ),
}


def logs_in(place: Path) -> tuple[list[Path], list[Path]]:
    """Return the logs under `place` and the JSON-lines files there that are something else.

    Raises UserError if there is no log, or a file that may be one cannot be read.
    """
    found = find_logs(place)
    logs = [path for path in found if is_log(path)]
    if not logs:
        raise UserError(
            f"{place}: no scheduling logs found (*.jsonl.gz or *.jsonl, first line of kind config)"
        )
    return logs, [path for path in found if path not in logs]


def replay(path: Path) -> Comparison:
    """Replay one log of any engine.

    Raises UserError if it is malformed or of an unknown engine, and LogRefused if it tells of something that
    the replay does not follow.
    """
    log = GoldenLog.read(path)
    place = f"{path}, line 1"
    name, version = log.head["engine"], log.head["version"]
    if name not in ENGINES:
        raise UserError(f"{place}: engine {name!r} is none of {', '.join(ENGINES)}{nearest(name, ENGINES)}")
    engine = ENGINES[name]
    if not any(version == known or version.startswith(f"{known}.") for known in engine.versions):
        known = ", ".join(engine.versions)
        raise UserError(f"{place}: {name} {version} is not modelled; versions that are: {known}")
    told = {name for name in engine.optional if log.config.get(name) is not None}
    check_fields(place, log.config, engine.settings | {name: engine.optional[name] for name in told})
    engine.vocabulary.check(str(path), log.head, log.requests, log.steps)
    try:
        return engine.replay(log)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "config"
        raise UserError(f"{place}: {where} is {first['input']!r}: {first['msg']}") from error

"""`simserve validate golden`: what it finds, what it refuses, and what it says of a difference."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]

CONFORMANCE = Path(__file__).parents[1] / "conformance"
VLLM = CONFORMANCE / "vllm-0.33.0" / "s03_budget256_long_prompts.jsonl.gz"
SGLANG = CONFORMANCE / "sglang-0.5.23" / "s13_never_fits.jsonl.gz"
STEPS = {VLLM: 270, SGLANG: 58}
"""Steps of these logs, as the summary beside the recordings counts them."""


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def write(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Logs of both engines in folders that say nothing, one plain and one gzipped."""
    write(tmp_path / "x" / "y" / "one.jsonl", lines(VLLM))
    (tmp_path / "two.jsonl.gz").write_bytes(SGLANG.read_bytes())
    return tmp_path


def test_logs_of_both_engines_are_found_in_depth(mixed: Path, simserve: Call) -> None:
    done = simserve("validate", "golden", mixed, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "files": 2,
        "steps": 270 + 58,
        "steps_equal": 270 + 58,
        "by_file": [
            {"file": "two.jsonl.gz", "steps": 58, "steps_equal": 58, "first_difference": None},
            {"file": "x/y/one.jsonl", "steps": 270, "steps_equal": 270, "first_difference": None},
        ],
    }


def test_steps_by_folder(mixed: Path, simserve: Call) -> None:
    done = simserve("validate", "golden", mixed)
    assert done.exit_code == 0
    rows = [line.split() for line in done.stdout.splitlines()[1:4]]
    assert rows == [
        [".", "1", "58", "58", "1"],
        ["x/y", "1", "270", "270", "1"],
        ["all", "2", "328", "328", "2"],
    ]


def test_a_difference_ends_with_3_and_shows_both_sides(tmp_path: Path, simserve: Call) -> None:
    rows = lines(VLLM)
    step = next(row for row in rows if row["kind"] == "step" and row["t"] == 100)
    before = sum(row["kind"] == "step" and row["t"] < 100 for row in rows)
    theirs, step["free"] = step["free"] + 7, step["free"] + 7
    write(tmp_path / "log.jsonl", rows)
    told = simserve("validate", "golden", tmp_path, "--json")
    assert told.exit_code == 3
    (entry,) = json.loads(told.stdout)["by_file"]
    assert entry["steps_equal"] == before
    assert entry["first_difference"] == {
        "step": 100,
        "ours": {"free": theirs - 7},
        "theirs": {"free": theirs},
    }
    shown = simserve("validate", "golden", tmp_path)
    assert shown.exit_code == 3
    text = shown.stdout.splitlines()
    at = next(index for index, line in enumerate(text) if line.startswith("differs at step 100"))
    assert text[at + 1].split() == ["free", "here:", str(theirs - 7)]
    assert text[at + 2].split() == ["log:", str(theirs)]
    assert max(map(len, text)) <= 80


def test_a_long_difference_fits_the_width(tmp_path: Path, simserve: Call) -> None:
    rows = lines(VLLM)
    rows[0]["config"]["max_num_batched_tokens"] += 1
    write(tmp_path / ("long_name_" * 12 + ".jsonl"), rows)
    shown = simserve("validate", "golden", tmp_path)
    assert shown.exit_code == 3
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "s[" in shown.stdout


def change(kind: str, /, **fields: Any) -> Callable[[list[Any]], None]:
    """Change the last line of a kind; None removes a field."""

    def apply(rows: list[Any]) -> None:
        row = [row for row in rows if row["kind"] == kind][-1]
        for name, value in fields.items():
            if value is None:
                del row[name]
            else:
                row[name] = value

    return apply


def setting(**fields: Any) -> Callable[[list[Any]], None]:
    return lambda rows: rows[0]["config"].update(fields)


MALFORMED = {
    # name: (change, line of the message, words of the message)
    "no-engine": (change("config", engine=None), 1, ["engine is missing"]),
    "other-engine": (change("config", engine="vlm"), 1, ["'vlm'", "vllm, sglang", "did you mean 'vllm'"]),
    "other-version": (change("config", version="0.20.0"), 1, ["0.20.0", "0.33, 0.19, 0.15"]),
    "no-blocks": (setting(num_blocks="many"), 1, ["num_blocks", "'many'", "int"]),
    "window": (setting(sliding_window="wide"), 1, ["sliding_window", "'wide'"]),
    "policy": (setting(policy="lifo"), 1, ["scheduling_policy", "'lifo'", "fcfs"]),
    "no-output": (change("request", out=0), 41, ["out is 0"]),
    "other-id": (change("request", id=7), 41, ["id is 7", "expected 39"]),
    "no-arrival": (change("request", at=None), 41, ["after is missing"]),
    "prompt": (change("request", prompt=[[1, 2]]), 41, ["[1, 2]", "[segment, start, length]"]),
    "no-counter": (change("step", t=None), 311, ["t is missing"]),
    "kind": (change("step", kind="stop"), 311, ["'stop'", "config, request, step"]),
    "cut": (lambda rows: rows.pop(), 310, ["269 step lines of 270"]),
    "two-heads": (lambda rows: rows.insert(5, rows[0]), 6, ["one config line"]),
    "a-list": (lambda rows: rows.insert(9, [1]), 10, ["not a JSON object"]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_log(tmp_path: Path, simserve: Call, name: str) -> None:
    apply, line, words = MALFORMED[name]
    rows = lines(VLLM)
    apply(rows)
    path = write(tmp_path / "log.jsonl", rows)
    refused(simserve("validate", "golden", tmp_path), path, line, words)


@pytest.mark.parametrize(
    ("file", "content", "line", "word"),
    [
        ("log.jsonl", b'{"kind": "config"\n', 1, "not valid JSON"),
        ("log.jsonl", b"", 1, "empty"),
        ("log.jsonl.gz", VLLM.read_bytes()[:3000], None, "broken gzip"),
        ("log.jsonl.gz", b"plain text", 1, "broken gzip"),
        ("log.jsonl", b"\xff\xfe\x00", 1, "UTF-8"),
    ],
)
def test_a_broken_file(
    tmp_path: Path, simserve: Call, file: str, content: bytes, line: int | None, word: str
) -> None:
    path = tmp_path / file
    path.write_bytes(content)
    refused(simserve("validate", "golden", tmp_path), path, line, [word])


def refused(done: Any, path: Path, line: int | None, words: list[str]) -> None:
    assert done.exit_code == 2, done.output
    assert len(done.stderr.splitlines()) == 1
    assert f"{path}, line {'' if line is None else line}" in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_nothing_found(tmp_path: Path, simserve: Call) -> None:
    done = simserve("validate", "golden", tmp_path)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert str(tmp_path) in done.stderr
    missing = simserve("validate", "golden", tmp_path / "nowhere")
    assert (missing.exit_code, len(missing.stderr.splitlines())) == (2, 1)
    assert "nowhere" in missing.stderr


def test_files_of_another_kind_are_named(mixed: Path, simserve: Call) -> None:
    write(mixed / "trace.jsonl", [{"timestamp": 0, "input_length": 5, "output_length": 1}])
    done = simserve("validate", "golden", mixed)
    assert done.exit_code == 0
    assert "trace.jsonl" in done.stderr


# -- logs that tell of what a replay does not follow ---------------------------------------------------


def everywhere(kind: str, **fields: Any) -> Callable[[list[Any]], None]:
    def apply(rows: list[Any]) -> None:
        for row in rows:
            if row["kind"] == kind:
                row.update(fields)

    return apply


REFUSED = {
    # name: (log, change, keys, words)
    "unknown": (VLLM, setting(colour="red", max_num_seq=3), ["colour", "max_num_seq"], ["'max_num_seqs'"]),
    "unknown-off": (VLLM, setting(colour=None), ["colour"], ["not understood"]),
    "drafts": (VLLM, setting(speculation={"method": "eagle"}), ["speculation"], ["speculative decoding"]),
    "both": (VLLM, setting(lora={"max_loras": 2}, size=1), ["lora", "size"], ["LoRA", "not understood"]),
    "stages": (VLLM, setting(pp=2), ["pp"], ["pipeline"]),
    "another-name": (VLLM, setting(enable_prefix_caching=False), ["enable_prefix_caching"], []),
    "adapter": (VLLM, change("request", lora=1), ["lora"], ["a request", "LoRA"]),
    "loads": (VLLM, change("request", remote=16, delay=3), ["delay", "remote"], ["a request"]),
    "request": (VLLM, change("request", weight=2), ["weight"], ["a request", "not understood"]),
    "encoded": (VLLM, change("step", enc=[[1, [0]]]), ["enc"], ["a step", "images"]),
    "step": (VLLM, everywhere("step", swapped=[]), ["swapped"], ["a step", "not understood"]),
    "sglang": (SGLANG, setting(tp_size=1), ["tp_size"], ["not understood"]),
    "sglang-step": (SGLANG, change("step", lora=1), ["lora"], ["a step", "not understood"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_log_that_a_replay_does_not_follow_is_refused(tmp_path: Path, simserve: Call, name: str) -> None:
    """By itself with an error; in a folder it is listed, and the others are replayed."""
    source, apply, keys, words = REFUSED[name]
    rows = lines(source)
    apply(rows)
    path = write(tmp_path / "log.jsonl", rows)
    alone = simserve("validate", "golden", path)
    assert (alone.exit_code, len(alone.stderr.splitlines())) == (2, 1)
    assert all(word in alone.stderr for word in [str(path), *keys, *words]), alone.stderr
    (tmp_path / "sound.jsonl.gz").write_bytes(VLLM.read_bytes())
    together = simserve("validate", "golden", tmp_path, "--json")
    assert together.exit_code == 2
    facts = json.loads(together.stdout)
    assert (facts["files"], facts["steps_equal"]) == (1, STEPS[VLLM])
    assert [(log["file"], sorted(log["keys"])) for log in facts["refused"]] == [("log.jsonl", keys)]
    shown = simserve("validate", "golden", tmp_path)
    assert shown.exit_code == 2
    assert "1 log was refused" in shown.stdout
    assert "  log.jsonl" in shown.stdout.splitlines()
    assert max(map(len, shown.stdout.splitlines())) <= 80


@pytest.mark.parametrize("off", [{"speculation": None}, {"grammar": False}, {"pp": 1}, {"encoder": None}])
def test_a_feature_that_is_off_is_no_reason(tmp_path: Path, simserve: Call, off: dict[str, Any]) -> None:
    rows = lines(VLLM)
    rows[0]["config"].update(off)
    assert simserve("validate", "golden", write(tmp_path / "log.jsonl", rows)).exit_code == 0


def test_a_difference_weighs_more_than_a_refusal(tmp_path: Path, simserve: Call) -> None:
    rows = lines(VLLM)
    rows[0]["config"]["max_num_batched_tokens"] += 1
    write(tmp_path / "differs.jsonl", rows)
    rows[0]["config"]["lora"] = {"max_loras": 1}
    write(tmp_path / "refused.jsonl", rows)
    done = simserve("validate", "golden", tmp_path)
    assert done.exit_code == 3
    assert "refused.jsonl" in done.stdout


def test_a_folder_of_which_all_is_refused(tmp_path: Path, simserve: Call) -> None:
    rows = lines(VLLM)
    rows[0]["config"]["pp"] = 4
    write(tmp_path / "log.jsonl", rows)
    done = simserve("validate", "golden", tmp_path)
    assert done.exit_code == 2
    assert "equal" not in done.stdout.replace("files equal", "").replace("  equal", "")

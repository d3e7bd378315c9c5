"""The policy against step-by-step recordings of the real schedulers of vLLM 0.33.0, 0.19.0 and 0.15.1."""

import pytest

from simserve.engines.decode_batch import MemberDecodeGroup
from simserve.errors import InvariantError
from simserve.kvcache import HybridCache, PrefixCache
from simserve.validation.golden import GoldenLog
from simserve.validation.golden_vllm import STEP_FIELDS, Replay, compare, replay
from tests.places import REPOSITORY, SHARED

COMMITTED = sorted((REPOSITORY / "tests" / "conformance").glob("vllm-*/*.jsonl.gz"))
FIRST_SET, SECOND_SET = "validation/engine_golden", "validation/engine_golden_2"
ALL = sorted((SHARED / FIRST_SET).glob("vllm-*/*.jsonl.gz"))
QUOTED = sorted(
    path
    for kind in ("h03", "q01", "q02", "q03", "q04")
    for path in (SHARED / SECOND_SET).glob(f"vllm-*/{kind}_*.gz")
)
"""Prompts that quote an answer which is still being made, or turns that overlap."""
STEPS_IN_ALL_LOGS = 14_232 + 14_225 + 14_202
"""Steps of the 45 recorded workloads in each version, as their own summary counts them."""


def named(path):
    return f"{path.parent.name}/{path.name.split('_')[0]}"


def committed(name, version="0.33.0"):
    (path,) = [path for path in COMMITTED if named(path) == f"vllm-{version}/{name}"]
    return path


def check(path):
    comparison = replay(path)
    assert comparison.equal, str(comparison.first_difference)
    return comparison.steps_equal


def faulty(name, plant):
    """Replay the log of 0.33.0 through a policy that `plant` has changed."""
    log = GoldenLog.read(committed(name))
    run = Replay(log)
    plant(run.policy)
    return compare(log, run.step, STEP_FIELDS)


@pytest.mark.parametrize("path", COMMITTED, ids=named)
def test_every_step_of_a_committed_log_is_equal(path):
    assert check(path) > 0


@pytest.mark.reference(FIRST_SET)
def test_every_step_of_every_log_is_equal():
    assert sum(map(check, ALL)) == STEPS_IN_ALL_LOGS


@pytest.mark.reference(SECOND_SET)
def test_a_block_that_decoding_fills_is_found_when_its_last_token_is_scheduled_and_known():
    """Without asynchronous scheduling in the same call (q01 to q03, h03), with it in the next one (q04)."""
    assert sum(map(check, QUOTED)) == 3 * (326 + 217 + 225 + 268 + 243)


@pytest.mark.reference(SECOND_SET)
def test_a_block_that_enters_the_cache_a_step_late_is_seen(monkeypatch):
    full = MemberDecodeGroup.full_blocks
    monkeypatch.setattr(
        MemberDecodeGroup, "full_blocks", lambda self, request, ahead=0: full(self, request, ahead - 1)
    )
    assert not all(replay(path).equal for path in QUOTED)


def test_all_fields_of_a_logged_step_are_compared():
    logged = set().union(*(step for path in COMMITTED for step in GoldenLog.read(path).steps))
    counted_elsewhere = {"pc", "upd"}
    """Cache statistics follow from `s` and the hits in it; `upd` numbers the step that is handed back."""
    assert logged - {"kind", "t"} - counted_elsewhere == set(STEP_FIELDS)


@pytest.mark.parametrize("path", COMMITTED + QUOTED, ids=named)
def test_repeated_steps_equal_single_steps(path):
    """A run of n steps shows what its first step decides and its last step leaves; so must single steps."""
    log = GoldenLog.read(path)
    single, repeated = Replay(log), Replay(log)
    rows = [single.step(step["t"]) for step in log.steps]
    index = 0
    while index < len(rows):
        row, steps = repeated.run(rows[index]["t"], most_steps=1 << 60)
        end = rows[index + steps - 1]
        assert end["t"] == row["t"] + steps - 1
        assert row == rows[index] | {name: end[name] for name in ("fin", "free_end")}
        index += steps


@pytest.mark.parametrize("name", ["s03", "s06", "s16", "s31"])
def test_steps_are_repeated(name):
    """Otherwise the test above would compare nothing."""
    log = GoldenLog.read(committed(name))
    run = Replay(log)
    index = decisions = 0
    while index < len(log.steps):
        index += run.run(log.steps[index]["t"], most_steps=1 << 60)[1]
        decisions += 1
    assert decisions < 0.9 * len(log.steps)


@pytest.mark.parametrize("path", [p for p in COMMITTED if "never_fits" not in p.name], ids=named)
def test_all_blocks_come_back(path):
    log = GoldenLog.read(path)
    assert log.head["end"] == "drained"
    run = Replay(log)
    for step in log.steps:
        run.step(step["t"])
    assert (run.policy.pool.used, run.policy.running, run.policy.waiting) == (0, 0, 0)


# -- planted faults: each must be seen -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["s12", "s16"])
def test_first_block_evicted_first_is_seen(monkeypatch, name):
    original = PrefixCache._append
    monkeypatch.setattr(PrefixCache, "_append", lambda self, held, stamp: original(self, held[::-1], stamp))
    assert not replay(committed(name)).equal


def test_first_block_evicted_first_is_seen_with_windows(monkeypatch):
    original = HybridCache._give
    monkeypatch.setattr(HybridCache, "_give", lambda self, blocks: original(self, blocks[::-1]))
    assert not replay(committed("s31")).equal


@pytest.mark.parametrize("name", ["s12", "s31"])
def test_the_free_list_of_another_version_is_seen(name):
    def as_in_older_versions(policy):
        policy.pool._blanks_first = False

    assert not faulty(name, as_in_older_versions).equal


@pytest.mark.parametrize("tokens", [-1, 1])
def test_a_budget_off_by_one_is_seen(tokens):
    def shift(policy):
        policy.budget += tokens

    log = GoldenLog.read(committed("s03"))
    budget = log.config["max_num_batched_tokens"]
    first_filled = next(i for i, step in enumerate(log.steps) if sum(s[1] for s in step["s"]) == budget)
    assert faulty("s03", shift).steps_equal == first_filled


@pytest.mark.parametrize("name", ["s08", "s20", "s31"])
def test_admission_without_the_whole_prompt_gate_is_seen(name):
    def open_gate(policy):
        policy._gate = False

    assert not faulty(name, open_gate).equal


def test_a_gate_that_counts_the_whole_window_group_is_seen():
    def unbounded(policy):
        policy.pool._window_limit = None

    assert not faulty("s31", unbounded).equal


@pytest.mark.parametrize("tokens", [-16, 16])
def test_another_window_is_seen(tokens):
    def widen(policy):
        policy.pool.window += tokens

    assert not faulty("s31", widen).equal


def test_a_window_that_keeps_its_blocks_is_seen(monkeypatch):
    monkeypatch.setattr(HybridCache, "slide", lambda self, request, computed: None)
    assert not replay(committed("s31")).equal


def test_a_law_that_breaks_in_the_replay_is_a_difference():
    log = GoldenLog.read(committed("s03"))
    run = Replay(log)

    def breaks_in_the_third(t):
        if t == log.steps[2]["t"]:
            raise InvariantError("took 3 KV blocks of 2 free")
        return run.step(t)

    comparison = compare(log, breaks_in_the_third, STEP_FIELDS)
    assert comparison.steps_equal == 2
    assert comparison.first_difference is not None
    assert comparison.first_difference.ours == {"broken": "took 3 KV blocks of 2 free"}

"""The policy against step-by-step recordings of the real SGLang 0.5.23 scheduler."""

import pytest
from golden_logs import ALL, COMMITTED, SETS, WINDOWS, committed

from simserve.engines.sglang import order
from simserve.engines.sglang.options import RETRACT_DECODE_STEPS
from simserve.engines.sglang.order import QueueOrder
from simserve.engines.sglang.prefill import Admission
from simserve.engines.sglang.state import State
from simserve.kvcache.radix import EVICTION_RULES, EvictionRule
from simserve.kvcache.radix_pool import RadixPool
from simserve.validation.golden import GoldenLog
from simserve.validation.golden_sglang import STEP_FIELDS, Replay, replay

STEPS_IN_ALL_LOGS = 7097 + 9353 - 227 - 524
"""Steps of the 41 recorded workloads, as their own summaries count them, less two with window pools."""
MODELLED = [path for path in ALL if not path.name.startswith(WINDOWS)]


def check(path):
    comparison = replay(path)
    assert comparison.equal, str(comparison.first_difference)
    return comparison.steps_equal


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_every_step_of_a_committed_log_is_equal(path):
    assert check(path) > 0


@pytest.mark.reference(*SETS)
def test_every_step_of_every_log_is_equal():
    assert sum(map(check, MODELLED)) == STEPS_IN_ALL_LOGS


def test_all_fields_of_a_logged_step_are_compared():
    logged = set().union(*(GoldenLog.read(committed(name)).steps[0] for name in ("s06", "s13")))
    assert logged - {"kind", "t"} == set(STEP_FIELDS)


@pytest.mark.parametrize("path", MODELLED or COMMITTED, ids=lambda path: path.name)
def test_repeated_steps_equal_single_steps(path):
    """A run of n steps shows what its first step decides and its last step leaves; so must single steps."""
    log = GoldenLog.read(path)
    single, repeated = (Replay(log.config, log.requests) for _ in range(2))
    rows = [single.step(step["t"]) for step in log.steps]
    index = runs = 0
    while index < len(rows):
        row, steps = repeated.run(rows[index]["t"], most_steps=1 << 60)
        end = rows[index + steps - 1]
        assert end["t"] == row["t"] + steps - 1
        assert row == rows[index] | {name: end[name] for name in ("fin", "free_end", "evictable_end")}
        index += steps
        runs += 1
    assert runs < len(rows)


def test_memory_is_conserved_at_every_step():
    log = GoldenLog.read(committed("s16"))
    run = Replay(log.config, log.requests)
    state = run.policy.state
    for step in log.steps:
        run.step(step["t"])
        holders = [*state.batch, *run.policy.last.prefill]
        own = sum(
            (state.batch.stored(s) if s in state.batch else s.kv.stored) - s.kv.shared
            for s in holders
            if not s.done
        )
        assert state.pool.free + state.pool.tree.evictable + state.pool.tree.protected + own == 4000
    assert state.pool.tree.protected == 0
    assert (run.policy.running, run.policy.waiting) == (0, 0)


# -- planted faults: each must be seen -----------------------------------------------------------------


def test_newest_evicted_first_is_seen(monkeypatch):
    newest = EvictionRule(lambda node: (-node.accessed,), grows=False)
    monkeypatch.setitem(EVICTION_RULES, "lru", newest)
    assert not replay(committed("s07")).equal


@pytest.mark.parametrize("tokens", [-1, 1])
def test_a_chunk_budget_off_by_one_is_seen(monkeypatch, tokens):
    original = Admission.__init__

    def shifted(self, state, mixed):
        original(self, state, mixed)
        self._chunk_left += tokens

    monkeypatch.setattr(Admission, "__init__", shifted)
    log = GoldenLog.read(committed("s03"))
    first_cut = next(index for index, step in enumerate(log.steps) if step["chunk"] is not None)
    assert replay(committed("s03")).steps_equal == first_cut


def test_no_deferral_behind_a_similar_prompt_is_seen(monkeypatch):
    original = QueueOrder._matches
    monkeypatch.setattr(QueueOrder, "_matches", lambda self, waiting: (original(self, waiting)[0], set()))
    assert not replay(committed("s08")).equal


@pytest.mark.parametrize("interval", [31, 33, 40, 1 << 60])
def test_another_interval_of_refreshes_is_seen(monkeypatch, interval):
    monkeypatch.setattr(order, "REFRESH_INTERVAL", interval)
    assert not replay(committed("s20")).equal


@pytest.mark.reference(*SETS)
@pytest.mark.parametrize("name", ["h07", "r03", "u02"])
def test_a_node_that_holds_prompt_and_output_together_is_seen(monkeypatch, name):
    hand_over = RadixPool._hand_over
    monkeypatch.setattr(
        RadixPool,
        "_hand_over",
        lambda self, holding, runs, tokens, _, priority: hand_over(
            self, holding, runs, tokens, tokens, priority
        ),
    )
    (path,) = [path for path in ALL if path.name.startswith(name)]
    assert not replay(path).equal


def test_a_retraction_without_room_for_twenty_steps_is_seen(monkeypatch):
    original = State.send_back
    monkeypatch.setattr(State, "send_back", lambda self, victim, remaining: original(self, victim, 0))
    assert RETRACT_DECODE_STEPS == 20
    assert not replay(committed("s16")).equal


def test_a_result_processed_at_once_in_overlap_mode_is_seen():
    log = GoldenLog.read(committed("s18"))
    run = Replay({**log.config, "overlap": False}, log.requests)
    assert any(run.step(step["t"])["free_end"] != step["free_end"] for step in log.steps)

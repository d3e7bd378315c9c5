"""llm-d's scorers one by one, their weighted sum, drawn ties."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from simserve.errors import ScenarioError
from simserve.router.base import PromptBlocks
from simserve.router.llm_d import LlmDParams, LlmDRouter
from simserve.router.llm_d_scorers import ApproximateIndex, Memory, Situation, scorers
from tests.router.states import Given, Seen, idle, request


def scores(name: str, targets: list[Seen], memory: Memory | None = None, number: int = 0) -> list[float]:
    memory = memory or Memory(None)
    memory.in_flight.expect(len(targets))
    return scorers(memory, queue_threshold=128)[name](Situation(request(number), targets, 0))


def waiting(*counts: int) -> list[Seen]:
    return [Seen(waiting_requests=count) for count in counts]


def test_load_aware_falls_from_a_half_to_nothing_at_the_threshold() -> None:
    assert scores("load-aware-scorer", waiting(0, 32, 64, 128, 500)) == [0.5, 0.375, 0.25, 0.0, 0.0]


def test_queue_and_running_are_scaled_between_fewest_and_most() -> None:
    assert scores("queue-scorer", waiting(2, 4, 10)) == [1.0, 0.75, 0.0]
    assert scores("queue-scorer", waiting(7, 7)) == [1.0, 1.0]
    running = [Seen(running_requests=count) for count in (10, 0, 5)]
    assert scores("running-requests-size-scorer", running) == [0.0, 1.0, 0.5]


def test_prefix_is_the_share_of_the_prompts_blocks() -> None:
    """A prompt of 100 tokens has 6 full blocks of 16."""
    targets = [Seen(cached=tokens) for tokens in (0, 48, 96)]
    assert scores("precise-prefix-cache-scorer", targets) == [0.0, 0.5, 1.0]
    assert scores("precise-prefix-cache-scorer", idle(2)) == [0.0, 0.0]


def test_prefix_was_scaled_between_shortest_and_longest_in_2025() -> None:
    targets = [Seen(cached=tokens) for tokens in (0, 64, 16)]
    older = Memory(None, older=True)
    assert scores("precise-prefix-cache-scorer", targets, older) == [0.0, 1.0, 0.25]
    assert scores("precise-prefix-cache-scorer", idle(2), older) == [1.0, 1.0]


def index(keys: dict[int, list[int]], block_size: int = 32, lru_capacity: int | None = None) -> Memory:
    return Memory(None, ApproximateIndex(PromptBlocks(Given(keys), block_size), lru_capacity))


def test_the_approximate_prefix_is_what_was_sent_in_blocks_of_64_tokens() -> None:
    """Five blocks of 32 tokens are two of 64 and a rest; the second prompt shares three of them, so one."""
    memory = index({0: [1, 2, 3, 4, 5], 1: [1, 2, 3, 8, 9], 2: [1, 7]})
    place = lambda number, tokens: Situation(request(number, tokens), idle(2), 0)  # noqa: E731
    assert memory.approximate.scores(place(0, 160)) == [0.0, 0.0]
    memory.approximate.sent(place(0, 160), 1)
    assert memory.approximate.scores(place(0, 160)) == [0.0, 1.0]
    assert memory.approximate.scores(place(1, 160)) == [0.0, 0.5]
    assert memory.approximate.scores(place(2, 64)) == [0.0, 0.0], "it differs within its first 64 tokens"


def test_the_approximate_index_forgets_the_least_recently_used_ends() -> None:
    keys = {0: [1, 2, 3], 1: [4, 5]}
    place = lambda number, kv: Situation(  # noqa: E731
        request(number, 64 * len(keys[number])), [Seen(kv_blocks=kv)], 0
    )
    tuned, fixed = index(keys, 64), index(keys, 64, lru_capacity=4)
    for memory in (tuned, fixed):
        memory.approximate.sent(place(0, 3), 0)
        memory.approximate.sent(place(1, 3), 0)
    assert tuned.approximate.scores(place(0, 3)) == [1 / 3], "3 KV blocks: 4, 5 and the first of the other"
    assert fixed.approximate.scores(place(0, 3)) == [2 / 3], "4 blocks as set"
    assert tuned.approximate.scores(place(1, 3)) == [1.0]


def test_the_default_follows_what_was_sent_not_what_engines_hold() -> None:
    keys = {0: [1, 2, 3, 4], 1: [1, 2, 3, 4]}
    router = LlmDRouter(LlmDParams(), seed=0, content=Given(keys), block_size=64)
    holds = [Seen(cached=256), Seen()]
    first = router.choose(request(0, 256), [Seen(kv=0.5), Seen()], 0)
    assert first == 1, "nothing was sent yet: KV use decides"
    assert router.choose(request(1, 256), holds, 0) == 1


def test_kv_use_counts_against() -> None:
    assert scores("kv-cache-utilization-scorer", [Seen(kv=0.25), Seen(kv=1.0)]) == [0.75, 0.0]


def test_active_requests_are_those_sent_and_not_ended() -> None:
    memory = Memory(None)
    memory.in_flight.expect(3)
    for number, target in enumerate((0, 0, 0, 0, 1)):
        memory.in_flight.sent(request(number), target)
    assert scores("active-request-scorer", idle(3), memory) == [0.0, 0.75, 1.0]
    memory.in_flight.ended(request(0))
    memory.in_flight.ended(request(1))
    assert scores("active-request-scorer", idle(3), memory) == [0.0, 0.5, 1.0]


def test_a_session_scores_where_it_was_last() -> None:
    memory = Memory([7, 7, 8])
    memory.in_flight.expect(2)
    assert scores("session-affinity-scorer", idle(2), memory) == [0.0, 0.0]
    memory.note(Situation(request(0), idle(2), 0), 1, cold=False)
    assert scores("session-affinity-scorer", idle(2), memory, number=1) == [0.0, 1.0]
    assert scores("session-affinity-scorer", idle(2), memory, number=2) == [0.0, 0.0]


def test_requests_without_any_hit_go_to_who_got_one_longest_ago() -> None:
    memory = Memory(None)
    memory.in_flight.expect(3)
    assert scores("no-hit-lru-scorer", idle(3), memory) == [1.0, 0.5, 0.0], "nobody yet: in order"
    memory.note(Situation(request(0), idle(3), 0), 0, cold=True)
    memory.note(Situation(request(1), idle(3), 0), 2, cold=True)
    assert scores("no-hit-lru-scorer", idle(3), memory) == [0.5, 1.0, 0.0]
    memory.note(Situation(request(2), idle(3), 0), 0, cold=True)
    assert scores("no-hit-lru-scorer", idle(3), memory) == [0.0, 1.0, 0.5]
    warm = [Seen(), Seen(cached=16), Seen()]
    memory.note(Situation(request(3), warm, 0), 1, cold=True)
    assert scores("no-hit-lru-scorer", warm, memory) == [0.5, 0.5, 0.5]
    assert scores("no-hit-lru-scorer", idle(3), memory) == [0.0, 1.0, 0.5], (
        "a request with a hit leaves no mark"
    )


def test_the_highest_weighted_sum_wins() -> None:
    """Prefix 3 * (0, 1), queue 2 * (1, 0), KV 2 * (1 - use)."""
    router = LlmDRouter(LlmDParams(version="2025"), seed=0)
    full = lambda kv: [Seen(kv=0.0), Seen(cached=160, waiting_requests=9, kv=kv)]  # noqa: E731
    assert router.choose(request(0), full(0.4), 0) == 1, "3 + 1.2 against 2 + 2"
    assert router.choose(request(1), full(0.6), 0) == 0, "3 + 0.8 against 2 + 2"


def test_ties_are_drawn_and_the_seed_repeats_them() -> None:
    def draws(seed: int) -> list[int]:
        router = LlmDRouter(LlmDParams(), seed=seed)
        return [router.choose(request(number), idle(3), 0) for number in range(30)]

    assert draws(1) == draws(1) != draws(2)
    assert set(draws(1)) == {0, 1, 2}


def test_unknown_scorers_are_refused() -> None:
    with pytest.raises(ValidationError, match="queue-scorer"):
        LlmDParams.model_validate({"scorers": {"queue-score": 1.0}}, strict=True)
    with pytest.raises(ValidationError):
        LlmDParams.model_validate({"scorers": {}}, strict=True)


def test_session_affinity_without_sessions_is_said() -> None:
    params = LlmDParams(scorers={"session-affinity-scorer": 1})
    assert LlmDRouter(params, seed=0).assumptions
    assert not LlmDRouter(params, seed=0, sessions=[0]).assumptions


def test_context_length_prefers_narrow_ranges_with_headroom() -> None:
    """Inside 0.3 + 0.7 (0.7 / (1 + w / 10,000) + 0.3 headroom / w), outside 0.3 / (1 + d / 1,000)."""
    ranges = [[0, 2000], [0, 10_000], [1000, 1000], None, [3000, 9000], [0, 500]]
    found = scorers(Memory(None), 128, ranges)["context-length-aware"](
        Situation(request(0, prompt=1000), idle(6), 0)
    )
    narrow = 0.3 + 0.7 * (0.7 / 1.2 + 0.3 * 0.5)
    wide = 0.3 + 0.7 * (0.7 / 2 + 0.3 * 0.9)
    assert found == pytest.approx([narrow, wide, 1.0, 0.5, 0.1, 0.2])


def test_context_length_routes_and_filters() -> None:
    ranges = [[0, 2048], [0, 131_072]]
    params = LlmDParams(scorers={"context-length-aware": 1}, context_length_ranges=ranges)
    router = LlmDRouter(params, seed=0)
    assert [router.choose(request(0, prompt=tokens), idle(2), 0) for tokens in (100, 2000, 5000)] == [0, 0, 1]
    loaded = [Seen(waiting_requests=9), Seen()]
    weighted = {"scorers": {"queue-scorer": 1}, "context_length_ranges": [[0, 2048], [2049, 131_072]]}
    filtering = LlmDRouter(LlmDParams(**weighted, context_length_filtering=True), seed=0)
    assert filtering.choose(request(0, prompt=100), loaded, 0) == 0, "the other one is not asked"
    with pytest.raises(
        ScenarioError, match="no replica's context_length_ranges hold the 200,000 prompt tokens"
    ):
        filtering.choose(request(0, prompt=200_000), loaded, 0)
    with pytest.raises(ScenarioError, match="2 entries, allowed: one for each of the 3 replicas"):
        filtering.choose(request(0), idle(3), 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"scorers": {"context-length-aware": 1.0}},
        {"context_length_ranges": [[0, 5]]},
        {"scorers": {"context-length-aware": 1.0}, "context_length_ranges": [[5, 0]]},
        {"scorers": {"context-length-aware": 1.0}, "context_length_ranges": [[0, 5, 7]]},
    ],
)
def test_ranges_that_cannot_be_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="context_length_ranges"):
        LlmDParams.model_validate(settings, strict=True)

"""Static batching, decision by decision."""

from __future__ import annotations

from simserve.core import Batch, Request, Wait
from simserve.engines.static import StaticParams, StaticPolicy


def policy(**settings) -> StaticPolicy:
    params = StaticParams(**{"batch_size": 2, "timeout_ms": 1.0, **settings})
    return StaticPolicy(params, kv_blocks=10, block_size=4, max_model_len=40, lanes=2)


def request(number: int, prompt: int, max_tokens: int = 4, arrival_ns: int = 0) -> Request:
    return Request(number, arrival_ns, prompt, max_tokens)


def test_waits_for_company_until_the_oldest_has_waited_long_enough() -> None:
    static = policy()
    static.add(request(0, 5, arrival_ns=300))
    assert static.next_batch(300) == Wait(1_000_300)
    batch = static.next_batch(1_000_300)
    assert isinstance(batch, Batch)
    assert [(chunk.request.id, chunk.tokens) for chunk in batch.chunks] == [(0, 5)]


def test_pads_to_the_longest_prompt_and_decodes_until_the_longest_answer_ends() -> None:
    static = policy()
    short, long = request(0, 3), request(1, 7)
    static.add(short)
    static.add(long)
    batch = static.next_batch(0)
    assert isinstance(batch, Batch)
    assert [(chunk.tokens, chunk.cached, chunk.last) for chunk in batch.chunks] == [(7, 0, True)] * 2
    assert static.kv_used_blocks == 2 * 3  # two sequences of 7 + 4 tokens, three blocks of four each
    static.update(batch, 1, [])
    decode = static.next_batch(5)
    assert isinstance(decode, Batch)
    assert (decode.decodes, decode.decode_context) == (2, 2 * 8)
    static.update(decode, 2, [short])
    decode = static.next_batch(9)
    assert isinstance(decode, Batch)
    assert (decode.decodes, decode.decode_context) == (2, 2 * 10)  # the ended one is padding
    static.update(decode, 1, [long])
    assert (static.running, static.kv_used_blocks) == (0, 0)
    assert static.next_batch(10) == Wait()


def test_a_batch_that_does_not_fit_is_cut_in_order_of_arrival() -> None:
    static = policy(batch_size=3)
    for number, prompt in enumerate([20, 20, 1]):
        static.add(request(number, prompt))
    batch = static.next_batch(0)
    assert isinstance(batch, Batch)
    assert [chunk.request.id for chunk in batch.chunks] == [0]  # two of 24 tokens need 12 of 10 blocks
    assert static.waiting == 2


def test_a_batch_stays_in_the_lane_that_it_was_formed_for() -> None:
    """Its sequences decode where their prompts were computed; the other lane has nothing to do meanwhile."""
    static = policy()
    static.add(request(0, 5))
    static.add(request(1, 5))
    batch = static.next_batch(0, lane=1)
    assert isinstance(batch, Batch)
    assert static.next_batch(0, lane=0) == Wait()
    static.update(batch, 1, [], lane=1)
    assert static.next_batch(9, lane=0) == Wait()
    assert isinstance(static.next_batch(9, lane=1), Batch)

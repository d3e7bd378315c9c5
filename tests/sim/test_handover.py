"""The hand-over from prefill to decode, on worlds that can be computed by hand.

Steps last 1000 ns on both sides whatever they compute; a prompt token weighs 12 bytes, in 4 layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.core import Result, SplitColumns, Status
from simserve.sim import LocalRule, SwitchRule
from tests.laws.split_world import LAYERS, TOKEN_BYTES, SplitWorld
from tests.laws.world import make_trace

STEP = 1000
HANDSHAKE = 500
GB = 1_000_000_000

PLAIN = SplitWorld(latency=(STEP, 0, 0, 0), handshake_ns=HANDSHAKE, bytes_per_s=GB, extra_blocks=100)
"""One byte per ns."""


def run(world: SplitWorld, arrivals: Any, prompts: Any, outputs: Any, **columns: Any) -> Result:
    return world.run(make_trace(arrivals, prompts, outputs, **columns))[0]


def stamps(result: Result) -> SplitColumns:
    assert result.split is not None
    return result.split.columns


def test_one_request_through_vllm() -> None:
    """One step of prompt, a hand-shake, the bytes, a step that computes the last prompt token again."""
    result = run(PLAIN, [0], [10], [4])
    c, moved = stamps(result), 10 * TOKEN_BYTES
    assert c.prefill_end_ns[0] == STEP
    assert c.room_ns[0] == STEP  # an idle decode replica looks at once
    assert c.transfer_end_ns[0] == STEP + HANDSHAKE + moved
    assert c.decode_scheduled_ns[0] == STEP + HANDSHAKE + moved
    assert result.first_token_ns[0] == 2 * STEP + HANDSHAKE + moved
    assert result.last_token_ns[0] == result.first_token_ns[0] + 3 * STEP
    prefill, decode = result.replicas
    assert (prefill.prefill_tokens, prefill.decode_tokens) == (10, 0)
    assert (decode.prefill_tokens, decode.decode_tokens) == (1, 3)


def test_one_request_through_sglang() -> None:
    """Room and hand-shake come before the prompt ends; the first token comes with the KV, without a step."""
    params = {"chunked_prefill_size": 64, "disable_overlap_schedule": True}
    result = run(PLAIN.but(policy="sglang", params=params, overlap="chunk"), [0], [10], [4])
    c = stamps(result)
    assert c.room_ns[0] == 0
    assert c.prefill_end_ns[0] == STEP
    assert c.transfer_end_ns[0] == STEP + 10 * TOKEN_BYTES
    assert result.first_token_ns[0] == STEP + 10 * TOKEN_BYTES
    assert result.last_token_ns[0] == result.first_token_ns[0] + 3 * STEP
    prefill, decode = result.replicas
    assert (prefill.prefill_tokens, decode.prefill_tokens, decode.decode_tokens) == (10, 0, 3)


@pytest.mark.parametrize("byte_ns", [1, 3, 10], ids=["hidden", "in between", "bound by the link"])
def test_layer_by_layer_ends_when_it_should(byte_ns: int) -> None:
    """T_end = max(T_prefill + x / L, t_layer1 + x), the formula of the overlap."""
    world = PLAIN.but(overlap="layer", handshake_ns=0, bytes_per_s=GB // byte_ns)
    result = run(world, [0], [16], [2])
    c, x = stamps(result), 16 * TOKEN_BYTES * byte_ns
    begun, ended = c.prefill_scheduled_ns[0], c.prefill_end_ns[0]
    assert ended == begun + STEP
    first_layer = begun + STEP // LAYERS
    assert c.transfer_end_ns[0] == pytest.approx(max(ended + x / LAYERS, first_layer + x), abs=LAYERS)


def test_chunks_leave_as_they_are_computed() -> None:
    """48 tokens in chunks of 16: two of three chunks' bytes move behind the next step."""
    world = PLAIN.but(handshake_ns=0, params={"max_num_batched_tokens": 16, "max_num_seqs": 6})
    whole = stamps(run(world, [0], [48], [2]))
    parts = stamps(run(world.but(overlap="chunk"), [0], [48], [2]))
    assert whole.transfer_end_ns[0] - whole.prefill_end_ns[0] == 48 * TOKEN_BYTES
    assert parts.transfer_end_ns[0] - parts.prefill_end_ns[0] == 16 * TOKEN_BYTES
    assert parts.transfer_bytes[0] == whole.transfer_bytes[0] == 48 * TOKEN_BYTES


def test_two_transfers_share_the_link() -> None:
    """Two prefill replicas end at once and send to one: each gets half of what the receiver takes in."""
    alone = stamps(run(PLAIN, [0], [20], [2]))
    both = stamps(run(PLAIN.but(prefill=2), [0, 0], [20, 20], [2, 2]))
    spent = lambda c: c.transfer_end_ns - c.room_ns - HANDSHAKE  # noqa: E731
    assert spent(alone).tolist() == [20 * TOKEN_BYTES]
    assert spent(both).tolist() == [2 * 20 * TOKEN_BYTES] * 2


def test_heads_that_differ_cost_a_pass_over_the_bytes() -> None:
    plain = stamps(run(PLAIN, [0], [20], [2]))
    cut = stamps(run(PLAIN.but(reshard=GB // 2), [0], [20], [2]))
    assert cut.transfer_end_ns[0] - plain.transfer_end_ns[0] == 2 * 20 * TOKEN_BYTES


def test_prompts_keep_their_blocks_until_they_were_read() -> None:
    """Room for one prompt: the second is admitted when the first was read, not when it was computed."""
    result = run(PLAIN.but(extra_blocks=0, bytes_per_s=GB // 100), [0, 0], [56, 56], [2, 2])
    c = stamps(result)
    assert c.prefill_scheduled_ns[1] >= c.transfer_end_ns[0] > c.prefill_end_ns[0]


def test_a_full_decode_side_holds_up_prefill() -> None:
    """Long answers on the decode side: prompts wait there for room, and new ones for them."""
    result = run(PLAIN.but(extra_blocks=0), [0, 0, 0], [30, 30, 30], [28, 28, 2])
    c = stamps(result)
    assert c.room_ns[2] > c.prefill_end_ns[2] + 10 * STEP


def test_a_lost_transfer_is_computed_again_where_it_was_wanted() -> None:
    good, bad = run(PLAIN, [0], [20], [3]), run(PLAIN.but(failure_rate=1.0), [0], [20], [3])
    assert stamps(bad).transfer_ok[0] == 0
    assert bad.status[0] == Status.COMPLETED
    assert good.replicas[1].prefill_tokens == 1
    assert bad.replicas[1].prefill_tokens == 20
    assert bad.split is not None
    assert bad.split.failed_transfers == 1


def test_a_lost_transfer_may_fail_the_request() -> None:
    result, policies = PLAIN.but(failure_rate=1.0, on_failure="error").run(make_trace([0], [20], [3]))
    assert result.status[0] == Status.UNFINISHED
    assert result.reasons[result.reason[0]] == "KV transfer failed"
    assert [policy.kv_used_blocks for policy in policies] == [0, 0]


def test_a_lease_that_ends_before_anybody_has_room() -> None:
    """The decode side is busy for 28 steps; a lease of 5 gives the KV up, and it is computed there."""
    world = PLAIN.but(extra_blocks=0)
    arrivals = ([0, 0], [30, 31], [28, 2])
    kept, lost = run(world, *arrivals), run(world.but(lease_ns=5 * STEP), *arrivals)
    assert stamps(kept).transfer_ok.tolist() == [1, 1]
    assert stamps(lost).transfer_ok.tolist() == [1, 0]
    assert stamps(lost).transfer_bytes[1] == 0
    assert lost.status[1] == Status.COMPLETED


def test_short_prompts_stay_whole() -> None:
    """At most 8 uncached tokens: no transfer, and the decode replica computes the prompt."""
    result = run(PLAIN.but(local=LocalRule(8, None)), [0, 0], [8, 9], [3, 3])
    assert stamps(result).prefill_replica.tolist() == [-1, 0]
    assert result.split is not None
    assert result.split.kept_local == 1
    assert result.replicas[1].prefill_tokens == 8 + 1


def test_requests_stay_whole_when_prefill_has_a_queue() -> None:
    world = PLAIN.but(local=LocalRule(0, 2), params={"max_num_batched_tokens": 16, "max_num_seqs": 1})
    result = run(world, [0] * 6, [16] * 6, [2] * 6)
    assert (stamps(result).prefill_replica == -1).any()
    assert (stamps(result).prefill_replica == 0).any()


def test_kept_requests_may_have_replicas_of_their_own() -> None:
    result = run(PLAIN.but(local=LocalRule(8, None), mixed=1), [0, 0], [8, 9], [3, 3])
    names = [result.replicas[i].pool for i in result.replica]
    assert names == ["mixed", "decode"]


def test_what_the_decode_side_has_does_not_move() -> None:
    """The second prompt begins with all of the first: 10 blocks of 4 tokens."""
    ids = [*range(10), *range(15)]
    world = PLAIN.but(content=True)
    columns = {"block_ids": ids, "block_offsets": [0, 10, 25]}
    trace = make_trace([0, 50_000], [40, 60 - 1], [4, 1], **columns)
    result, _ = world.run(replace(trace, block_tokens=4))
    c = stamps(result)
    assert c.decode_cached_tokens.tolist() == [0, 40]
    assert c.transfer_bytes.tolist() == [40 * TOKEN_BYTES, 19 * TOKEN_BYTES]
    assert result.cached_tokens.tolist() == [0, 40]  # on the prefill side


def test_a_replica_changes_sides_when_the_other_queue_is_long() -> None:
    """One prefill replica that runs one prompt at a time, and prompts that come twice as fast."""
    world = PLAIN.but(decode=3, params={"max_num_batched_tokens": 16, "max_num_seqs": 1})
    arrivals = ([500 * i for i in range(30)], [16] * 30, [1] * 30)
    fixed = run(world, *arrivals)
    moved = run(world.but(switch=SwitchRule(2 * STEP, STEP, 3, 2)), *arrivals)
    assert moved.split is not None
    assert moved.split.role_changes >= 1
    assert len(np.unique(stamps(moved).prefill_replica)) > 1
    assert moved.end_ns < fixed.end_ns

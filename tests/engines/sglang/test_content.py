"""Prompts as runs: the ids of a trace's blocks, and texts that nobody shares."""

import numpy as np
import pytest

from simserve.core import Request, Trace, TraceOrigin
from simserve.engines.sglang import BlockContent, SglangParams, SglangPolicy, UniqueContent
from simserve.errors import TraceError


def blocks(rows, prompt_tokens):
    ids = np.array([block for row in rows for block in row], np.int64)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    n = len(rows)
    zeros = np.zeros(n, np.int64)
    return Trace(
        zeros,
        np.array(prompt_tokens, np.int64),
        zeros + 1,
        TraceOrigin("test", "test"),
        block_ids=ids,
        block_offsets=offsets,
        block_tokens=512,
    )


def test_a_block_is_a_segment_and_what_follows_the_last_is_the_requests_own():
    content = BlockContent(blocks([[7, 8], [7], []], [1000, 600, 5]))
    first, second, third = (content.prompt(Request(i, 0, n, 1)) for i, n in enumerate((1000, 600, 5)))
    assert first == ((7, 0, 512), (8, 0, 488))
    assert second[0] == (7, 0, 512)
    assert second[1].length == 88
    assert third[0].length == 5
    own = {
        second[1].segment,
        third[0].segment,
        *(content.output_place(Request(i, 0, 1, 1))[0] for i in range(3)),
    }
    assert len(own) == 5
    assert not own & {7, 8}


def test_unique_prompts_share_nothing():
    content = UniqueContent()
    requests = [Request(i, 0, 10, 1) for i in range(3)]
    segments = {run.segment for request in requests for run in content.prompt(request)}
    assert len(segments | {content.output_place(request)[0] for request in requests}) == 6


def test_a_trace_without_ids_is_refused():
    trace = Trace(*(np.zeros(1, np.int64),) * 3, TraceOrigin("plain.csv", "csv"))
    with pytest.raises(TraceError, match=r"plain\.csv: no block ids"):
        BlockContent(trace)


@pytest.mark.parametrize("chunked_prefill_size", [16, 100, 512, 2048, -1])
def test_hits_do_not_depend_on_the_chunk_size(chunked_prefill_size):
    """The second prompt shares its first block, the third is the first again: all but its last token hits."""
    trace = blocks([[1, 2], [1, 3], [1, 2]], [1000, 700, 1000])
    params = SglangParams(chunked_prefill_size=chunked_prefill_size, disable_overlap_schedule=True)
    policy = SglangPolicy(
        params, kv_blocks=10_000, block_size=1, max_model_len=4000, content=BlockContent(trace)
    )
    cached = []
    for row, prompt_tokens in enumerate((1000, 700, 1000)):
        request = Request(row, 0, prompt_tokens, 1)
        policy.add(request)
        while policy.waiting or policy.running:
            batch = policy.next_batch(0)
            policy.update(batch, 1, [chunk.request for chunk in batch.chunks if chunk.last])
            if not policy.waiting and not policy.state.chunked:
                policy.next_batch(0)
        cached.append(request.cached)
    assert cached == [0, 512, 999]

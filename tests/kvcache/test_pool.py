"""Counted blocks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.core import Request
from simserve.errors import InvariantError
from simserve.kvcache import BlockPool, blocks_for


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (160, 10)])
def test_blocks_of_sixteen(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 16) == blocks


def test_free_and_used_add_up() -> None:
    pool = BlockPool(10, 4)
    pool.take(7)
    assert (pool.free, pool.used) == (3, 7)
    pool.give(2)
    assert (pool.free, pool.used) == (5, 5)


def test_more_than_is_free_is_refused_and_changes_nothing() -> None:
    pool = BlockPool(10, 4)
    pool.take(8)
    with pytest.raises(InvariantError, match="took 3 KV blocks of 2 free"):
        pool.take(3)
    assert pool.free == 2


def test_more_back_than_went_out_is_an_error() -> None:
    pool = BlockPool(10, 4)
    pool.take(1)
    with pytest.raises(InvariantError, match="11 KV blocks free of 10"):
        pool.give(2)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(pieces=st.lists(st.integers(1, 50), min_size=1, max_size=8), size=st.sampled_from([1, 4, 16]))
def test_a_request_that_grows_in_pieces_holds_what_its_tokens_need(pieces: list[int], size: int) -> None:
    pool = BlockPool(1000, size)
    request = Request(0, 0, sum(pieces), 1)
    pool.admit(request, 0, pieces[0])
    request.computed = pieces[0]
    for piece in pieces[1:]:
        needed = pool.needed(request, request.computed, piece)
        used = pool.used
        pool.extend(request, piece)
        assert pool.used - used == needed
        request.computed += piece
    assert pool.used == -(-sum(pieces) // size)
    pool.release(request, request.computed)
    assert pool.free == 1000

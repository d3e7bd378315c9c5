"""Two groups, one free list: blocks of 4 tokens, a window of 8, counted by hand."""

import pytest

from simserve.core import Request
from simserve.engines.decode_batch import WindowDecodeGroup
from simserve.errors import InvariantError
from simserve.kvcache import HybridCache
from simserve.kvcache.content import Run, RunContent, canonical


def text(request):
    """All prompts are one text, cut at different places; outputs are the requests' own."""
    return canonical((Run(1, 0, request.prompt_tokens), Run(100 + request.id, 0, 1000)))


def own_text(request):
    return (Run(100 + request.id, 0, 1000),)


def cache(total, text=text, **options):
    return HybridCache(total, 4, (0, 8), RunContent(text, 4), **options)


def ask(index, prompt_tokens):
    return Request(index, index, prompt_tokens, 1000)


def hits(pool, prompt_tokens):
    """Return the hits of a prompt that nobody asked for before."""
    return pool.hit(ask(1000 + prompt_tokens, prompt_tokens))[0]


def admitted(pool, index, prompt_tokens):
    """Admit a request with its whole prompt, as computed."""
    request = ask(index, prompt_tokens)
    cached, _ = pool.hit(request)
    pool.admit(request, cached, prompt_tokens - cached * 4)
    request.computed = prompt_tokens
    return request


def test_a_prompt_takes_a_block_of_each_group_per_four_tokens():
    pool = cache(20)
    admitted(pool, 0, 18)
    assert (pool.used, pool.free) == (10, 10)


@pytest.mark.parametrize(("computed", "given_back"), [(7, 0), (10, 0), (11, 1), (14, 1), (15, 2), (20, 3)])
def test_blocks_come_back_when_no_later_token_sees_them(computed, given_back):
    """The token at position c sees c - 7 to c."""
    pool = cache(20)
    request = admitted(pool, 0, 20)
    pool.slide(request, computed)
    assert pool.free == 10 + given_back
    pool.slide(request, computed)
    assert pool.free == 10 + given_back


def test_growing_slides_first():
    pool = cache(10)
    request = admitted(pool, 0, 20)
    assert pool.free == 0
    assert pool.needed(request, 20, 1) == 2
    assert pool.free == 3
    pool.take(2)
    pool.release(request, 21)
    assert (pool.free, pool.used) == (10, 0)


def test_more_than_is_free_is_refused():
    pool = cache(10)
    with pytest.raises(InvariantError, match="took 11 KV blocks of 10 free"):
        pool.take(11)


def test_a_hit_takes_up_the_full_group_and_what_the_window_sees():
    pool = cache(12)
    pool.release(admitted(pool, 0, 24), 24)
    follower = ask(1, 30)
    assert pool.hit(follower) == (6, 8)  # six full blocks, and the two that hold tokens 17 to 23
    pool.admit(follower, 6, 6)  # tokens 24 to 29: two blocks of each group
    assert pool.used == 8 + 4
    assert pool.hit(ask(2, 24)) == (0, 0)  # no room was left: the window blocks before were reused
    pool.release(follower, 30)
    assert pool.used == 0


def test_one_token_is_always_left_to_compute():
    pool = cache(12)
    pool.release(admitted(pool, 0, 24), 24)
    assert pool.hit(ask(1, 24)) == (5, 5 + 2)
    assert pool.hit(ask(2, 25)) == (6, 6 + 2)


def test_a_hit_needs_both_groups():
    pool = cache(12)
    first = admitted(pool, 0, 24)
    pool.slide(first, 24)  # window blocks 3, 2, 1, 0 are first in the free list
    pool.release(first, 24)  # then full blocks 5 to 0, then window blocks 5 and 4
    assert hits(pool, 9) == 2  # a prefix shorter than the window
    pool.take(2)  # window blocks 3 and 2
    assert hits(pool, 25) == 6  # 5 and 4 are all that the next token sees
    assert hits(pool, 21) == 2  # of five blocks, the window group lacks 3; of two it has all
    pool.take(2)  # window blocks 1 and 0
    assert hits(pool, 25) == 6
    assert hits(pool, 21) == 0
    pool.take(1)  # full block 5
    assert hits(pool, 25) == 0


@pytest.mark.parametrize(("blanks_first", "left"), [(True, 2), (False, 1)])
def test_newer_versions_reuse_unfilled_blocks_first(blanks_first, left):
    pool = cache(6, blanks_first=blanks_first)
    pool.release(admitted(pool, 0, 10), 10)  # two full blocks and an unfilled one, in each group
    pool.take(2)
    assert hits(pool, 10) == left


def test_a_block_that_somebody_holds_is_not_reused():
    pool = cache(14)
    first = admitted(pool, 0, 24)
    second = admitted(pool, 1, 26)
    assert pool.used == 12 + 2
    pool.release(first, 24)
    assert pool.free == 4  # what the second's window had passed when it was admitted
    pool.take(4)
    assert pool.hit(ask(2, 25)) == (6, 0)
    pool.release(second, 26)


def test_whole_sequences_are_checked_with_a_bounded_window_group():
    older, newer = cache(40), cache(40, window_limit=5)
    assert older.admission_need(8, 40, 0, 0) == 10 + 10
    assert newer.admission_need(8, 40, 0, 0) == 10 + 5
    assert newer.admission_need(8, 8, 0, 0) == 2 + 2
    assert newer.admission_need(24 + 8, 40, 6, 8) == (10 - 6) + 0 + 8
    assert newer.admission_need(24 + 16, 40, 6, 8) == 2 * (10 - 6) + 8  # the chunk itself must fit too


def test_without_content_blocks_are_only_counted():
    pool = HybridCache(20, 4, (0, 8), None, blanks_first=False)
    request = admitted(pool, 0, 18)
    pool.slide(request, 18)
    assert (pool.used, pool.hit(ask(1, 18))) == (10 - 2, (0, 0))
    pool.release(request, 18)
    assert pool.used == 0


# -- decoding ------------------------------------------------------------------------------------------


def decoding(total, *prompts):
    pool = cache(total, own_text)
    group = WindowDecodeGroup(pool)
    for index, prompt_tokens in enumerate(prompts):
        group.join(admitted(pool, index, prompt_tokens))
    return pool, group


def test_a_member_takes_two_blocks_and_gives_one_back_every_four_steps():
    pool, group = decoding(100, 8)
    used = []
    for _ in range(12):
        group.take_next(pool, group.blocks_next())
        group.advance(1)
        used.append(pool.used)
    assert used == [6, 6, 6, 5, 7, 7, 7, 6, 8, 8, 8, 7]


def test_the_first_step_gives_back_all_that_the_prompt_passed():
    pool, group = decoding(100, 22)
    group.take_next(pool, group.blocks_next())
    assert pool.used == 12 - 3


def test_several_steps_at_once_equal_single_steps():
    single, one_by_one = decoding(60, 5, 8, 14, 23)
    at_once, together = decoding(60, 5, 8, 14, 23)
    for _ in range(21):
        one_by_one.take_next(single, one_by_one.blocks_next())
        one_by_one.advance(1)
    together.take_next(at_once, together.blocks_next())
    together.take_steps(at_once, 1, 9)
    together.take_steps(at_once, 9, 21)
    together.advance(21)
    assert single.used == at_once.used
    assert list(single._tag_of.values()) == list(at_once._tag_of.values())
    assert list(single._queue) == list(at_once._queue)


@pytest.mark.parametrize("free", range(2, 12))
def test_a_run_ends_before_the_blocks_do(free):
    """Contexts 8 and 9: the steps take 2, 0, 0, 2 and give back 0, 0, 1, 1, over and over."""
    pool, group = decoding(10 + free, 8, 9)
    pool_free = [free]
    for step in range(200):
        takes, gives = [2, 0, 0, 2][step % 4], [0, 0, 1, 1][step % 4]
        if takes > pool_free[-1]:
            break
        pool_free.append(pool_free[-1] - takes + gives)
    group.take_next(pool, group.blocks_next())
    assert group.steps_within(pool.free + 2) == min(len(pool_free) - 1, 16)


def test_who_is_blocked_stays_so_until_a_block_moves():
    pool, group = decoding(100, 8)  # takes in steps 0 and 4, gives back in step 3
    group.take_next(pool, group.blocks_next())
    assert group.steps_blocked() == 3
    group.advance(3)
    assert group.steps_blocked() == 1


# -- what window groups keep ---------------------------------------------------------------------------------


def finished(pool, index, prompt_tokens):
    """Serve a prompt from beginning to end, without an answer."""
    request = admitted(pool, index, prompt_tokens)
    pool.slide(request, prompt_tokens)
    pool.release(request, prompt_tokens)


@pytest.mark.parametrize(
    ("retention", "asked", "found"),
    [
        (None, 40, 9),  # all blocks before the last token, of which the window needs the last two
        (None, 21, 5),
        (0, 40, 9),  # ends where the first prompt ended
        (0, 21, 0),  # ends in the middle of it: its window is gone
        (0, 60, 9),  # goes on after it
        (16, 21, 4),  # stretches of 16 tokens: blocks 3 and 4 of each four are kept
        (16, 40, 9),
    ],
)
def test_retention_decides_where_a_hit_can_end(retention, asked, found):
    """A prompt of 40 tokens: its replay ends at block 9 of ten, before the last token's."""
    pool = cache(100, retention_tokens=retention)
    finished(pool, 0, 40)
    assert hits(pool, asked) == found


def test_a_fork_is_kept_from_the_second_time_on():
    """The second prompt parts from the first after five blocks and keeps what a third needs there."""

    def forking(request):
        shared = 20 if request.id else 1000
        return canonical((Run(1, 0, shared), Run(100 + request.id, 0, 1000)))

    pool = cache(100, forking, retention_tokens=0)
    found = []
    for index, prompt_tokens in enumerate((80, 40, 44)):
        found.append(pool.hit(ask(index, prompt_tokens))[0])
        finished(pool, index, prompt_tokens)
    assert found == [0, 0, 5]


def test_several_groups_take_and_give_together():
    """Two window groups and a full one: 18 tokens are 5 blocks each; at 15 both windows have passed two."""
    pool = HybridCache(40, 4, (0, 8, 8), RunContent(text, 4))
    request = admitted(pool, 0, 18)
    assert pool.used == 15
    pool.slide(request, 15)
    assert pool.used == 11
    pool.release(request, 18)
    assert pool.free == 40


def test_windows_alone_hit_what_they_still_have():
    """One group of windows: a hit needs only the last two blocks before the next token."""
    pool = HybridCache(40, 4, (8,), RunContent(text, 4))
    request = admitted(pool, 0, 40)
    assert pool.used == 10
    pool.slide(request, 40)
    assert pool.used == 2
    assert hits(pool, 41) == 10

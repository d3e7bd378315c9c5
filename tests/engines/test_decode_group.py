"""A group of decoding requests against a list of their contexts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.core import Request
from simserve.engines.decode_batch import FOREVER, PLENTY, DecodeGroup


def blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)


def growth(contexts: list[int], steps: int, size: int) -> int:
    """New blocks over the next `steps` steps, request by request."""
    return sum(blocks(context + steps, size) - blocks(context, size) for context in contexts)


def request(number: int, computed: int) -> Request:
    made = Request(number, 0, max(1, computed), 1000)
    made.computed = computed
    return made


def test_a_group_by_hand() -> None:
    group = DecodeGroup(4)
    seven, eight = request(0, 7), request(1, 8)
    group.join(seven)
    group.join(eight)
    assert (group.size, group.context) == (2, 15)
    assert group.blocks_next() == 1  # the ninth token of one opens a block
    assert [group.blocks_within(steps) for steps in (1, 2, 3, 4, 5)] == [1, 2, 2, 2, 3]
    assert [group.steps_within(free) for free in (0, 1, 2, 3)] == [0, 1, 4, 5]
    group.advance(2)
    assert (group.context, group.computed(seven), seven.decoding) == (19, 9, True)
    group.leave(seven)
    assert (seven.computed, seven.decoding, group.size, group.context) == (9, False, 1, 10)


def test_an_empty_group_needs_nothing_for_ever() -> None:
    group = DecodeGroup(16)
    assert (group.blocks_next(), group.blocks_within(100), group.steps_within(0)) == (0, 0, FOREVER)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_agrees_with_a_list_of_contexts(data) -> None:
    size = data.draw(st.sampled_from([1, 2, 4, 16]))
    group = DecodeGroup(size)
    contexts: dict[int, int] = {}
    members: dict[int, Request] = {}
    for number in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["join", "join", "leave", "advance"]))
        if action == "join":
            computed = data.draw(st.integers(0, 100))
            members[number] = request(number, computed)
            contexts[number] = computed
            group.join(members[number])
        elif action == "leave" and members:
            gone = data.draw(st.sampled_from(sorted(members)))
            group.leave(members[gone])
            assert members.pop(gone).computed == contexts.pop(gone)
        elif action == "advance":
            steps = data.draw(st.integers(1, 40))
            group.advance(steps)
            contexts = {member: context + steps for member, context in contexts.items()}
    now = list(contexts.values())
    assert (group.size, group.context) == (len(now), sum(now))
    assert {member: group.computed(made) for member, made in members.items()} == contexts
    assert group.blocks_next() == growth(now, 1, size)
    steps = data.draw(st.integers(0, 70))
    assert group.blocks_within(steps) == growth(now, steps, size)
    free = data.draw(st.integers(0, 60))
    most = group.steps_within(free)
    if now and most < PLENTY:
        assert growth(now, most, size) <= free < growth(now, most + 1, size)

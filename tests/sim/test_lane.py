"""A lane against a list of answers that are looked at one by one, step by step."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.core import Request
from simserve.sim.decode_batch import Answer, Lane


class Gaps:
    """Stands where the recorder is, and keeps what it receives."""

    def __init__(self) -> None:
        self.all: Counter[int] = Counter()
        self.steady: Counter[int] = Counter()

    def add(self, gap_ns: int, count: int, steady: int) -> None:
        assert 0 <= steady <= count
        self.all[gap_ns] += count
        self.steady[gap_ns] += steady


def answer(number: int, length: int, shown_ns: int = 0, steady: bool = False) -> Answer:
    """An answer of `length` tokens whose first was shown at `shown_ns`."""
    made = Answer(Request(number, 0, 10, length), length, steady)
    made.shown, made.shown_ns = 1, shown_ns
    return made


def test_an_answer_ends_with_the_step_of_its_last_token() -> None:
    lane = Lane(Gaps())
    three, five = answer(0, 4), answer(1, 6)
    lane.join(three)
    lane.join(five)
    assert lane.steps_to_end(100) == 3
    assert lane.advance(2, 20) == []
    assert lane.advance(1, 30) == [three]
    assert (three.shown, lane.live) == (4, 1)
    assert lane.steps_to_end(100) == 2
    assert lane.steps_to_end(1) == 1
    lane.leave(five)
    assert (five.shown, five.shown_ns) == (4, 30)
    assert lane.steps_to_end(100) == 100


def test_answers_that_end_together_come_in_order_of_joining() -> None:
    lane = Lane(Gaps())
    answers = [answer(number, 3) for number in (4, 2, 9)]
    for each in answers:
        lane.join(each)
    assert lane.advance(2, 20) == answers


def test_an_answer_that_moved_to_another_lane_does_not_end_in_the_first() -> None:
    """Both lanes count their own steps, so the old lane may reach the number of the new one's end step."""
    gaps = Gaps()
    lanes = [Lane(gaps, 0), Lane(gaps, 1)]
    moved = answer(0, 11)
    lanes[0].join(moved)  # ends with step 10 of lane 0
    lanes[0].advance(3, 30)
    lanes[0].leave(moved)
    lanes[1].advance(3, 35)
    lanes[1].join(moved)  # ends with step 10 of lane 1
    assert lanes[0].steps_to_end(100) == 100
    assert lanes[0].advance(7, 100) == []
    assert lanes[1].advance(6, 95) == []
    assert lanes[1].advance(1, 105) == [moved]


def test_two_that_stall_twice_are_counted_once() -> None:
    """Shown a token at 10 and 20 ns, both miss two steps; then each has one gap, to 50 ns."""
    gaps = Gaps()
    lane = Lane(gaps)
    early, late = answer(0, 5, shown_ns=10), answer(1, 5, shown_ns=20)
    lane.join(early)
    lane.join(late)
    for _ in range(2):
        for each in (late, early):
            lane.leave(each)
        for each in (late, early):
            lane.join(each)
    lane.show_gaps(50)
    assert +gaps.all == {40: 1, 30: 1}


def test_rhythm_is_kept_by_those_who_were_shown_a_token_just_now() -> None:
    lane = Lane(Gaps())
    lane.join(answer(0, 9, shown_ns=10))
    assert lane.in_rhythm(10)
    assert not lane.in_rhythm(11)
    lane.advance(1, 20)
    late = answer(1, 9, shown_ns=15)
    lane.join(late)
    assert not lane.in_rhythm(20)
    lane.leave(late)
    assert lane.in_rhythm(20)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_agrees_with_counting_by_hand(data) -> None:
    """Random joins, leaves, stalls and steps; every gap, end and progress is what a list of answers says."""
    gaps, expected = Gaps(), Gaps()
    lane = Lane(gaps)
    members: dict[int, list[int]] = {}  # number -> [tokens left, shown at]
    outside: dict[int, Answer] = {}
    answers: dict[int, Answer] = {}
    now_ns = 0
    for number in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(["new", "step", "step", "leave", "back", "stall"]))
        if action == "new":
            made = answer(number, data.draw(st.integers(2, 9)), now_ns, data.draw(st.booleans()))
            answers[number] = made
            members[number] = [made.length - 1, now_ns]
            lane.join(made)
        elif action == "leave" and members:
            gone = data.draw(st.sampled_from(sorted(members)))
            left, shown_ns = members.pop(gone)
            lane.leave(answers[gone])
            outside[gone] = answers[gone]
            assert (answers[gone].length - answers[gone].shown, answers[gone].shown_ns) == (left, shown_ns)
        elif action == "back" and outside:
            back = data.draw(st.sampled_from(sorted(outside)))
            made = outside.pop(back)
            members[back] = [made.length - made.shown, made.shown_ns]
            lane.join(made)
        elif action == "stall" and members:
            order = data.draw(st.permutations(sorted(members)))
            now_ns += data.draw(st.integers(0, 3))
            for each in order:
                lane.leave(answers[each])
            for each in order:
                lane.join(answers[each])
        elif action == "step" and members:
            now_ns += data.draw(st.integers(1, 20))
            lane.show_gaps(now_ns)
            ended = set()
            for each, (left, shown_ns) in list(members.items()):
                expected.add(now_ns - shown_ns, 1, answers[each].steady)
                members[each] = [left - 1, now_ns]
                if left == 1:
                    ended.add(each)
                    del members[each]
            assert {done.request.id for done in lane.advance(1, now_ns)} == ended
        assert lane.live == len(members)
        assert lane.live_steady == sum(answers[each].steady for each in members)
        most = min([left for left, _ in members.values()], default=100)
        assert lane.steps_to_end(100) == most
    assert +gaps.all == +expected.all
    assert +gaps.steady == +expected.steady

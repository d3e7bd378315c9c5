"""The running batch's sums against counting every sequence, token by token."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.core import Request
from simserve.engines.sglang.options import CLIP_MAX_NEW_TOKENS
from simserve.engines.sglang.running import Running
from simserve.engines.sglang.sequence import Sequence
from simserve.kvcache.content import Run

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["join", "step", "steps", "remove", "finish"]), st.integers(1, 9_000)),
    max_size=40,
)


class Counted:
    """A sequence as three plain numbers."""

    def __init__(self, stored, outputs, most):
        self.stored, self.outputs, self.most, self.done = stored, outputs, most, False

    def pages(self, size):
        return -(-self.stored // size)


def new_sequence(index, prompt_tokens, most_outputs):
    request = Request(index, 0, prompt_tokens, most_outputs)
    sequence = Sequence(request, (Run(index, 0, prompt_tokens),), -index, most_outputs)
    sequence.kv.stored = prompt_tokens
    sequence.outputs = 1
    return sequence


@settings(max_examples=200, deadline=None)
@given(actions=ACTIONS, page_size=st.sampled_from([1, 4, 16]))
def test_sums_equal_counting(actions, page_size):
    batch, counted, made = Running(page_size), {}, {}
    for index, (action, number) in enumerate(actions):
        alive = [key for key, model in counted.items() if not model.done]
        if action == "join":
            made[index] = new_sequence(index, number % 70 + 1, number)
            counted[index] = Counted(number % 70 + 1, 1, number)
            batch.join([made[index]], ahead=bool(number % 2))
        elif not alive:
            continue
        elif action in ("step", "steps"):
            steps = 1 if action == "step" else number
            dropped = batch.drop_done()
            assert dropped == len(counted) - len(alive)
            counted = {key: counted[key] for key in alive}
            need = sum(
                (m.stored + steps + page_size - 1) // page_size - m.pages(page_size) for m in counted.values()
            )
            assert batch.decode_need(steps) == need * page_size
            assert batch.steps_within(need * page_size) >= steps
            if need:
                assert batch.steps_within((need - 1) * page_size) < steps
            batch.launch(steps)
            batch.book(steps)
            for model in counted.values():
                model.stored += steps
                model.outputs += steps
        else:
            key = alive[number % len(alive)]
            if action == "remove":
                batch.remove(made[key])
                assert (made[key].kv.stored, made[key].outputs) == (counted[key].stored, counted[key].outputs)
                del counted[key]
            else:
                batch.finish(made[key])
                counted[key].done = True
        live = [model for model in counted.values() if not model.done]
        assert batch.live == len(live)
        assert len(batch) == len(counted)
        assert batch.kv_tokens == sum(model.stored for model in live)
        assert batch.reserved == sum(
            min(model.most - model.outputs, CLIP_MAX_NEW_TOKENS) for model in counted.values()
        )


def test_ahead_means_before_the_others_in_order():
    batch = Running(1)
    batch.join([new_sequence(1, 5, 5), new_sequence(2, 5, 5)])
    batch.join([new_sequence(3, 5, 5), new_sequence(4, 5, 5)], ahead=True)
    batch.join([new_sequence(5, 5, 5)])
    assert [sequence.request.id for sequence in batch] == [3, 4, 1, 2, 5]

"""The real engine of the closed-loop benchmark: a request gets the same tokens in a batch as alone."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cpu_engine.engines import BLOCK_SIZE, draw_requests
from benchmarks.cpu_engine.model import Model
from benchmarks.cpu_engine.scheduler import Scheduler, Sequence
from benchmarks.cpu_engine.server import Server
from simserve.model import load_model


def serve(model: Model, requests: list[Sequence], budget: int = 48) -> Server:
    server = Server(model, Scheduler(60, BLOCK_SIZE, 4, budget))
    server.serve(requests)
    return server


@pytest.mark.parametrize("name", ["tiny", "tiny-mla-moe"])
def test_batched_chunked_and_alone_give_the_same_tokens(name: str) -> None:
    model = Model(load_model(name), 60, BLOCK_SIZE)
    together = draw_requests(5, 1e6, 1)
    for request in together:
        request.prompt, request.output_tokens = request.prompt[:70], min(request.output_tokens, 6)
    server = serve(model, together)
    assert any(cached for step in server.steps for _, cached, _ in step.chunks), "no prompt was cut"
    assert any(step.decodes > 1 for step in server.steps)
    assert len(server.scheduler.free) == 60
    for request in together[:3]:
        alone = Sequence(0, 0.0, request.prompt, request.output_tokens)
        serve(model, [alone], budget=512)
        assert alone.made == request.made


def test_absorbed_and_expanded_attention_agree() -> None:
    """A decoding sequence and a chunk of one token are the same mathematics by two ways."""
    model = Model(load_model("tiny-mla-moe"), 60, BLOCK_SIZE)
    first = Sequence(0, 0.0, list(range(40)), 2)
    serve(model, [first], budget=512)
    second = Sequence(0, 0.0, [*range(40), first.made[0]], 1)
    serve(model, [second], budget=512)
    assert second.made == first.made[1:]
    assert torch.is_grad_enabled()

"""A request between the two sides of a split, and what the prefill side reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.core import Request
from simserve.core.halves import DecodeRequest, PrefillRequest
from simserve.engine.handover import Handover
from simserve.engine.split_replica import SplitReplica
from simserve.engine.stages import PromptRecorder

if TYPE_CHECKING:
    from simserve.engine.boundary import Front
    from simserve.engine.split import SplitCluster


class Passage:
    """A split request from its arrival to the end of its hand-over."""

    __slots__ = ("decode", "handover", "length", "prefill", "source", "target")

    def __init__(self, request: Request, length: int, source: SplitReplica) -> None:
        """`length` tokens will be its answer; `source` computes the prompt."""
        row, prompt, priority = request.id, request.prompt_tokens, request.priority
        self.prefill = PrefillRequest(row, request.arrival_ns, prompt, 1, priority)
        self.decode = DecodeRequest(row, request.arrival_ns, prompt, request.max_tokens, priority)
        self.length = length
        self.source = source
        self.target: SplitReplica | None = None
        """Who answers, once that is known."""
        self.handover: Handover
        """Its KV on the way; set by the cluster."""


class PrefillSide:
    """What prefill replicas report to, in the place of a cluster."""

    front: Front
    cluster: SplitCluster
    """Both set by the cluster."""

    def __init__(self, recorder: PromptRecorder, fast_forward: bool) -> None:
        """`recorder` is the side's own."""
        self.recorder = recorder
        self.fast_forward = fast_forward

    def first_token(self, request: Request) -> None:
        """A prompt's token was sampled."""
        self.cluster.prompt_sampled(request)

    def complete(self, request: Request, output_tokens: int) -> None:
        """A prompt is computed."""
        self.cluster.prompt_computed(request)

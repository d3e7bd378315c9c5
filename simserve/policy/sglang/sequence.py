"""A request inside the SGLang scheduler: its content, its KV, and what is known of its output."""

from __future__ import annotations

from simserve.core import Request
from simserve.kv.radix_pool import Holding
from simserve.kv.radix_runs import Run, Runs, canonical


class Sequence:
    """One request from its arrival to its end."""

    __slots__ = (
        "done",
        "extend",
        "joined",
        "kv",
        "limit_at",
        "marked",
        "most_outputs",
        "output_place",
        "outputs",
        "prefix",
        "prompt",
        "rank",
        "request",
        "returned",
        "slot",
        "waiting",
    )

    def __init__(
        self, request: Request, prompt: Runs, output_place: tuple[int, int], most_outputs: int
    ) -> None:
        self.request = request
        self.prompt = prompt
        self.output_place = output_place
        """Segment and position of its first output token."""
        self.most_outputs = most_outputs
        """Output tokens to reckon with: what the client allows, cut to what the replica can hold."""
        self.kv = Holding()
        """Its tokens in the pool (while it decodes: as of `joined`)."""
        self.outputs = 0
        """Output tokens that the scheduler has seen (while it decodes: as of `marked`)."""
        self.prefix = 0
        """Tokens whose KV exists at the next prefill step."""
        self.extend = 0
        """Tokens that the next prefill step computes."""
        self.rank = 0
        """Order of entry into the waiting queue."""
        self.slot = 0
        """Order inside the running batch."""
        self.joined = 0
        """Launched decode steps of the running batch when it joined."""
        self.marked = 0
        """Booked decode steps from which its own outputs count."""
        self.limit_at = -1
        """Launched decode steps of the running batch at which its allowed output is used up."""
        self.waiting = False
        self.returned = False
        """Whether it was ever sent back to the queue."""
        self.done = False

    def plan(self, computed: int) -> None:
        """Set the next prefill step to go on after `computed` tokens."""
        self.prefix = computed
        self.extend = self.known - computed

    @property
    def known(self) -> int:
        """Tokens that must be computed before the next output."""
        return self.request.prompt_tokens + self.outputs

    @property
    def outputs_left(self) -> int:
        """Output tokens to reckon with from now on."""
        return self.most_outputs - self.outputs

    def runs(self) -> Runs:
        """Return prompt and known output."""
        return canonical((*self.prompt, Run(*self.output_place, self.outputs)))

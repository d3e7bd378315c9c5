"""What Dynamo's router keeps: blocks and uncomputed prompts in flight, and blocks sent a short while ago."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from simserve.router.prompt_blocks import Prompt, leading


@dataclass
class Sent:
    """A request in flight."""

    worker: int
    prompt: Prompt
    prefill_tokens: int
    """Prompt tokens that the worker was expected to compute; 0 once its first token was shown."""


class Active:
    """What one worker has in flight."""

    def __init__(self, block_size: int, key_tokens: int) -> None:
        """Counts in KV blocks of `block_size` tokens; a key stands for `key_tokens`."""
        self.prefill_tokens = 0
        """Prompt tokens to compute."""
        self.requests = 0
        """Requests in flight."""
        self._block_size = block_size
        self._key_blocks = -(-key_tokens // block_size)
        self._blocks = 0
        self._holders: Counter[int] = Counter()
        """Requests that have each key: what several share takes its blocks once."""

    def blocks_with(self, prompt: Prompt) -> int:
        """Return the blocks in flight if a further prompt came."""
        new_keys = len(prompt.keys) - leading(prompt.keys, self._holders)
        return self._blocks + new_keys * self._key_blocks + self._rest_blocks(prompt)

    def add(self, sent: Sent) -> None:
        """A request was sent here."""
        self._blocks = self.blocks_with(sent.prompt)
        self._holders.update(sent.prompt.keys)
        self.prefill_tokens += sent.prefill_tokens
        self.requests += 1

    def computed(self, sent: Sent) -> None:
        """A request's prompt is computed."""
        self.prefill_tokens -= sent.prefill_tokens
        sent.prefill_tokens = 0

    def remove(self, sent: Sent) -> None:
        """A request has ended."""
        self.computed(sent)
        self.requests -= 1
        self._blocks -= self._rest_blocks(sent.prompt)
        for key in sent.prompt.keys:
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self._blocks -= self._key_blocks

    def _rest_blocks(self, prompt: Prompt) -> int:
        return -(-prompt.rest_tokens // self._block_size)


class AssumedCache:
    """Blocks that were sent to one worker within the last `ttl_ns`, taken as cached."""

    def __init__(self, ttl_ns: int) -> None:
        """Each prompt makes all of its blocks last for `ttl_ns` more."""
        self._ttl_ns = ttl_ns
        self._ends_ns: OrderedDict[int, int] = OrderedDict()

    def store(self, prompt: Prompt, now_ns: int) -> None:
        """Note the blocks of a prompt."""
        for key in prompt.keys:
            self._ends_ns[key] = now_ns + self._ttl_ns
            self._ends_ns.move_to_end(key)

    def overlap(self, prompt: Prompt, now_ns: int) -> int:
        """Return how many keys of the prompt, from the first on, are assumed cached."""
        ends_ns = self._ends_ns
        while ends_ns and next(iter(ends_ns.values())) <= now_ns:
            ends_ns.popitem(last=False)
        return leading(prompt.keys, ends_ns)

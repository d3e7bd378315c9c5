"""What a gateway believes to be cached where: every prompt that it sent, per worker, least recently used out.

Follows the tree of SGLang's router, with blocks of tokens for characters of text. A key stands for its block
and all before it, so the tree is a table of blocks with their parents. It never hears what engines evict.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from simserve.router.prompt_blocks import Prompt

Key = int | tuple[str, int]
"""A block's key, or that of the rest of one prompt."""


class _Node:
    """A block (or the rest of a prompt), and who has it."""

    __slots__ = ("accessed", "below", "parent", "tokens")

    def __init__(self, parent: Key | None, tokens: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.accessed: dict[int, int] = {}
        """Time of last use by worker, in order of first use."""
        self.below: dict[int, int] = {}
        """Number of next blocks by worker, where not 0."""


class PrefixTree:
    """Blocks of prompts with the workers that got them."""

    def __init__(self, block_size: int) -> None:
        """Blocks of `block_size` tokens."""
        self.sizes: dict[int, int] = {}
        """Tokens by worker."""
        self._block_size = block_size
        self._nodes: dict[Key, _Node] = {}
        self._clock = 0

    def insert(self, request_id: int, prompt: Prompt, worker: int) -> None:
        """Note that a prompt was sent to `worker`."""
        self._clock += 1
        parent: Key | None = None
        for key in prompt.keys:
            self._add(key, self._block_size, parent, worker)
            parent = key
        if prompt.rest_tokens:
            self._add(("rest of", request_id), prompt.rest_tokens, parent, worker)

    def match(self, prompt: Prompt) -> tuple[int, int | None]:
        """Return the tokens of the longest known beginning, and the worker that has had its end longest.

        The original takes whichever worker its concurrent map lists first. Counts as a use by that worker.
        """
        path: list[_Node] = []
        for key in prompt.keys:
            node = self._nodes.get(key)
            if node is None:
                break
            path.append(node)
        if not path:
            return 0, None
        worker = next(iter(path[-1].accessed))
        self._clock += 1
        for node in path:
            node.accessed[worker] = self._clock
        return len(path) * self._block_size, worker

    def evict(self, most_tokens: float) -> None:
        """Drop the least recently used ends of prompts of each worker until it has at most `most_tokens`."""
        for worker, size in self.sizes.items():
            if size > most_tokens:
                self._evict(worker, most_tokens)

    def _add(self, key: Key, tokens: int, parent: Key | None, worker: int) -> None:
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = _Node(parent, tokens)
        if worker not in node.accessed:
            self.sizes[worker] = self.sizes.get(worker, 0) + tokens
            if parent is not None:
                below = self._nodes[parent].below
                below[worker] = below.get(worker, 0) + 1
        node.accessed[worker] = self._clock

    def _evict(self, worker: int, most_tokens: float) -> None:
        leaves = [
            (node.accessed[worker], place, key)
            for place, (key, node) in enumerate(self._nodes.items())
            if worker in node.accessed and worker not in node.below
        ]
        heapify(leaves)
        while leaves and self.sizes[worker] > most_tokens:
            _, place, key = heappop(leaves)
            parent = self._drop(key, worker)
            if parent is not None and worker not in self._nodes[parent].below:
                heappush(leaves, (self._nodes[parent].accessed[worker], place, parent))

    def _drop(self, key: Key, worker: int) -> Key | None:
        """Take a leaf from a worker; return its parent."""
        node = self._nodes[key]
        self.sizes[worker] -= node.tokens
        del node.accessed[worker]
        if not node.accessed:
            del self._nodes[key]
        if node.parent is not None:
            below = self._nodes[node.parent].below
            below[worker] -= 1
            if not below[worker]:
                del below[worker]
        return node.parent

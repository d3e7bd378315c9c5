"""What prompts and answers hold, as keys of full KV blocks."""

from __future__ import annotations

from collections.abc import Callable

from simserve.core import Request
from simserve.kv.radix_runs import Runs, split


class RunContent:
    """Content given as token runs (see `radix_runs`); equal chains of blocks get equal keys."""

    def __init__(self, text: Callable[[Request], Runs], block_size: int) -> None:
        """`text` returns prompt and output of a request, the output as long as it may get."""
        self._text = text
        self._block_size = block_size
        self._keys: dict[int, list[int]] = {}
        self._rest: dict[int, Runs] = {}
        self._chains: dict[tuple[int, Runs], int] = {}

    def keys(self, request: Request, blocks: int) -> list[int]:
        """Return the keys of the first `blocks` blocks."""
        known = self._keys.setdefault(request.id, [])
        rest = self._rest.get(request.id)
        if rest is None:
            rest = self._text(request)
        while len(known) < blocks:
            piece, rest = split(rest, self._block_size)
            parent = known[-1] if known else 0
            known.append(self._chains.setdefault((parent, piece), len(self._chains) + 1))
        self._rest[request.id] = rest
        return known[:blocks]

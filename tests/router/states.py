"""What a router is shown in a test: literal states of replicas, literal prompts."""

from __future__ import annotations

from dataclasses import dataclass, field

from simserve.core import Request

MS = 1_000_000
S = 1_000_000_000


@dataclass
class Seen:
    """State of one replica (the `Target` contract)."""

    outstanding_requests: int = 0
    waiting_requests: int = 0
    running_requests: int = 0
    tokens: int = 0
    kv: float = 0.0
    cached: int = 0
    block_size: int = 16
    kv_blocks: int = 1000
    max_num_batched_tokens: int | None = None
    below: dict[str, int] = field(default_factory=dict)
    cached_by_request: dict[int, int] = field(default_factory=dict)

    def outstanding_tokens(self, now_ns: int) -> int:
        return self.tokens

    def kv_use(self, now_ns: int) -> float:
        return self.kv

    def cached_tokens(self, request: Request, now_ns: int) -> int:
        return self.cached_by_request.get(request.id, self.cached)

    def cached_below(self, request: Request, now_ns: int) -> dict[str, int]:
        return self.below


class Given:
    """Prompts as lists of block keys, by request id."""

    def __init__(self, keys: dict[int, list[int]]) -> None:
        self._keys = keys

    def keys(self, request: Request, blocks: int) -> list[int]:
        assert blocks <= len(self._keys[request.id])
        return self._keys[request.id][:blocks]

    def forget(self, request: Request) -> None:
        pass


def request(number: int = 0, prompt: int = 100, at_ns: int = 0, priority: int = 0) -> Request:
    return Request(number, at_ns, prompt, 1 << 60, priority)


def idle(replicas: int) -> list[Seen]:
    return [Seen() for _ in range(replicas)]

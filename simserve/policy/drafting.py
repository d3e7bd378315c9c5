"""Which engines speculate here, and what their schedulers need to know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel

from simserve.core.acceptance import Acceptance
from simserve.core.verify import Drafting
from simserve.registry import Registry


@dataclass(frozen=True)
class DraftingEngine:
    """The schedulers of one engine with speculative decoding: policies that take a `drafting`."""

    whole: type
    """Of replicas that serve whole requests."""
    decode: type
    """Of the decoding replicas of a prefill/decode split."""
    drafting: Callable[[BaseModel, str, Acceptance, bool], Drafting]
    """From the policy's settings, the method, the draws, and whether KV comes from elsewhere."""
    settings: Callable[[BaseModel, str], BaseModel]
    """From the policy's settings and the method to the settings that the engine then has."""
    source: str
    """What all this follows, in words."""


DRAFTERS: Registry[DraftingEngine] = Registry("engine with speculative decoding", "simserve.policy")
"""By the name of the policy that speculates."""

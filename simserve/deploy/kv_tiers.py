"""KV tiers of one pool, built: stores that replicas may share, and what computing a prompt again takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from simserve.core import Chunk, Request
from simserve.deploy.combinations import features_of
from simserve.deploy.engine import ResolvedEngine
from simserve.engines.compatibility import WINDOWS_KEPT_WHOLE
from simserve.errors import ScenarioError
from simserve.kvcache.tiers import RecomputeNs, Store, TierCache, TierSpec
from simserve.latency import TableLatency
from simserve.latency.overhead import HostLink
from simserve.model import ModelSpec
from simserve.model.kv import KvGroups
from simserve.scenario.pool_spec import PoolSpec
from simserve.scenario.split_spec import KvTierPolicySpec, KvTierSpec
from simserve.units import GB, GIB, NS_PER_US

# Whether an engine keeps the KV of window layers apart in a pool, and why not.


class Grouping(NamedTuple):
    """How a pool keeps the KV of a model with windows."""

    groups: KvGroups | None
    """None: every layer keeps every token."""
    assumptions: tuple[str, ...]
    """What the report must say; nothing for a model without windows."""


COMPRESSED_ASSUMED = (
    "compressed attention: windows and states of a sequence are spread over its tokens, and a cached prefix "
    "is taken to have those that go with it"
)


def grouping(model: ModelSpec, spec: PoolSpec, engine: ResolvedEngine) -> Grouping:
    """Return the groups that the engine makes by default; raises `ScenarioError` for what it would refuse."""
    interval = engine.params.retention_interval
    if interval is not None and interval % engine.block_size:
        raise ScenarioError(
            key="prefix_cache_retention_interval",
            value=interval,
            allowed=f"multiples of block_size ({engine.block_size})",
        )
    if model.has_compressed:
        return Grouping(None, (COMPRESSED_ASSUMED,))
    if not _has_spans(model):
        return Grouping(None, ())
    groups = _groups_or_why_whole(model, spec, engine)
    if isinstance(groups, str):
        return Grouping(None, (f"window and chunk layers keep the KV of all tokens: {groups}",))
    return Grouping(groups, (f"KV of windows is given back as they pass: {groups.words}",))


def _groups_or_why_whole(model: ModelSpec, spec: PoolSpec, engine: ResolvedEngine) -> KvGroups | str:
    """Return the groups of a model with windows, or why these keep everything in this pool."""
    if engine.kind.windows is None:
        return f"{engine.label} has no pools for windows here"
    groups = engine.kind.windows(model, engine.params, engine.tokens_per_step(model.max_position_embeddings))
    if isinstance(groups, str):
        return groups
    asked = features_of(spec)
    whole = next((reason for feature, reason in WINDOWS_KEPT_WHOLE.items() if feature in asked), None)
    return whole or groups or f"{engine.label} does so for this mix of layers, or it is not modelled"


def _has_spans(model: ModelSpec) -> bool:
    return any(attention.bounded for group in model.layers for attention in group.attentions)


LEAST_BLOCK_TOKENS = 16
"""Tokens of the least block that is kept below HBM."""


def check_tiers(spec: PoolSpec, model: ModelSpec, engine: ResolvedEngine) -> None:
    """Refuse tiers where nothing can use them; raises `ScenarioError`."""
    if not spec.kv_tiers:
        if spec.kv_tier_policy is not None:
            raise ScenarioError("needs kv_tiers, which it governs", "kv_tier_policy")
        return
    if model.has_compressed:
        raise ScenarioError("is not modelled for compressed attention, whose windows move too", "kv_tiers")
    if not engine.params.caches_prefixes:
        raise ScenarioError(f"needs prefix caching ({engine.params.prefix_caching_option})", "kv_tiers")
    if engine.block_size < LEAST_BLOCK_TOKENS:
        raise ScenarioError(
            f"KV tiers move whole blocks: block_size is {engine.block_size}, allowed: {LEAST_BLOCK_TOKENS} "
            "or more; SGLang's pages are of one token by default, 64 is usual with its hierarchical cache"
        )


def tier_caches(
    spec: PoolSpec,
    engine: ResolvedEngine,
    latency: TableLatency,
    tiers: Sequence[KvTierSpec],
    *,
    gpus: int,
    gpus_per_node: int,
    token_bytes: float,
    token_bytes_of_gpus: float,
) -> Iterator[TierCache]:
    """Yield the tiers of each replica of the pool in turn.

    `token_bytes` of KV per token, `token_bytes_of_gpus` with the copies that GPUs hold of the same.
    """
    policy = spec.kv_tier_policy or KvTierPolicySpec.model_validate({})
    size = engine.block_size
    recompute_ns = recompute_time(latency, engine.tokens_per_step(1 << 40))
    stores: dict[tuple[int, int], Store] = {}
    for replica in range(spec.replicas):
        mine = []
        for level, tier in enumerate(tiers):
            group = {"replica": replica, "node": replica * gpus // max(gpus, gpus_per_node), "cluster": 0}
            key = (level, group[tier.shared_by])
            moved = token_bytes_of_gpus if tier.kind == "cpu" else token_bytes
            if key not in stores:
                stores[key] = Store(_spec(tier, ceil(size * token_bytes), ceil(size * moved)))
            mine.append(stores[key])
        yield TierCache(
            mine,
            block_size=size,
            recompute_ns=recompute_ns,
            write_through=policy.write == "through",
            inclusive=policy.inclusive,
            min_hit_tokens=policy.min_hit_tokens,
        )


def recompute_time(latency: TableLatency, budget: int) -> RecomputeNs:
    """Return a function that says what a prompt takes alone, in steps of at most `budget` tokens."""
    nobody = Request(0, 0, 1, 1)

    @lru_cache(maxsize=1 << 16)
    def step_ns(tokens: int, cached: int, last: bool) -> int:
        return latency.quietly_step_ns(0, 0, [Chunk(nobody, tokens, cached, last)])

    def recompute_ns(tokens: int, cached: int) -> int:
        total_ns, end = 0, cached + tokens
        while cached < end:
            new = min(budget, end - cached)
            total_ns += step_ns(new, cached, cached + new == end)
            cached += new
        return total_ns

    return recompute_ns


def tier_assumptions(tiers: Sequence[KvTierSpec], link: HostLink | None = None) -> tuple[str, ...]:
    """Return what was taken for granted about the tiers, in words; `link` is the host's, where measured."""
    words = ()
    if link and any(tier.kind == "cpu" for tier in tiers):
        words = (
            f"link to the host, measured: {link.read_gb_s:.1f} GB/s from it, {link.write_gb_s:.1f} to it, "
            f"{link.latency_us:.1f} us to begin; a tier's own figures come first",
        )
    return words + tuple(
        f"KV tier {tier.kind}: {tier.links} x {tier.read_gb_s:g} GB/s to HBM, {tier.links} x "
        f"{tier.write_gb_s:g} GB/s from it, {tier.latency_us:g} us to the first byte; reads and writes are "
        "served first come, first served, and HBM does not wait for a write"
        for tier in tiers
    )


def _spec(tier: KvTierSpec, stored_bytes: int, moved_bytes: int) -> TierSpec:
    assert tier.read_gb_s is not None
    assert tier.write_gb_s is not None
    assert tier.links is not None
    assert tier.latency_us is not None
    blocks = tier.capacity_blocks
    if blocks is None:
        blocks = int((tier.capacity_gib or 0) * GIB) // stored_bytes
    return TierSpec(
        kind=tier.kind,
        capacity_blocks=blocks,
        block_bytes=moved_bytes,
        read_bytes_per_s=round(tier.read_gb_s * GB) * tier.links,
        write_bytes_per_s=round(tier.write_gb_s * GB) * tier.links,
        latency_ns=round(tier.latency_us * NS_PER_US),
        shared_by=tier.shared_by,
        own_link=tier.kind != "ssd",
    )

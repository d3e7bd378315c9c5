"""SGLang as an engine: the modelled release and its defaults, and what else is true of it.

Defaults follow `arg_groups/memory_hook.py` of 0.5.23; docs/engines.md has all.
"""

from __future__ import annotations

from simserve.engines.engine import Engine, EnginePreset, Options
from simserve.engines.sglang.disagg import DISAGG
from simserve.engines.sglang.memory import memory_rules
from simserve.engines.sglang.options import chunk_tokens, page_tokens, running_requests, static_share
from simserve.engines.sglang.overhead import OVERHEAD
from simserve.engines.sglang.scheduler import SglangPolicy


def _defaults(gpu_memory_bytes: int, gpu_name: str, given: Options, max_model_len: int) -> Options:
    return {"chunked_prefill_size": chunk_tokens(gpu_memory_bytes)}


SGLANG = Engine(
    "sglang",
    "SGLang",
    SglangPolicy,
    presets=(
        EnginePreset(
            name="sglang-0.5.23",
            policy="sglang",
            tokens_per_block=page_tokens,
            memory=static_share,
            defaults=_defaults,
            source="SGLang 0.5.23, defaults of its server",
            release="0.5.23",
            by_placement=running_requests,
        ),
    ),
    overhead=OVERHEAD,
    pp=False,
    kv_tiers=True,
    memory_rules=memory_rules,
    disagg=DISAGG,
)

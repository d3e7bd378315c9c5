"""The memory ledger of one GPU: where its bytes go, and how many KV blocks are left.

The sums are in `ledger`; here the settings are checked, and a deployment that does not fit is refused.
"""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.hardware import GpuSpec
from simserve.model.draft import DraftMemory
from simserve.model.dtypes import WeightsDtype
from simserve.model.kv_groups import KvGroups
from simserve.model.ledger import MemoryLedger, raw_ledger
from simserve.model.memory_advice import explain_shortage
from simserve.model.memory_outside import outside_shortage
from simserve.model.memory_rules import VLLM, MemoryRules
from simserve.model.memory_settings import MemoryLine, MemorySettings
from simserve.model.parallel import Parallelism
from simserve.model.spec import ModelSpec

__all__ = ["MemoryLedger", "MemoryLine", "memory_ledger"]


def memory_ledger(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    *,
    weights_dtype: WeightsDtype,
    kv_dtype: str,
    block_size: int,
    gpu_memory_utilization: float,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int | None = None,
    rules: MemoryRules = VLLM,
    redundant_experts: int = 0,
    sequence_tokens: int | None = None,
    experts_dtype: str | None = None,
    kv_groups: KvGroups | None = None,
    attention_only: bool = False,
    draft: DraftMemory | None = None,
) -> MemoryLedger:
    """Return the ledger of one GPU, in bytes.

    `gpu_memory_utilization` is the share that the engine may use (SGLang: the static share). `rules` are the
    engine version's. `sequence_tokens` is a typical length over which windows, chunks and constant states
    are spread; None counts windows and chunks as if they grew like full attention (never too little).
    `experts_dtype` is the type of routed experts where it differs from `weights_dtype`. `kv_groups` is how
    the engine divides the layers where it lets windows give blocks back. `attention_only`: FFN layers are on
    other GPUs.

    Raises `ScenarioError` if the model, or one request of `max_model_len` tokens, does not fit, or if too
    little is left outside the share.
    """
    settings = MemorySettings(
        spec,
        gpu,
        parallelism,
        weights_dtype,
        kv_dtype,
        block_size,
        gpu_memory_utilization,
        max_num_batched_tokens,
        max_num_seqs,
        rules,
        redundant_experts,
        sequence_tokens,
        experts_dtype,
        kv_groups,
        attention_only,
        draft,
        max_model_len=max_model_len,
    )
    _check(settings)
    ledger = raw_ledger(settings)
    if ledger.kv_tokens < max(1, max_model_len or 0):
        raise ScenarioError(explain_shortage(settings, ledger, max_model_len))
    if why := outside_shortage(settings, ledger):
        raise ScenarioError(f"{spec.name} does not start on {gpu.name}: {why}")
    return ledger


def _check(settings: MemorySettings) -> None:
    share = settings.gpu_memory_utilization
    if not 0 < share <= 1:
        raise ScenarioError(f"gpu_memory_utilization = {share}, allowed is more than 0 and at most 1")
    for name in ("block_size", "max_num_batched_tokens", "max_num_seqs"):
        if getattr(settings, name) < 1:
            raise ScenarioError(f"{name} = {getattr(settings, name)}, allowed is 1 or more")
    if settings.sequence_tokens is not None and settings.sequence_tokens < 1:
        raise ScenarioError(f"sequence_tokens = {settings.sequence_tokens}, allowed is 1 or more")

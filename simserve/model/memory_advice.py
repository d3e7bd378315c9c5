"""Why a model does not fit, in words and numbers, and what would make it fit."""

from __future__ import annotations

from dataclasses import replace

from simserve.errors import ScenarioError
from simserve.model.ledger import MemoryLedger, raw_ledger
from simserve.model.memory_settings import MemorySettings
from simserve.model.parallel import Parallelism
from simserve.units import GB

_LARGEST_TP = 64


def explain_shortage(settings: MemorySettings, ledger: MemoryLedger, max_model_len: int | None) -> str:
    """Return the message for a ledger that holds fewer tokens than one request of `max_model_len` needs."""
    name, gpu = settings.spec.name, settings.gpu.name
    head = f"{name} does not fit on {gpu} with {_degrees(settings.parallelism)}"
    share = f"{settings.gpu_memory_utilization:g} of {settings.gpu.hbm_bytes / GB:.1f} GB"
    if ledger.kv_blocks > 0:
        cause = (
            f"one request of max_model_len = {max_model_len} tokens needs "
            f"{(max_model_len or 0) * ledger.kv_bytes_per_token / GB:.2f} GB of KV cache, and "
            f"{ledger.kv_bytes / GB:.2f} GB are left for it, {ledger.kv_tokens} tokens"
        )
    else:
        needed = sum(
            line.bytes for line in ledger.lines if line.name not in ("KV cache", "outside the share")
        )
        available = settings.gpu.hbm_bytes - ledger.line("outside the share").bytes
        cause = (
            f"weights and overheads need {needed / GB:.1f} GB per GPU and there are {available / GB:.1f} GB "
            f"({share}), with no room for a KV cache"
        )
    return f"{head} because {cause}. {_remedies(settings, ledger, max_model_len)}"


def _remedies(settings: MemorySettings, ledger: MemoryLedger, max_model_len: int | None) -> str:
    needed = max(1, max_model_len or 0)
    ways = [_wider(settings, needed)]
    if settings.weights_dtype in ("bf16", "fp16"):
        ways.append(_way("weights in fp8", replace(settings, weights_dtype="fp8"), needed))
    if settings.kv_dtype in ("bf16", "fp16") and ledger.kv_blocks > 0:
        ways.append(_way("a KV cache in fp8", replace(settings, kv_dtype="fp8"), needed))
    if ledger.kv_blocks > 0:
        ways.append(f"max_model_len of at most {ledger.kv_tokens}")
    known = [way for way in ways if way]
    if not known:
        return "Only a smaller model, more pipeline stages (pp) or larger GPUs would make it fit"
    return "It would fit with " + ", or ".join(known)


def _wider(settings: MemorySettings, needed_tokens: int) -> str | None:
    """The smallest tp that fits, at the same dp and pp, experts spreading over all GPUs if they do now."""
    degrees, tp = settings.parallelism, settings.parallelism.tp * 2
    while tp <= _LARGEST_TP:
        ep = degrees.ep * tp // degrees.tp if degrees.ep > 1 else 1
        wider = replace(settings, parallelism=replace(degrees, tp=tp, ep=ep))
        way = _way(f"tp {tp}, the smallest that does", wider, needed_tokens)
        if way:
            return way
        tp *= 2
    return None


def _way(words: str, settings: MemorySettings, needed_tokens: int) -> str | None:
    """`words` and the KV tokens that the settings leave; None if they do not help or are not possible."""
    try:
        tokens = raw_ledger(settings).kv_tokens
    except ScenarioError:  # degrees that do not divide the model
        return None
    return f"{words} ({tokens:,} KV tokens)" if tokens >= needed_tokens else None


def _degrees(parallelism: Parallelism) -> str:
    return ", ".join(f"{name} {value}" for name, value in vars(parallelism).items() if value > 1) or "tp 1"

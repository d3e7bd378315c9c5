"""Models: their layers, what they weigh, what they compute, and what they keep per token."""

from simserve.model.kv import kv_bytes_per_token, kv_bytes_per_token_per_rank
from simserve.model.load import load_model, preset_names
from simserve.model.memory import MemoryLedger, MemoryLine, memory_ledger
from simserve.model.params import active_params, flops_per_pair, flops_per_token, total_params
from simserve.model.spec import ModelSpec, Parallelism
from simserve.model.weights import (
    check_parallelism,
    weight_bytes_per_gpu,
    weight_bytes_read,
    weight_bytes_total,
)

__all__ = [
    "MemoryLedger",
    "MemoryLine",
    "ModelSpec",
    "Parallelism",
    "active_params",
    "check_parallelism",
    "flops_per_pair",
    "flops_per_token",
    "kv_bytes_per_token",
    "kv_bytes_per_token_per_rank",
    "load_model",
    "memory_ledger",
    "preset_names",
    "total_params",
    "weight_bytes_per_gpu",
    "weight_bytes_read",
    "weight_bytes_total",
]

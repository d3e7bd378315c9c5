"""Bytes per parameter of weight formats, and the kinds of KV cache.

A checkpoint's format holds for its matrices; embeddings, head, router and norms stay in 16 bits, as the
published FP8 and FP4 checkpoints keep them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from simserve.errors import ScenarioError, nearest

PLAIN_BYTES = 2.0
"""Bytes of a parameter that no format touches (16 bits)."""


@dataclass(frozen=True)
class WeightFormat:
    """Bytes per parameter, scales included."""

    name: str
    matrix_bytes: float
    """Parameters of attention, dense MLP and shared experts."""
    expert_bytes: float
    """Parameters of routed experts."""
    plain_bytes: float = PLAIN_BYTES
    """Parameters that no format touches."""


def _uniform(name: str, matrix_bytes: float) -> WeightFormat:
    return WeightFormat(name, matrix_bytes, matrix_bytes)


_FORMATS = {
    "fp32": WeightFormat("fp32", 4.0, 4.0, plain_bytes=4.0),
    "bf16": _uniform("bf16", 2.0),
    "fp16": _uniform("fp16", 2.0),
    "fp8": _uniform("fp8", 1.0),
    "fp8_block": _uniform("fp8_block", 1 + 4 / (128 * 128)),  # one fp32 scale per 128 x 128
    "int8": _uniform("int8", 1.0),
    "int4": _uniform("int4", 0.5 + 2 / 128),  # a 16-bit scale per 128 (GPTQ, AWQ)
    "nvfp4": _uniform("nvfp4", 0.5 + 1 / 16),  # an fp8 scale per 16
    "mxfp4": WeightFormat("mxfp4", 2.0, 0.5 + 1 / 32),  # gpt-oss: experts only, an 8-bit scale per 32
}
_WEIGHT_ALIASES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "fp4": "nvfp4",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
}
_KV_DTYPES = ("fp32", "bf16", "fp16", "fp8", "fp8_ds_mla", "int8", "int4")
_KV_ALIASES = {
    "auto": "bf16",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
}


def weight_format(dtype: str, experts_dtype: str | None = None) -> WeightFormat:
    """Return the format called `dtype`, with routed experts in another one if that is given.

    Raises `ScenarioError` naming the known ones.
    """
    matrices = _FORMATS[_canonical(dtype, _FORMATS, _WEIGHT_ALIASES, "weights dtype")]
    if experts_dtype is None:
        return matrices
    experts = _FORMATS[_canonical(experts_dtype, _FORMATS, _WEIGHT_ALIASES, "experts dtype")]
    return replace(matrices, expert_bytes=experts.expert_bytes)


def quantised_bytes() -> dict[str, float]:
    """Return the bytes of one element in each format, scales included, where the format holds."""
    return {name: fmt.expert_bytes for name, fmt in _FORMATS.items()}


def kv_cache_dtype(dtype: str) -> str:
    """Return the canonical name of a KV cache dtype; raises `ScenarioError` naming the known ones.

    `fp8_ds_mla` is FlashMLA's layout of a latent: 512 fp8 values, 4 fp32 scales, 64 rotary values in bf16.
    """
    return _canonical(dtype, _KV_DTYPES, _KV_ALIASES, "KV cache dtype")


def _canonical(dtype: str, known: Iterable[str], aliases: dict[str, str], kind: str) -> str:
    names = list(known)
    if dtype in names:
        return dtype
    if dtype in aliases:
        return aliases[dtype]
    raise ScenarioError(
        f"unknown {kind} {dtype!r}{nearest(dtype, [*names, *aliases])}; known: {', '.join(names)}"
    )

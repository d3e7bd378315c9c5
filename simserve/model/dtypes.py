"""Bytes per parameter of weight formats, the types of a checkpoint's parts, and the kinds of KV cache.

A format holds for the matrices of the layers; embedding, router and norms stay in 16 bits (32 with fp32),
as the published FP8 and FP4 checkpoints keep them, and so does the head unless it is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field

from simserve.errors import ScenarioError, nearest

PLAIN_BYTES = 2.0
"""Bytes of a parameter in 16 bits."""
_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1 + 4 / (128 * 128),  # one fp32 scale per 128 x 128
    "int8": 1.0,
    "int4": 0.5 + 2 / 128,  # a 16-bit scale per 128 (GPTQ, AWQ)
    "int4_g64": 0.5 + 2 / 64,
    "int4_g32": 0.5 + 2 / 32,
    "int4_channel": 0.5,
    "nf4": 0.5 + 4 / 64,  # bitsandbytes: an fp32 scale per 64
    "nf4_double": 0.5 + 1 / 64 + 4 / (64 * 256),  # the scales at 8 bit, with one of their own per 256
    "nvfp4": 0.5 + 1 / 16,  # an fp8 scale per 16
    "mxfp4": 0.5 + 1 / 32,  # an 8-bit scale per 32
}
"""Bytes per parameter, scales included."""
_MARLIN_FP8_BYTES = 1 + 2 / 128
_KERNELS = {
    "int4_g64": "int4",
    "int4_g32": "int4",
    "int4_channel": "int4",
    "nf4": "int4",
    "nf4_double": "int4",
}
"""The format by whose kernels a format is computed, where that is another."""
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
_PART_OF_KIND = {
    "attention": "attention",
    "dense_ffn": "dense",
    "shared_expert": "shared_experts",
    "routed_expert": "routed_experts",
    "head": "head",
}


class WeightTypes(BaseModel):
    """A type for each part of a checkpoint; a part that is not named keeps the checkpoint's own."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    attention: str | None = Field(None, description="Type of the attention's projections.")
    dense: str | None = Field(None, description="Type of dense MLPs.")
    shared_experts: str | None = Field(None, description="Type of shared experts.")
    routed_experts: str | None = Field(None, description="Type of routed experts.")
    head: str | None = Field(None, description="Type of the output head, where it is not the embedding.")

    @property
    def words(self) -> str:
        """The types, in words: `bf16, routed experts int4_g32`."""
        named = {name.replace("_", " "): dtype for name, dtype in self if dtype is not None}
        first = next(iter(named.values()), "bf16")
        rest = [f"{name} {dtype}" for name, dtype in named.items() if dtype != first]
        return ", ".join([first, *rest])

    @property
    def activation(self) -> str:
        """The type of hidden states, embedding, router and norms."""
        return self.head if self.head in ("fp16", "fp32") else "bf16"

    def of(self, kind: str) -> str:
        """Return the type of a part of that kind (see `parts.Kind`), once every part has one."""
        return str(getattr(self, _PART_OF_KIND[kind])) if kind in _PART_OF_KIND else self.activation


WeightsDtype = str | WeightTypes
"""What a deployment says of its weights: one format, or one for each part."""


@dataclass(frozen=True)
class WeightFormat:
    """Bytes per parameter of each kind of part, scales included."""

    types: WeightTypes
    marlin_fp8: bool = False
    """True if Marlin holds fp8 blocks: a 16-bit scale for each output and 128 inputs."""

    @property
    def expert_bytes(self) -> float:
        """Of routed experts."""
        return self.of("routed_expert")

    def of(self, kind: str) -> float:
        """Return the bytes per parameter of a part of that kind (see `parts.Kind`)."""
        dtype = self.types.of(kind)
        return _MARLIN_FP8_BYTES if self.marlin_fp8 and dtype == "fp8_block" else _BYTES[dtype]


def weight_types(dtype: WeightsDtype, experts_dtype: str | None = None) -> WeightTypes:
    """Return the type of every part: `dtype`, with routed experts in another one if that is given.

    One format is that of all matrices but the head; `mxfp4` alone means routed experts beside 16 bit, as in
    gpt-oss. Raises `ScenarioError` naming the known ones.
    """
    if isinstance(dtype, WeightTypes):
        known = {name: _weights(value) for name, value in dtype if value is not None}
        types = _uniform("bf16").model_copy(update=known)
    else:
        types = _uniform(_weights(dtype))
    if experts_dtype is None:
        return types
    return types.model_copy(update={"routed_experts": _weights(experts_dtype, "experts dtype")})


def weight_format(dtype: WeightsDtype, experts_dtype: str | None = None) -> WeightFormat:
    """Return the bytes of every part (arguments and errors as of `weight_types`)."""
    return WeightFormat(weight_types(dtype, experts_dtype))


def quantised_bytes() -> dict[str, float]:
    """Return the bytes of one element in each format, scales included, where the format holds."""
    return dict(_BYTES)


def kernel_types(dtype: WeightsDtype, experts_dtype: str | None = None) -> WeightTypes:
    """Return the type of every part by whose kernels it is computed."""
    types = weight_types(dtype, experts_dtype)
    return WeightTypes(**{name: _KERNELS.get(str(value), value) for name, value in types})


def dtype_words(dtype: WeightsDtype) -> str:
    """Return a format or the types of parts, in words."""
    return dtype if isinstance(dtype, str) else dtype.words


def _uniform(dtype: str) -> WeightTypes:
    matrices = "bf16" if dtype == "mxfp4" else dtype
    return WeightTypes(
        attention=matrices,
        dense=matrices,
        shared_experts=matrices,
        routed_experts=dtype,
        head=dtype if dtype in ("fp16", "fp32") else "bf16",
    )


def _weights(dtype: str, kind: str = "weights dtype") -> str:
    return _canonical(dtype, _BYTES, _WEIGHT_ALIASES, kind)


def kv_cache_dtype(dtype: str) -> str:
    """Return the canonical name of a KV cache dtype; raises `ScenarioError` naming the known ones.

    `fp8_ds_mla` is FlashMLA's layout of a latent: 512 fp8 values, 4 fp32 scales, 64 rotary values in bf16.
    """
    return _canonical(dtype, _KV_DTYPES, _KV_ALIASES, "KV cache dtype")


_INT4_GROUP = 64
"""Values that share a 16-bit scale in an int4 cache [assumption: 64, the finer of the usual 64 to 128]."""


def vector_bytes(values: int, dtype: str) -> int:
    """Return the bytes of one token's key (or value) of one head in a KV cache dtype, scales included."""
    match dtype:
        case "fp32":
            return 4 * values
        case "bf16" | "fp16":
            return 2 * values
        case "fp8":
            return values
        case "int8":
            return values + 2
        case _:
            return -(-values // 2) + 2 * -(-values // _INT4_GROUP)


def _canonical(dtype: str, known: Iterable[str], aliases: dict[str, str], kind: str) -> str:
    names = list(known)
    if dtype in names:
        return dtype
    if dtype in aliases:
        return aliases[dtype]
    raise ScenarioError(
        f"unknown {kind} {dtype!r}{nearest(dtype, [*names, *aliases])}; known: {', '.join(names)}"
    )


# The types that a checkpoint ships in, and what a deployment of it holds.
#
# `quantization` reads them from a configuration; a model without any is in 16 bit.

AUTO = "auto"
"""What a deployment says that leaves a type to the checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """What is served unless a deployment says otherwise."""

    weights: WeightsDtype = "bf16"
    kv: str = "bf16"
    source: str = ""
    """What says so; empty if nothing does (16 bit)."""
    unpriced: str = ""
    """Why the weights have no price, where they have none."""

    def weights_dtype(self, asked: WeightsDtype) -> WeightsDtype:
        """Return what a deployment that asks for `asked` holds; raises `ScenarioError` without a price."""
        if isinstance(asked, str) and asked != AUTO:
            return asked
        if self.unpriced:
            raise ScenarioError(f"{self.unpriced}; weights_dtype can say what to take instead")
        if isinstance(asked, str):
            return self.weights
        return weight_types(self.weights).model_copy(update={name: value for name, value in asked if value})

    def kv_dtype(self, asked: str) -> str:
        """Return the type of the KV cache of a deployment that asks for `asked`."""
        return self.kv if asked == AUTO else asked

    def with_fixed(self, fixed: Checkpoint) -> Checkpoint:
        """Return it with the types that the architecture itself fixes: of some parts, of the KV cache."""
        weights, kv = self.weights, self.kv
        if isinstance(fixed.weights, WeightTypes):
            known = {name: value for name, value in fixed.weights if value}
            weights = weight_types(weights).model_copy(update=known)
        return replace(self, weights=weights, kv=fixed.kv if kv == "bf16" else kv)


PLAIN = Checkpoint()
"""A checkpoint in 16 bit."""

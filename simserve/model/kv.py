"""What a model keeps per token and per sequence: KV cache, latents, and states of constant size.

Layer rules of the domain page, section 2. Every figure is a whole number of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.errors import ScenarioError
from simserve.model.dtypes import kv_cache_dtype
from simserve.model.parallel import Parallelism
from simserve.model.spec import Attention, GqaAttention, LinearAttention, MlaAttention, ModelSpec
from simserve.model.stages import pipeline_stages

_INT4_GROUP = 64
"""Values that share a 16-bit scale in an int4 cache [assumption: 64, the finer of the usual 64 to 128]."""
_INDEX_KEY_SCALE_BYTES = 4
_FLASH_MLA_SCALES = 4


@dataclass(frozen=True)
class KvFootprint:
    """Cache of the layers of one pipeline stage (or of all layers) on one rank."""

    growing_bytes: int
    """Per token, in layers that keep every token."""
    bounded_bytes: int
    """Per token, in layers that keep a window or a chunk; charged only up to their span."""
    bounded_bytes_per_sequence: int
    """Most that those layers keep for one sequence."""
    state_bytes_per_sequence: int
    """Constant states of linear attention."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token of a short sequence needs: all layers."""
        return self.growing_bytes + self.bounded_bytes

    def mean_bytes_per_token(self, sequence_tokens: int | None) -> float:
        """Return the bytes per token in sequences of that length, bounded layers and states spread over it.

        None takes sequences as no longer than the spans, and leaves states out: an upper bound of the first.
        """
        if sequence_tokens is None:
            return float(self.bytes_per_token)
        bounded = min(self.bounded_bytes * sequence_tokens, self.bounded_bytes_per_sequence)
        return self.growing_bytes + (bounded + self.state_bytes_per_sequence) / sequence_tokens


def kv_bytes_per_token(spec: ModelSpec, kv_dtype: str = "bf16") -> int:
    """Return the bytes of one token in all layers, unsharded. Windows and chunks count as if not yet full."""
    return kv_footprint(spec, Parallelism(), kv_dtype).bytes_per_token


def kv_bytes_per_token_per_rank(spec: ModelSpec, parallelism: Parallelism, kv_dtype: str = "bf16") -> int:
    """Return the bytes of one token on one GPU of the pipeline stage that keeps most.

    Keys and values are split over tp down to whole heads, then replicated; latents are always replicated.
    """
    return kv_footprint(spec, parallelism, kv_dtype).bytes_per_token


def kv_footprint(spec: ModelSpec, parallelism: Parallelism, kv_dtype: str = "bf16") -> KvFootprint:
    """Return the footprint on one GPU of the pipeline stage that keeps most."""
    stages = pipeline_stages(spec, parallelism.pp)
    footprints = (stage_footprint(spec, stage.layers, parallelism.tp, kv_dtype) for stage in stages)
    return max(footprints, key=lambda footprint: (footprint.bytes_per_token, footprint.growing_bytes))


def stage_footprint(spec: ModelSpec, layers: tuple[int, ...], tp: int, kv_dtype: str) -> KvFootprint:
    """Return the footprint of a stage that holds `layers[i]` layers of group i."""
    growing = bounded = bounded_sequence = state = 0
    for count, group in zip(layers, spec.layers, strict=True):
        for attention in group.attentions:
            token = count * token_bytes(attention, tp, kv_dtype)
            if isinstance(attention, LinearAttention):
                state += count * _ceil(attention.state_bytes, tp)
            elif isinstance(attention, GqaAttention) and attention.span != "full":
                bounded += token
                bounded_sequence += token * attention.span_tokens
            else:
                growing += token
    return KvFootprint(growing, bounded, bounded_sequence, state)


def token_bytes(attention: Attention, tp: int, kv_dtype: str) -> int:
    """Return the bytes that one token needs in one attention, on one of `tp` ranks."""
    dtype = kv_cache_dtype(kv_dtype)
    match attention:
        case GqaAttention():
            if dtype == "fp8_ds_mla":
                raise ScenarioError("KV cache dtype 'fp8_ds_mla' is for latent attention only; use fp8")
            heads = max(1, _ceil(attention.num_key_value_heads, tp))
            return 2 * heads * _vector_bytes(attention.head_dim, dtype)
        case MlaAttention():
            return _latent_bytes(attention, dtype) + _index_bytes(attention)
        case LinearAttention():
            return 0


def _latent_bytes(attention: MlaAttention, dtype: str) -> int:
    latent, rope = attention.kv_lora_rank, attention.qk_rope_head_dim
    if dtype == "fp8_ds_mla":
        return latent + 4 * _FLASH_MLA_SCALES + 2 * rope
    return _vector_bytes(latent + rope, dtype)


def _index_bytes(attention: MlaAttention) -> int:
    """The indexer's own fp8 key with one fp32 scale (DeepSeek-V3.2)."""
    return attention.index_head_dim + _INDEX_KEY_SCALE_BYTES if attention.index_topk else 0


def _vector_bytes(values: int, dtype: str) -> int:
    """Bytes of one token's key (or value) of one head, scales included."""
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
            return _ceil(values, 2) + 2 * _ceil(values, _INT4_GROUP)


def _ceil(value: int, parts: int) -> int:
    return -(-value // parts)

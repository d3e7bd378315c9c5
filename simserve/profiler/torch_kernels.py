"""Serving kernels in plain torch: what is measured where no kernel library is installed, and on a CPU.

The KV cache is paged: [blocks, block size, heads, elements], a sequence's tokens in the blocks of its row
of the block table. `benchmarks/closed_loop_cpu.py` serves a model with these very functions.
"""

from __future__ import annotations

from typing import Any

from simserve.profiler.device import need_torch

EPSILON = 1e-6
"""What norms add to the mean square."""


def gathered(cache: Any, block_table: Any, dtype: Any = None) -> Any:
    """Return [sequences, heads, blocks * block size, elements] of the blocks in `block_table`.

    A cache in another dtype (fp8) is turned into `dtype`, if given.
    """
    found = cache[block_table]
    sequences, blocks, size, heads, elements = found.shape
    found = found.view(sequences, blocks * size, heads, elements).transpose(1, 2)
    return found if dtype is None else found.to(dtype)


def padded_decode(
    q: Any, k_cache: Any, v_cache: Any, block_table: Any, lengths: Any, scale: float, window: int = 0
) -> Any:
    """Return attention of one query per sequence, [sequences, q_heads, d] to the same; `lengths` int64.

    All in one call, padded to the longest: for a GPU.
    """
    torch = need_torch()
    k, v = gathered(k_cache, block_table, q.dtype), gathered(v_cache, block_table, q.dtype)
    place = torch.arange(k.shape[2], device=q.device)
    seen = place[None, :] < lengths[:, None]
    if window:
        seen &= place[None, :] >= (lengths - window)[:, None]
    out = torch.nn.functional.scaled_dot_product_attention(
        q.unsqueeze(2), k, v, attn_mask=seen[:, None, None, :], scale=scale, enable_gqa=True
    )
    return out.squeeze(2)


def paged_decode(
    q: Any, k_cache: Any, v_cache: Any, block_table: Any, lengths: Any, scale: float, window: int = 0
) -> Any:
    """Return what `padded_decode` does, one sequence after another, so that nothing is padded: for a CPU."""
    torch = need_torch()
    out = torch.empty(*q.shape[:2], v_cache.shape[-1], dtype=q.dtype)
    size = k_cache.shape[1]
    for index, length in enumerate(lengths.tolist()):
        first = max(0, length - window) if window else 0
        row = block_table[index, first // size : -(-length // size)]
        seen = slice(first % size, first % size + length - first)
        k, v = (
            cache[row].view(-1, *cache.shape[2:])[seen].transpose(0, 1).unsqueeze(0).to(q.dtype)
            for cache in (k_cache, v_cache)
        )
        out[index] = torch.nn.functional.scaled_dot_product_attention(
            q[index, :, None].unsqueeze(0), k, v, scale=scale, enable_gqa=True
        )[0, :, 0]
    return out


def paged_prefill(
    q: Any, k_cache: Any, v_cache: Any, block_table: Any, cached: int, scale: float, window: int = 0
) -> Any:
    """Return causal attention of equal chunks after `cached` tokens each, [sequences, new, q_heads, d]."""
    torch = need_torch()
    new = q.shape[1]
    k, v = (gathered(cache, block_table, q.dtype)[:, :, : cached + new] for cache in (k_cache, v_cache))
    mask = None
    if cached or window:
        mask = chunk_mask(new, cached, window, q.device)
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )
    return out.transpose(1, 2)


def chunk_mask(new: int, cached: int, window: int, device: Any) -> Any:
    """Return the mask of a chunk after `cached` tokens: bool [new, cached + new], True where a key is seen.

    On a GPU without a window it is torch's own lower-right causal mask, which its flash kernels take as it
    is.
    """
    torch = need_torch()
    if device.type == "cuda" and not window:
        from torch.nn.attention.bias import causal_lower_right

        return causal_lower_right(new, cached + new)
    place = torch.arange(cached, cached + new, device=device)[:, None]
    key = torch.arange(cached + new, device=device)[None, :]
    seen = key <= place
    return seen & (key > place - window) if window else seen


def absorbed_padded_decode(
    q: Any, cache: Any, block_table: Any, lengths: Any, value_elements: int, scale: float
) -> Any:
    """Return absorbed MLA: queries [sequences, heads, latent + rope] on a cache of one shared head.

    The result lies in the latent space: [sequences, heads, value_elements]. Padded to the longest sequence.
    """
    torch = need_torch()
    latent = gathered(cache, block_table, q.dtype)
    seen = torch.arange(latent.shape[2], device=q.device)[None, :] < lengths[:, None]
    out = torch.nn.functional.scaled_dot_product_attention(
        q.unsqueeze(1), latent, latent[..., :value_elements], attn_mask=seen[:, None, None, :], scale=scale
    )
    return out.squeeze(1)


def absorbed_decode(
    q: Any, cache: Any, block_table: Any, lengths: Any, value_elements: int, scale: float
) -> Any:
    """Return what `absorbed_padded_decode` does, one sequence after another: for a CPU."""
    torch = need_torch()
    out = torch.empty(*q.shape[:2], value_elements, dtype=q.dtype)
    size = cache.shape[1]
    for index, length in enumerate(lengths.tolist()):
        latent = cache[block_table[index, : -(-length // size)]].view(-1, cache.shape[-1])[:length]
        latent = latent.to(q.dtype)
        shares = torch.softmax(q[index] @ latent.T * scale, -1)
        torch.matmul(shares, latent[:, :value_elements], out=out[index])
    return out


def expanded_keys(made: Any, rotary: Any, nope: int) -> Any:
    """Return keys [tokens, heads, nope + rope] of `made` [tokens, heads, nope + v] and rotary parts.

    `rotary` is [tokens, rope], shared by the heads.
    """
    made = made[..., :nope]
    rope = rotary[:, None, :].expand(-1, made.shape[1], -1)
    return need_torch().cat((made, rope), -1)


def expanded_prefill(q: Any, k: Any, v: Any, cached: int, scale: float) -> Any:
    """Return causal attention of expanded MLA chunks: q [s, h, new, dk], k [s, h, keys, dk], v [.., dv]."""
    torch = need_torch()
    mask = chunk_mask(q.shape[2], cached, 0, q.device) if cached else None
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale
    )


def experts_layer(x: Any, ids: Any, weights: Any, up: Any, down: Any, grouped: bool = False) -> Any:
    """Return sum over picks of weight * down(silu(gate(x)) * up(x)).

    x [tokens, hidden], ids and weights [tokens, picks], up [experts, 2 * inter, hidden] (gate first), down
    [experts, hidden, inter]. `grouped` takes torch's grouped product (GPU, bf16) instead of one product per
    expert.
    """
    torch = need_torch()
    silu = torch.nn.functional.silu
    linear = torch.nn.functional.linear
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    rows = order // ids.shape[1]
    # Not bincount, which waits for the GPU and so cannot be captured in a CUDA graph.
    counts = torch.zeros(up.shape[0], dtype=torch.int64, device=x.device)
    counts.index_add_(0, flat, torch.ones_like(flat))
    sorted_x = x[rows]
    if grouped:
        multiply = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        ends = counts.cumsum(0).to(torch.int32)
        gate, value = multiply(sorted_x, up.transpose(1, 2), offs=ends).chunk(2, -1)
        made = multiply(silu(gate) * value, down.transpose(1, 2), offs=ends)
    else:
        parts, start = [], 0
        for expert, count in enumerate(counts.tolist()):
            if count:
                gate, value = linear(sorted_x[start : start + count], up[expert]).chunk(2, -1)
                parts.append(linear(silu(gate) * value, down[expert]))
                start += count
        made = torch.cat(parts)
    made = made * weights.flatten()[order].unsqueeze(1).to(made.dtype)
    return torch.zeros_like(x).index_add_(0, rows, made)


def add_rmsnorm(x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
    """Return (norm of x + residual, x + residual)."""
    summed = x + residual
    return rmsnorm(summed, weight), summed


def rmsnorm(x: Any, weight: Any) -> Any:
    """Return x over its root mean square, times a learned weight."""
    return need_torch().nn.functional.rms_norm(x, (x.shape[-1],), weight, EPSILON)


def rope_write(x: Any, cos: Any, sin: Any, written: Any, cache: Any, slots: Any) -> Any:
    """Return x rotated (see `rotate`), having put `written` into rows `slots` of the cache."""
    cache.index_copy_(0, slots, written)
    return rotate(x, cos, sin)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Return x [tokens, heads, d] turned by the angles whose cosines and sines are [tokens, d / 2]."""
    first, second = x.chunk(2, -1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return need_torch().cat((first * cos - second * sin, second * cos + first * sin), -1)


def silu_mul(x: Any) -> Any:
    """Return silu(first half) * second half of each row."""
    gate, value = x.chunk(2, -1)
    return need_torch().nn.functional.silu(gate) * value

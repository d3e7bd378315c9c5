"""Random-weight models from simserve's own model specs: Llama-like (GQA, dense) and DeepSeek-like (MLA,
MoE)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from simserve.model.layers import Attention, DenseFfn, GqaAttention, MlaAttention, MoeFfn
from simserve.model.spec import ModelSpec
from simserve.profiler import torch_kernels as kernels


@dataclass
class Chunk:
    """One prompt's tokens of a step: rows `start` .. `stop` of it, after `cached` tokens."""

    start: int
    stop: int
    cached: int
    table: Tensor
    """int64 [1, blocks]."""


@dataclass
class Inputs:
    """Tensors of a step; the first `decodes` tokens are of decoding sequences, one each."""

    tokens: Tensor
    slots: Tensor
    """Row of the cache of each token."""
    cos: Tensor
    sin: Tensor
    decodes: int
    table: Tensor
    lengths: Tensor
    chunks: list[Chunk]
    sampled: Tensor
    """Rows that get a next token."""


def weight(*shape: int) -> Tensor:
    return torch.randn(shape) * shape[-1] ** -0.5


class Gqa:
    def __init__(self, spec: GqaAttention, hidden: int, blocks: int, block: int) -> None:
        self.spec = spec
        self.h, self.kv, self.d = spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim
        self.qkv = weight((self.h + 2 * self.kv) * self.d, hidden)
        self.out = weight(hidden, self.h * self.d)
        self.k_cache, self.v_cache = (torch.zeros(blocks, block, self.kv, self.d) for _ in range(2))

    def __call__(self, x: Tensor, step: Inputs) -> Tensor:
        made = linear(x, self.qkv).view(len(x), self.h + 2 * self.kv, self.d)
        values = made[:, self.h + self.kv :]
        flat_v = self.v_cache.view(-1, self.kv * self.d)
        turned = kernels.rope_write(
            made[:, : self.h + self.kv], step.cos, step.sin, values.reshape(len(x), -1), flat_v, step.slots
        )
        self.k_cache.view(-1, self.kv * self.d).index_copy_(
            0, step.slots, turned[:, self.h :].reshape(len(x), -1)
        )
        q, scale, parts = turned[:, : self.h], self.d**-0.5, []
        if step.decodes:
            parts.append(
                kernels.paged_decode(
                    q[: step.decodes], self.k_cache, self.v_cache, step.table, step.lengths, scale
                )
            )
        for chunk in step.chunks:
            own = q[chunk.start : chunk.stop].unsqueeze(0)
            parts.append(
                kernels.paged_prefill(own, self.k_cache, self.v_cache, chunk.table, chunk.cached, scale)[0]
            )
        return linear(torch.cat(parts).reshape(len(x), -1), self.out)


class Mla:
    def __init__(self, spec: MlaAttention, hidden: int, blocks: int, block: int) -> None:
        self.spec, self.h = spec, spec.num_attention_heads
        rank, self.lora, self.rope = spec.q_lora_rank, spec.kv_lora_rank, spec.qk_rope_head_dim
        self.nope, self.v = spec.qk_nope_head_dim, spec.v_head_dim
        self.down = weight(rank + self.lora + self.rope, hidden)
        self.q_norm, self.kv_norm = torch.ones(rank), torch.ones(self.lora)
        self.q_up = weight(self.h * (self.nope + self.rope), rank)
        self.kv_up = weight(self.h * (self.nope + self.v), self.lora)
        parts = self.kv_up.view(self.h, self.nope + self.v, self.lora)
        self.w_uk = parts[:, : self.nope].contiguous()
        self.w_uv = parts[:, self.nope :].transpose(1, 2).contiguous()
        self.out = weight(hidden, self.h * self.v)
        self.cache = torch.zeros(blocks, block, 1, self.lora + self.rope)

    def __call__(self, x: Tensor, step: Inputs) -> Tensor:
        rank = self.spec.q_lora_rank
        down = linear(x, self.down)
        q = linear(kernels.rmsnorm(down[:, :rank], self.q_norm), self.q_up).view(len(x), self.h, -1)
        latent = kernels.rmsnorm(down[:, rank : rank + self.lora], self.kv_norm)
        flat = self.cache.view(-1, self.lora + self.rope)
        both = torch.cat((q[..., self.nope :], down[:, None, rank + self.lora :]), 1)
        turned = kernels.rotate(both, step.cos, step.sin)
        flat.index_copy_(0, step.slots, torch.cat((latent, turned[:, -1]), -1))
        q_nope, q_rope = q[..., : self.nope], turned[:, :-1]
        scale, parts = (self.nope + self.rope) ** -0.5, []
        if step.decodes:
            parts.append(self._decode(q_nope[: step.decodes], q_rope[: step.decodes], step, scale))
        for chunk in step.chunks:
            rows = slice(chunk.start, chunk.stop)
            parts.append(self._prefill(q_nope[rows], q_rope[rows], chunk, scale))
        return linear(torch.cat(parts).reshape(len(x), -1), self.out)

    def _decode(self, q_nope: Tensor, q_rope: Tensor, step: Inputs, scale: float) -> Tensor:
        absorbed = torch.bmm(q_nope.transpose(0, 1), self.w_uk).transpose(0, 1)
        queries = torch.cat((absorbed, q_rope), -1)
        seen = kernels.absorbed_decode(queries, self.cache, step.table, step.lengths, self.lora, scale)
        return torch.bmm(seen.transpose(0, 1), self.w_uv).transpose(0, 1)

    def _prefill(self, q_nope: Tensor, q_rope: Tensor, chunk: Chunk, scale: float) -> Tensor:
        keys = chunk.cached + chunk.stop - chunk.start
        latents = kernels.gathered(self.cache, chunk.table)[0, 0, :keys]
        made = linear(latents[:, : self.lora], self.kv_up).view(keys, self.h, self.nope + self.v)
        k = kernels.expanded_keys(made, latents[:, self.lora :], self.nope).transpose(0, 1).unsqueeze(0)
        v = made[..., self.nope :].transpose(0, 1).unsqueeze(0)
        q = torch.cat((q_nope, q_rope), -1).transpose(0, 1).unsqueeze(0)
        return kernels.expanded_prefill(q, k, v, chunk.cached, scale)[0].transpose(0, 1)


class Mlp:
    def __init__(self, hidden: int, inter: int) -> None:
        self.up, self.down = weight(2 * inter, hidden), weight(hidden, inter)

    def __call__(self, x: Tensor) -> Tensor:
        return linear(kernels.silu_mul(linear(x, self.up)), self.down)


class Moe:
    def __init__(self, ffn: MoeFfn, hidden: int) -> None:
        self.ffn = ffn
        self.gate = weight(ffn.n_routed_experts, hidden)
        self.up = weight(ffn.n_routed_experts, 2 * ffn.moe_intermediate_size, hidden)
        self.down = weight(ffn.n_routed_experts, hidden, ffn.moe_intermediate_size)
        self.shared = Mlp(hidden, ffn.shared_intermediate_size) if ffn.shared_intermediate_size else None

    def __call__(self, x: Tensor) -> Tensor:
        shares = torch.softmax(linear(x, self.gate), -1)
        weights, ids = torch.topk(shares, self.ffn.num_experts_per_tok, -1)
        out = kernels.experts_layer(x, ids, weights, self.up, self.down)
        return out + self.shared(x) if self.shared else out


def mixer_of(attention: Attention, hidden: int, blocks: int, block_size: int) -> Gqa | Mla:
    """Return the attention of a layer; raises `ValueError` for kinds that this engine does not serve."""
    if isinstance(attention, GqaAttention):
        return Gqa(attention, hidden, blocks, block_size)
    if isinstance(attention, MlaAttention):
        return Mla(attention, hidden, blocks, block_size)
    raise ValueError(f"{type(attention).__name__}: only attention of heads (GQA) and MLA")


class Model:
    """All layers; weights and caches are made at once."""

    def __init__(self, spec: ModelSpec, blocks: int, block_size: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        hidden = self.hidden = spec.hidden_size
        self.embedding, self.head = weight(spec.vocab_size, hidden), weight(spec.vocab_size, hidden)
        self.norm = torch.ones(hidden)
        self.layers = []
        self.rope_dim = 0
        for index in spec.order:
            (attention,), (ffn,) = spec.layers[index].attentions, spec.layers[index].ffns
            mixer = mixer_of(attention, hidden, blocks, block_size)
            self.rope_dim = mixer.d if isinstance(mixer, Gqa) else mixer.rope
            mlp = Mlp(hidden, ffn.intermediate_size) if isinstance(ffn, DenseFfn) else Moe(ffn, hidden)
            self.layers.append((torch.ones(hidden), mixer, torch.ones(hidden), mlp))
        half = self.rope_dim // 2
        angles = torch.arange(spec.max_position_embeddings)[:, None] / 10000 ** (torch.arange(half) / half)
        self.cos, self.sin = angles.cos(), angles.sin()

    @torch.inference_mode()
    def __call__(self, step: Inputs) -> list[int]:
        """Compute a step; return the next token of each row in `step.sampled`."""
        x = torch.nn.functional.embedding(step.tokens, self.embedding)
        residual = torch.zeros_like(x)
        for first_norm, mixer, second_norm, mlp in self.layers:
            x, residual = kernels.add_rmsnorm(x, residual, first_norm)
            x, residual = kernels.add_rmsnorm(mixer(x, step), residual, second_norm)
            x = mlp(x)
        rows = step.sampled
        last = kernels.rmsnorm((x + residual)[rows], self.norm)
        return torch.argmax(linear(last, self.head), -1).tolist()

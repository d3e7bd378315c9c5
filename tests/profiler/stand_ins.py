"""Stand-ins for what this machine lacks: a GPU's events and graphs, and the kernel libraries.

The device is a CPU that calls itself a Hopper GPU: the profiler takes its paths for GPUs, on tensors of the
CPU. Graphs record torch's operations and run them again; what waits for the GPU cannot be captured, as on a
real one. The libraries have the argument names and layouts of the releases named beside them, and compute in
float64.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simserve.profiler import need
from simserve.profiler.device import Device

WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::bincount")
"""Operations whose results a GPU must hand to the CPU first."""


class Event:
    """A CUDA event by the wall clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, end: Event) -> float:
        return 1000 * (end.at - self.at)


class Recorder(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in WAITING:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        self.graph.calls.append((func, args, kwargs or {}))
        return out


class Graph:
    """A CUDA graph: what was called, to be called again."""

    replayed = 0

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any]] = []

    def replay(self) -> None:
        Graph.replayed += 1
        for func, args, kwargs in self.calls:
            func(*args, **kwargs)


@contextmanager
def recording(graph: Graph):
    with Recorder(graph):
        yield


@contextmanager
def nothing(*_: Any):
    yield


class Stream:
    def wait_stream(self, _: Stream) -> None:
        return None


def as_gpu(patch: pytest.MonkeyPatch, capability: int = 90) -> Device:
    """Return a device that is a GPU to the profiler, in place of torch's CUDA."""
    cuda = torch.cuda
    for name, value in {
        "Event": Event, "CUDAGraph": Graph, "graph": recording, "Stream": Stream, "stream": nothing,
        "current_stream": Stream, "synchronize": lambda: None, "empty_cache": lambda: None,
        "device_count": lambda: 1, "mem_get_info": lambda: (2 * 10**9, 4 * 10**9),
    }.items():  # fmt: skip
        patch.setattr(cuda, name, value)
    return Device("cuda", "a CPU in place of a GPU", 2**20, capability, "cpu")


def install(patch: pytest.MonkeyPatch, **modules: Any) -> None:
    """Let `need.library` find these modules, and importing them by name, too."""
    import sys

    known = need.library
    patch.setattr(need, "version_of", lambda name: "0")
    for name, module in modules.items():
        patch.setitem(sys.modules, name.replace("__", "."), module)

    def library(name: str) -> Any:
        return modules.get(name) or (None if name in need.LIBRARIES and name != "torch" else known(name))

    for user in [one for key, one in sys.modules.items() if key.startswith("simserve.profiler")]:
        if hasattr(user, "library"):
            patch.setattr(user, "library", library)
        if hasattr(user, "version_of"):
            patch.setattr(user, "version_of", lambda name: "0")


def _attend(q: Any, k: Any, v: Any, scale: float, window: int) -> Any:
    """Causal attention of one sequence, queries last: [tokens, heads, d] in float64."""
    group = q.shape[1] // k.shape[1]
    k, v = (part.double().repeat_interleave(group, 1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    place = torch.arange(len(k) - len(q), len(k))[:, None]
    key = torch.arange(len(k))[None]
    hidden = (key > place) | ((key <= place - window) if window else False)
    return torch.einsum("hqk,khd->qhd", torch.softmax(scores.masked_fill(hidden, -torch.inf), -1), v)


def _paged(q: Any, caches: Any, table: Any, lengths: Any, starts: Any, scale: float, window: int) -> Any:
    out = []
    for index, length in enumerate(lengths.tolist()):
        k, v = (cache[table[index].long()].flatten(0, 1)[:length] for cache in caches)
        out.append(_attend(q[starts[index] : starts[index + 1]], k, v, scale, window))
    return torch.cat(out)


def _int32(*tensors: Any) -> None:
    for tensor in tensors:
        assert tensor.dtype == torch.int32, tensor.dtype


def flash_attn() -> Any:
    """flash-attn 2.8."""

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        _int32(cu_seqlens_q, cu_seqlens_k, block_table)
        assert causal
        assert k.shape[1] % 256 == 0
        lengths = cu_seqlens_k.diff()
        assert int(lengths.max()) == max_seqlen_k
        assert int(cu_seqlens_q.diff().max()) == max_seqlen_q
        return _paged(q, (k, v), block_table, lengths, cu_seqlens_q, softmax_scale, window_size[0] + 1).to(
            q.dtype
        )

    return SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)


def vllm_flash_attn() -> Any:
    """vLLM 0.33.0's build of flash-attn."""

    def flash_attn_varlen_func(
        q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None,
        dropout_p=0.0, softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None,
        scheduler_metadata=None, q_descale=None, k_descale=None, v_descale=None, num_splits=0,
        output_scale=None, fa_version=2,
    ):  # fmt: skip
        _int32(cu_seqlens_q)
        assert causal
        assert fa_version == 3
        if block_table is None:
            parts = [
                _attend(q[a:b], k[c:d], v[c:d], softmax_scale, 0)
                for a, b, c, d in zip(
                    cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:], strict=False
                )
            ]
            return torch.cat(parts).to(q.dtype)
        _int32(block_table, seqused_k)
        if k.dtype == torch.float8_e4m3fn:
            assert q.dtype == k.dtype
            assert q_descale.shape == (len(seqused_k), k.shape[2])
        made = _paged(q, (k, v), block_table, seqused_k, cu_seqlens_q, softmax_scale, window_size[0] + 1)
        return made.to(torch.bfloat16)

    return SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)


class _Pages:
    """What FlashInfer's wrappers share."""

    def __init__(self, float_workspace_buffer: Any, kv_layout: str = "NHD", **_: Any) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert kv_layout == "NHD"

    def _plan(self, indptr: Any, indices: Any, last: Any, size: int, scale: float, window_left: int) -> None:
        _int32(indptr, indices, last)
        rows = [indices[a:b] for a, b in pairwise(indptr.tolist())]
        widest = max(map(len, rows))
        self.table = torch.stack([torch.cat([row, row[:1].repeat(widest - len(row))]) for row in rows])
        self.lengths = (indptr.diff() - 1) * size + last
        self.scale, self.window = scale, window_left + 1

    def run(self, q: Any, paged_kv_cache: Any) -> Any:
        made = _paged(q, paged_kv_cache, self.table, self.lengths, self.starts, self.scale, self.window)
        return made.to(q.dtype)


class _DecodeWrapper(_Pages):
    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *, q_data_type,
        kv_data_type, window_left, sm_scale,
    ):  # fmt: skip
        self._plan(indptr, indices, last_page_len, page_size, sm_scale, window_left)
        self.starts = torch.arange(len(indptr))


class _PrefillWrapper(_Pages):
    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size, *, causal, q_data_type, kv_data_type, window_left, sm_scale,
    ):  # fmt: skip
        assert causal
        self._plan(
            paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size, sm_scale, window_left
        )
        self.starts = qo_indptr


class _RaggedWrapper:
    def __init__(self, float_workspace_buffer: Any, kv_layout: str = "NHD") -> None:
        return None

    def plan(
        self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, *, causal,
        sm_scale, q_data_type, kv_data_type,
    ):  # fmt: skip
        _int32(qo_indptr, kv_indptr)
        self.ends, self.scale = (qo_indptr, kv_indptr), sm_scale

    def run(self, q: Any, k: Any, v: Any) -> Any:
        (a, c) = self.ends
        spans = zip(a, a[1:], c, c[1:], strict=False)
        return torch.cat([_attend(q[i:j], k[m:n], v[m:n], self.scale, 0) for i, j, m, n in spans]).to(q.dtype)


class _MlaWrapper:
    def __init__(self, float_workspace_buffer: Any, use_cuda_graph: bool = False, **_: Any) -> None:
        return None

    def plan(
        self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe, page_size,
        causal, sm_scale, q_data_type, kv_data_type, use_profiler=False,
    ):  # fmt: skip
        _int32(qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        self.table = kv_indices.view(len(kv_len_arr), -1)
        self.lengths, self.scale = kv_len_arr, sm_scale

    def run(self, q_nope: Any, q_pe: Any, ckv_cache: Any, kpe_cache: Any) -> Any:
        caches = (torch.cat((ckv_cache, kpe_cache), -1).unsqueeze(2), ckv_cache.unsqueeze(2))
        starts = torch.arange(len(self.lengths) + 1)
        q = torch.cat((q_nope, q_pe), -1)
        return _paged(q, caches, self.table, self.lengths, starts, self.scale, 0).to(q.dtype)


def flashinfer() -> Any:
    """FlashInfer 0.7."""
    return SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=lambda space, layout, use_tensor_cores=False: _DecodeWrapper(
            space, layout
        ),
        BatchPrefillWithPagedKVCacheWrapper=_PrefillWrapper,
        BatchPrefillWithRaggedKVCacheWrapper=_RaggedWrapper,
        mla=SimpleNamespace(BatchMLAPagedAttentionWrapper=_MlaWrapper),
    )


def flash_mla(older: bool) -> Any:
    """FlashMLA: of 2026 (plans in its first call), or of 2025 (takes a plan)."""

    def get_mla_metadata(*args: Any) -> tuple[Any, Any]:
        _int32(args[0])
        return ("plan", torch.zeros(1, dtype=torch.int32)) if older else (SimpleNamespace(), None)

    def flash_mla_with_kvcache(
        q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,
        softmax_scale=None, causal=False, is_fp8_kvcache=False,
    ):  # fmt: skip
        _int32(block_table, cache_seqlens)
        assert (num_splits is not None) == older
        assert k_cache.shape[1:] == (64, 1, 576)
        starts = torch.arange(len(q) + 1)
        caches = (k_cache, k_cache[..., :head_dim_v])
        made = _paged(q.squeeze(1), caches, block_table, cache_seqlens, starts, softmax_scale, 0)
        return made.to(q.dtype).unsqueeze(1), None

    return SimpleNamespace(get_mla_metadata=get_mla_metadata, flash_mla_with_kvcache=flash_mla_with_kvcache)


def deep_gemm(powers_of_two: bool) -> Any:
    """DeepGEMM 2: fp8 with scales per 128 elements of a row and per 128 x 128 of the weights."""

    def plain(rows: Any) -> Any:
        values, scales = rows
        assert values.dtype == torch.float8_e4m3fn
        assert scales.dtype == torch.float32
        if powers_of_two:
            finite = scales[torch.isfinite(scales)]
            assert bool((finite.log2() == finite.log2().round()).all())
        return values.double() * scales.double().repeat_interleave(128, -1)

    def weight(weights: Any) -> Any:
        values, scales = weights
        spread = scales.double().repeat_interleave(128, -2).repeat_interleave(128, -1)
        return values.double() * spread

    def fp8_gemm_nt(a: Any, b: Any, d: Any) -> None:
        d.copy_(plain(a) @ weight(b).T)

    def contiguous(a: Any, b: Any, d: Any, m_indices: Any) -> None:
        _int32(m_indices)
        assert len(m_indices) % 128 == 0
        for tile in m_indices.split(128):
            assert len(set(tile.tolist())) == 1, "a tile of rows has one expert"
        x, w = plain(a), weight(b)
        for expert in set(m_indices.tolist()):
            own = m_indices == expert
            d[own] = (x[own] @ w[expert].T).to(d.dtype)

    def masked(a: Any, b: Any, d: Any, masked_m: Any, expected_m: int) -> None:
        _int32(masked_m)
        assert isinstance(expected_m, int)
        x, w = plain(a), weight(b)
        d.fill_(float("nan"))
        for expert, used in enumerate(masked_m.tolist()):
            d[expert, :used] = (x[expert, :used] @ w[expert].T).to(d.dtype)

    return SimpleNamespace(
        fp8_gemm_nt=fp8_gemm_nt, m_grouped_fp8_gemm_nt_contiguous=contiguous,
        m_grouped_fp8_gemm_nt_masked=masked,
        utils=SimpleNamespace(get_mk_alignment_for_contiguous_layout=lambda: 128),
    )  # fmt: skip


def module(**names: Any) -> ModuleType:
    made = ModuleType("stand-in")
    made.__dict__.update(names)
    return made

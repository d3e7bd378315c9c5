"""DeepGEMM 2: fp8 with scales per 128 elements of a row and per 128 x 128 of the weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from stand_ins.float64 import int32


def deep_gemm(powers_of_two: bool) -> Any:
    """Return the library; scales must be powers of two on Blackwell."""

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
        int32(m_indices)
        assert len(m_indices) % 128 == 0
        for tile in m_indices.split(128):
            assert len(set(tile.tolist())) == 1, "a tile of rows has one expert"
        x, w = plain(a), weight(b)
        for expert in set(m_indices.tolist()):
            own = m_indices == expert
            d[own] = (x[own] @ w[expert].T).to(d.dtype)

    def masked(a: Any, b: Any, d: Any, masked_m: Any, expected_m: int) -> None:
        int32(masked_m)
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

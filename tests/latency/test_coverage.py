"""Heat maps of efficiency against the roofline, checked on rows whose efficiency is known by hand."""

import numpy as np
import pytest

from simserve.hardware import load_gpu
from simserve.latency import ProfileStore, shipped_profiles
from simserve.latency.tables.coverage import heat_maps
from simserve.latency.tables.profiles import ProfileTable, write_profile

H100_BF16 = 989.4e12


def write_products(folder):
    """4096 x 4096 times 8192 rows at half the peak rate, one row at twice the roofline's time."""
    flops = 2 * 4096 * 4096 * 8192
    thin_us = (4096 * 4096 * 2 + 4 * 4096) / 3.35e12 * 1e6
    columns = {
        "dtype": np.array(["bf16"] * 3, object),
        "m": np.array([1, 8192, 8192]),
        "n": np.array([4096, 4096, 2048]),
        "k": np.array([4096, 4096, 8192]),
        "latency_us": np.array([4 * thin_us, flops / H100_BF16 * 2e6, flops / H100_BF16 * 4e6], np.float64),
        "quality": np.array([0, 0, 0]),
    }
    about = {"op": "gemm", "key_columns": ["dtype", "n", "k", "m"]}
    write_profile(folder / "h100_sxm" / "gemm.parquet", ProfileTable(folder, columns, about, 3))


def test_efficiency_is_least_time_over_measured_time(tmp_path):
    write_products(tmp_path)
    (products,) = heat_maps(load_gpu("h100_sxm"), ProfileStore([tmp_path], shipped=False))
    assert products.operation == "products, bf16"
    assert (products.x, products.y) == ([1, 8192], ["24"])
    assert products.rows == [[1, 2]]
    assert products.efficiency[0][0] == pytest.approx(0.25, rel=0.01)
    # The median of 1/2 and 1/4: both have the same FLOPs.
    assert products.efficiency[0][1] == pytest.approx(0.375, rel=0.01)


def test_every_row_that_the_kernels_read_is_on_a_map_once():
    maps = {one.operation: one for one in heat_maps(load_gpu("a100_sxm"), shipped_profiles())}
    table = shipped_profiles().table("a100_sxm", "gemm")
    assert table is not None
    assert sum(map(sum, maps["products, bf16"].rows)) == len(table.select(dtype="bf16"))
    table = shipped_profiles().table("a100_sxm", "mla_decode")
    assert table is not None
    assert sum(map(sum, maps["absorbed MLA, decode, bf16 KV"].rows)) == len(table.select(kv_dtype="bf16"))
    for one in maps.values():
        for cells, counts in zip(one.efficiency, one.rows, strict=True):
            assert [cell is None for cell in cells] == [count == 0 for count in counts]

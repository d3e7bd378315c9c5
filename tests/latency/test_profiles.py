"""Profile files and where they are looked for."""

import numpy as np
import pytest

from simserve.errors import ProfileError
from simserve.latency import ProfileStore, shipped_profiles
from simserve.latency.tables.profiles import ProfileTable, read_profile, write_profile
from simserve.paths import data_dir


def small_table(path, quality=(0, 0, 0), latency=(5.0, 6.0, 9.0)):
    columns = {
        "dtype": np.array(["bf16"] * 3, object),
        "m": np.array([4, 1, 2]),
        "latency_us": np.array(latency, np.float32),
        "quality": np.array(quality),
    }
    write_profile(path, ProfileTable(path, columns, {"key_columns": ["dtype", "m"]}, 3))


def test_a_table_survives_writing_and_reading(tmp_path):
    path = tmp_path / "gpu" / "op.parquet"
    small_table(path)
    table = read_profile(path)
    assert table.numbers("m").tolist() == [1, 2, 4]
    assert table.numbers("latency_us").tolist() == [6, 9, 5]
    assert table.values("dtype") == ["bf16"]
    assert len(table.select(dtype="bf16", m=2)) == 1
    assert len(table.select(dtype="fp8")) == 0


def test_rows_with_bad_quality_bits_are_left_out_and_counted(tmp_path):
    small_table(tmp_path / "gpu" / "op.parquet", quality=(4, 64 | 1, 2))
    store = ProfileStore([tmp_path], shipped=False)
    assert store.table("gpu", "op").numbers("m").tolist() == [2]
    assert store.notes() == ["gpu/op: 2 rows left out by their quality bits, 1 used"]
    assert len(read_profile(tmp_path / "gpu" / "op.parquet", keep_all=True)) == 3


def test_the_users_folders_come_first(tmp_path):
    small_table(tmp_path / "h100_sxm" / "gemm.parquet")
    store = ProfileStore([tmp_path])
    assert len(store.table("h100_sxm", "gemm")) == 3
    assert len(store.table("h100_sxm", "quant")) > 1000
    assert store.table("h100_sxm", "nonsense") is None
    assert set(store.hashes()) == {"h100_sxm/gemm", "h100_sxm/quant"}


def test_a_file_that_is_no_profile_is_named(tmp_path):
    path = tmp_path / "gpu" / "op.parquet"
    path.parent.mkdir()
    path.write_text("not parquet")
    with pytest.raises(ProfileError, match=r"op\.parquet"):
        ProfileStore([tmp_path], shipped=False).table("gpu", "op")
    small_table(path)
    with pytest.raises(ProfileError, match=r"no column 'mm' .did you mean 'm'"):
        read_profile(path).column("mm")


def test_what_ships_is_only_what_may_ship_and_small():
    folder = data_dir("kernels_profile")
    files = sorted(folder.glob("*/*.parquet"))
    assert sum(file.stat().st_size for file in files) < 12e6
    for file in files:
        table = read_profile(file, keep_all=True)
        assert table.values("source") == ["aic"]
        assert table.about["sources"]["aic"]["licence"] == "Apache-2.0"
        assert (table.numbers("latency_us") > 0).all()
        assert len(table.select(quality=4)) == 0
    assert shipped_profiles().gpus() == sorted({file.parent.name for file in files})

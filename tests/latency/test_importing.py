"""Importing aiconfigurator-core's tables gives the rows that ship."""

import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simserve.errors import ProfileError
from simserve.latency.importing.aiconfigurator import import_aiconfigurator
from simserve.latency.tables.profiles import read_profile
from simserve.paths import data_dir

GEMM = "gemm/sglang/{version}/gemm_perf.parquet"


def write_gemm(root: Path, gpu: str, version: str, latency_ms: list[float]) -> None:
    size = len(latency_ms)
    path = root / "systems/data" / gpu / GEMM.format(version=version)
    path.parent.mkdir(parents=True)
    columns = {
        "framework": ["SGLang"] * size, "version": [version] * size, "kernel_source": ["torch"] * size,
        "gemm_dtype": ["bfloat16"] * size, "n": [64] * size, "k": [32] * size,
        "m": [1, 2, 2, 4][:size], "latency": latency_ms,
    }  # fmt: skip
    pq.write_table(pa.table(columns), path)


def test_units_medians_versions_and_copies(tmp_path):
    """Milliseconds become us, a repeated shape its median, the newest version wins, a copied GPU is left
    out."""
    write_gemm(tmp_path, "h100_sxm", "0.5.9", [1.0, 1.0, 1.0, 1.0])
    write_gemm(tmp_path, "h100_sxm", "0.5.14", [0.010, 0.020, 0.030, 0.040])
    write_gemm(tmp_path, "h200_sxm", "0.5.14", [0.010, 0.020, 0.030, 0.040])
    done = list(import_aiconfigurator(str(tmp_path), tmp_path / "out", []))
    assert done == [("h100_sxm", "gemm", 3)]
    table = read_profile(tmp_path / "out/h100_sxm/gemm.parquet")
    assert table.numbers("m").tolist() == [1, 2, 4]
    assert table.numbers("latency_us") == pytest.approx([10, 25, 40])
    assert table.values("backend_version") == ["0.5.14"]
    assert table.numbers("n_merged").tolist() == [1, 2, 1]


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ProfileError, match="systems/data"):
        list(import_aiconfigurator(str(tmp_path), tmp_path / "out", []))
    write_gemm(tmp_path, "h100_sxm", "0.5.9", [1.0])
    with pytest.raises(ProfileError, match=r"h101.*h100_sxm"):
        list(import_aiconfigurator(str(tmp_path), tmp_path / "out", ["h101"]))


@pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="aiconfigurator-core is not installed"
)
def test_the_installed_package_gives_the_rows_that_ship(tmp_path):
    for gpu, op, _ in import_aiconfigurator("installed", tmp_path, ["h100_sxm"]):
        ours = read_profile(tmp_path / gpu / f"{op}.parquet")
        shipped = read_profile(data_dir("kernels_profile") / gpu / f"{op}.parquet")
        assert len(ours) == len(shipped)
        assert np.sort(ours.numbers("latency_us")) == pytest.approx(np.sort(shipped.numbers("latency_us")))

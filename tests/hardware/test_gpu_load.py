"""GPUs: vendor figures, ridge points, users' own files."""

import json
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ScenarioError
from simserve.hardware import gpu_names, load_gpu

# Dense bf16 FLOP/s over bytes/s, from the vendors' data sheets by hand.
RIDGE = {"a100_sxm": 153, "h100_sxm": 295, "h800": 295, "h200_sxm": 206, "h20": 37, "b200_sxm": 281}
STICKER_GB = {
    "a100_sxm": 80, "h100_sxm": 80, "h200_sxm": 141, "b200_sxm": 180, "l40s": 48, "rtx_pro_6000": 96,
    "h800": 80, "h20": 96, "rtx_4090": 24, "a100_sxm_40gb": 40, "a100_pcie": 80, "a100_pcie_40gb": 40,
    "h100_pcie": 80, "h100_nvl": 94, "l4": 24, "a10g": 24, "gb200": 192, "b300_sxm": 288, "rtx_5090": 32,
    "mi300x": 192, "mi325x": 256, "mi355x": 288,
}  # fmt: skip


@pytest.mark.parametrize("name", RIDGE)
def test_ridge_points(name: str) -> None:
    assert load_gpu(name).ridge() == pytest.approx(RIDGE[name], abs=0.5)


# Peaks from the chip: units, FLOP per clock and unit of a type, boost clock in GHz (NVIDIA: tensor FLOPs of
# an SM with 32-bit sums; AMD: matrix FLOPs of a compute unit, from the CDNA 3 and CDNA 4 papers).
BY_CLOCK = [
    ("a100_pcie", "bf16", 108, 2048, 1.41),
    ("a100_sxm_40gb", "bf16", 108, 2048, 1.41),
    ("h100_pcie", "bf16", 114, 4096, 1.62),
    ("l4", "bf16", 58, 1024, 2.04),
    ("rtx_5090", "bf16", 170, 512, 2.407),
    ("rtx_5090", "fp8", 170, 1024, 2.407),
    ("mi300x", "bf16", 304, 2048, 2.1),
    ("mi300x", "fp8", 304, 4096, 2.1),
    ("mi325x", "fp8", 304, 4096, 2.1),
    ("mi355x", "bf16", 256, 4096, 2.4),
    ("mi355x", "fp8", 256, 8192, 2.4),
    ("mi355x", "mxfp4", 256, 16384, 2.4),
]


@pytest.mark.parametrize(("name", "dtype", "units", "flop_per_clock", "ghz"), BY_CLOCK)
def test_the_peak_is_that_of_the_chip_at_its_clock(
    name: str, dtype: str, units: int, flop_per_clock: int, ghz: float
) -> None:
    gpu = load_gpu(name)
    assert gpu.multiprocessors is not None
    assert gpu.multiprocessors.value == units
    assert gpu.peak_of(dtype) == pytest.approx(units * flop_per_clock * ghz * 1e9, rel=2e-3)


def test_fp8_doubles_the_ridge() -> None:
    gpu = load_gpu("h100_sxm")
    assert gpu.ridge("fp8") == pytest.approx(2 * gpu.ridge("bf16"))


def test_what_ships_is_what_was_promised() -> None:
    assert set(STICKER_GB) <= set(gpu_names())


@pytest.mark.parametrize("name", STICKER_GB)
def test_usable_memory_is_near_the_sticker(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    assert 0.95 * STICKER_GB[name] * 1e9 < gpu.hbm_bytes < STICKER_GB[name] * 2**30
    assert gpu.link_bytes_per_s > 0


def test_unknown_gpu_and_dtype_offer_the_nearest() -> None:
    with pytest.raises(
        ScenarioError, match=r"unknown GPU 'h10_sxm' \(did you mean 'h100_sxm'\?\); known: a10, a100_pcie"
    ):
        load_gpu("h10_sxm")
    with pytest.raises(ScenarioError, match="a100_sxm has no peak for 'fp8'"):
        load_gpu("a100_sxm").peak_of("fp8")


def figure(value: float) -> dict[str, Any]:
    return {"value": value, "source": "data sheet", "date": "2026-01"}


MINE: dict[str, Any] = {
    "title": "My GPU",
    "sm_arch": 90,
    "gpus_per_node": 4,
    "hbm": figure(10e9),
    "hbm_bandwidth": figure(1e12),
    "peak": {"bf16": figure(1e14)},
    "pcie": figure(32e9),
}


def put(folder: Path, **changes: Any) -> Path:
    (folder / "mine").mkdir()
    fields = {key: value for key, value in {**MINE, **changes}.items() if value is not None}
    (folder / "mine" / "gpu.json").write_text(json.dumps(fields))
    return folder


def test_a_users_folder_comes_first(tmp_path: Path) -> None:
    gpu = load_gpu("mine", [put(tmp_path)])
    assert gpu.ridge() == 100
    assert gpu.nvlink_bytes_per_s == 0
    assert gpu.link_bytes_per_s == 32e9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pcie": None}, "'pcie' is missing"),
        ({"hbm_bandwith": figure(1)}, "unknown field 'hbm_bandwith' .did you mean 'hbm_bandwidth'"),
        ({"hbm": figure(-1)}, "hbm.value = -1"),
        ({"hbm": {**figure(1), "date": "last year"}}, "hbm.date = 'last year'"),
    ],
)
def test_wrong_files_name_the_place(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load_gpu("mine", [put(tmp_path, **changes)])

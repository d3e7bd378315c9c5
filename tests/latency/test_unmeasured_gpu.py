"""A GPU without kernel tables: it is estimated, sizes that its file lacks are assumed, and both are said."""

import json
from pathlib import Path
from typing import Any

import pytest

from simserve.deploy.build import Deployment, build
from simserve.deploy.manifest import manifest_of
from simserve.hardware import gpu_names, load_gpu
from simserve.latency.kernels.machine import kernel_traits
from simserve.latency.tables.roofline import peaks_of
from simserve.report.warnings import warnings
from simserve.scenario.load import load_scenario

ASSUMED = "of lab: not in its gpu.json, taken as an H100's"

# Multiprocessors and MB of L2 by the vendors' data sheets and white papers.
CHIPS = {
    "a10": (72, 6),
    "a100_sxm": (108, 40),
    "a100_pcie_40gb": (108, 40),
    "h100_sxm": (132, 50),
    "h100_pcie": (114, 50),
    "h20": (78, 60),
    "b200_sxm": (148, 126),
    "l4": (58, 48),
    "l40s": (142, 96),
    "rtx_4090": (128, 72),
    "rtx_5090": (170, 96),
    "rtx_pro_6000": (188, 128),
    "mi300x": (304, 32),
}


@pytest.mark.parametrize("gpu", CHIPS)
def test_the_size_of_a_chip_is_read_from_its_file(gpu: str) -> None:
    peaks = peaks_of(load_gpu(gpu))
    assert (peaks.multiprocessors, (peaks.l2_bytes or 0) / 1e6) == CHIPS[gpu]


def test_every_gpu_that_ships_says_how_large_its_chip_is() -> None:
    assert [name for name in gpu_names() if not (load_gpu(name).multiprocessors and load_gpu(name).l2)] == []


def test_a_cpu_has_no_multiprocessors_to_assume() -> None:
    assert kernel_traits(0).multiprocessors == 1


def lab(folder: Path, **changes: Any) -> Deployment:
    """The demo, short, on a GPU of one's own: an H200's figures but for `changes`, without tables."""
    fields = json.loads((Path("kernels_profile") / "h200_sxm" / "gpu.json").read_text())
    own = {key: value for key, value in (fields | changes).items() if value is not None}
    (folder / "lab").mkdir()
    (folder / "lab" / "gpu.json").write_text(json.dumps(own))
    options = ["pools.0.gpu=lab", f"profiles=[{folder}]", "workload.limit=50"]
    return build(load_scenario("scenarios/demo.yaml", options))


def test_what_the_file_lacks_is_an_assumption_of_the_run(tmp_path: Path) -> None:
    lines = manifest_of(lab(tmp_path, multiprocessors=None, l2=None), "")["assumptions"]
    assert any(line == f"multiprocessors {ASSUMED} (132)" for line in lines)


def test_what_the_file_says_is_not_assumed(tmp_path: Path) -> None:
    assert not [line for line in manifest_of(lab(tmp_path), "")["assumptions"] if ASSUMED in line]


def test_a_run_without_any_table_is_called_an_estimate(tmp_path: Path) -> None:
    deployment = lab(tmp_path)
    summary = deployment.summarize(deployment.simulate()).to_dict()
    assert summary["provenance"]["analytic"] == pytest.approx(1)
    assert any(line.startswith("All of it is estimated") for line in warnings(summary))
    summary["provenance"]["analytic"] = 0.9
    assert not any(line.startswith("All of it is estimated") for line in warnings(summary))

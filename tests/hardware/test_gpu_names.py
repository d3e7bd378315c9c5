"""Names of GPUs as nvidia-smi, Kubernetes and people write them."""

import json
from pathlib import Path

import pytest

from simserve.errors import ScenarioError
from simserve.hardware import gpu_called, gpu_names, load_gpu

# nvidia-smi's names, product labels of the GPU feature discovery, GKE's labels, and what people type.
MEANT = {
    "NVIDIA H100 80GB HBM3": "h100_sxm",
    "NVIDIA-H100-80GB-HBM3": "h100_sxm",
    "nvidia-h100-mega-80gb": "h100_sxm",
    "H100-SXM": "h100_sxm",
    "h100 sxm5 80 GB": "h100_sxm",
    "H100_SXM": "h100_sxm",
    "NVIDIA H100 PCIe": "h100_pcie",
    "NVIDIA-H100-PCIe": "h100_pcie",
    "NVIDIA H100 NVL": "h100_nvl",
    "NVIDIA H200": "h200_sxm",
    "H200": "h200_sxm",
    "nvidia-h200-141gb": "h200_sxm",
    "NVIDIA A100-SXM4-80GB": "a100_sxm",
    "NVIDIA A100-SXM4-40GB": "a100_sxm_40gb",
    "NVIDIA A100 80GB PCIe": "a100_pcie",
    "NVIDIA-A100-PCIE-40GB": "a100_pcie_40gb",
    "b200": "b200_sxm",
    "NVIDIA B200": "b200_sxm",
    "NVIDIA GB200": "gb200",
    "NVIDIA B300 SXM6 AC": "b300_sxm",
    "NVIDIA L40S": "l40s",
    "nvidia-l4": "l4",
    "NVIDIA A10G": "a10g",
    "NVIDIA A10": "a10",
    "NVIDIA H20": "h20",
    "RTX 4090": "rtx_4090",
    "RTX4090": "rtx_4090",
    "NVIDIA GeForce RTX 5090": "rtx_5090",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx_pro_6000",
    "AMD Instinct MI300X": "mi300x",
    "AMD_Instinct_MI325X_OAM": "mi325x",
    "MI355X": "mi355x",
}


@pytest.mark.parametrize("name", MEANT)
def test_a_name_that_means_one_gpu_finds_it(name: str) -> None:
    assert gpu_called(name) == MEANT[name]
    assert load_gpu(name).name == MEANT[name]


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_answers_to_its_own_name_in_any_case_and_to_its_title(name: str) -> None:
    spec = load_gpu(name)
    assert {gpu_called(name), gpu_called(name.upper()), gpu_called(spec.title)} == {name}


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("H100", "h100_nvl, h100_pcie or h100_sxm"),
        ("NVIDIA H100", "h100_nvl, h100_pcie or h100_sxm"),
        ("H100-80GB", "h100_pcie or h100_sxm"),
        ("A100", "a100_pcie, a100_pcie_40gb, a100_sxm or a100_sxm_40gb"),
        ("A100-80GB", "a100_pcie or a100_sxm"),
        ("A100 SXM", "a100_sxm or a100_sxm_40gb"),
        ("A100 40GB", "a100_pcie_40gb or a100_sxm_40gb"),
    ],
)
def test_a_name_of_several_is_asked_back_with_the_choices(name: str, choices: str) -> None:
    with pytest.raises(ScenarioError, match=f"GPU '{name}' may be {choices}; say which"):
        gpu_called(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("H100-96GB", "of this chip there is h100_nvl, h100_pcie, h100_sxm"),
        ("NVIDIA H20-3e", "of this chip there is h20"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "a MIG slice"),
        ("NVIDIA-L40S-SHARED", "several pods share"),
        ("h2000_sxm", "did you mean 'h200_sxm'"),
        ("80GB", "unknown GPU"),
        ("", "unknown GPU ''"),
    ],
)
def test_a_near_miss_is_not_taken(name: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        gpu_called(name)


def test_a_gpu_of_ones_own_has_words_too_and_may_make_a_name_unclear(tmp_path: Path) -> None:
    fields = json.loads((Path("kernels_profile") / "h200_sxm" / "gpu.json").read_text())
    (tmp_path / "h200_nvl").mkdir()
    own = {**fields, "title": "NVIDIA H200 NVL", "words": ["h200", "nvl", "141gb"]}
    (tmp_path / "h200_nvl" / "gpu.json").write_text(json.dumps(own))
    assert gpu_called("NVIDIA H200 NVL", [tmp_path]) == "h200_nvl"
    with pytest.raises(ScenarioError, match="h200_nvl or h200_sxm"):
        gpu_called("H200", [tmp_path])

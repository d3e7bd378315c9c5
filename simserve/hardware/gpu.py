"""Find a GPU's figures: `gpu.json` in its profile folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simserve.errors import ScenarioError, nearest
from simserve.paths import data_dir

# What a GPU is, for a simulator: memory, bandwidths and peaks, each with its source and date.


class Figure(BaseModel):
    """One figure of a GPU and where it was read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float = Field(gt=0)
    source: str = Field(min_length=1)
    date: str = Field(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$")
    """When the source was published or read: year, month or day."""
    note: str = ""


class GpuSpec(BaseModel):
    """One kind of GPU. Rates are vendor figures, dense, and what no kernel reaches quite."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Name of the profile folder, set by the loader."""
    title: str
    """The vendor's name."""
    words: tuple[str, ...] = ()
    """Words that its names are made of, lower case, the chip first; what a scenario may call it."""
    sm_arch: int
    """CUDA compute capability times ten (90 = Hopper); of AMD's, the number in gfx942."""
    gpus_per_node: int = Field(gt=0)
    """GPUs that reach each other over `nvlink` (72 in a GB200 NVL72)."""
    hbm: Figure
    """Bytes that CUDA reports as the device's memory (less than the sticker says)."""
    hbm_bandwidth: Figure
    """Bytes/s."""
    peak: dict[str, Figure]
    """Dense FLOP/s by dtype."""
    nvlink: Figure | None = None
    """Bytes/s per direction of one GPU over NVLink (AMD: Infinity Fabric); None without."""
    pcie: Figure
    """Bytes/s per direction."""
    multiprocessors: Figure | None = None
    """Streaming multiprocessors (AMD: compute units); None: taken as an H100's, which the report says."""
    l2: Figure | None = None
    """Bytes of L2 cache; None: taken as an H100's, which the report says."""

    @property
    def hbm_bytes(self) -> int:
        """Usable device memory."""
        return int(self.hbm.value)

    @property
    def hbm_bytes_per_s(self) -> float:
        """Memory bandwidth."""
        return self.hbm_bandwidth.value

    @property
    def nvlink_bytes_per_s(self) -> float:
        """NVLink bandwidth per direction, 0 without NVLink."""
        return self.nvlink.value if self.nvlink else 0.0

    @property
    def pcie_bytes_per_s(self) -> float:
        """PCIe bandwidth per direction."""
        return self.pcie.value

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth per direction between the GPUs of a node: NVLink, or PCIe where there is none."""
        return self.nvlink_bytes_per_s or self.pcie_bytes_per_s

    @property
    def peak_flops(self) -> dict[str, float]:
        """Dense peak in FLOP/s by dtype."""
        return {dtype: figure.value for dtype, figure in self.peak.items()}

    def peak_of(self, dtype: str) -> float:
        """Return the dense peak in FLOP/s; raises `ScenarioError` if the GPU has no units for `dtype`."""
        if dtype not in self.peak:
            known = ", ".join(self.peak)
            raise ScenarioError(
                f"GPU {self.name} has no peak for {dtype!r}{nearest(dtype, self.peak)}; has {known}"
            )
        return self.peak[dtype].value

    def ridge(self, dtype: str = "bf16") -> float:
        """Return the FLOPs per byte of memory traffic above which a kernel is compute-bound."""
        return self.peak_of(dtype) / self.hbm_bytes_per_s


# Which GPU a name means: nvidia-smi's (`NVIDIA H100 80GB HBM3`), a Kubernetes label, what a shop says.
#
# A GPU's file lists the words of its names, the chip first. A name means the GPUs whose words hold all of its
# own: one of them is the answer, several are a question back. Nothing is guessed from a part of a word.

_SAY_NOTHING = frozenset(("nvidia", "amd", "geforce", "instinct", "tesla", "gpu", "oam", "generation"))
"""Words that no two GPUs differ by."""
_JOINED = re.compile(r"(rtx|sxm\d?|pcie|nvl\d*|nvidia)")
_SIZE = re.compile(r"\b(\d+) *gi?b\b")
_SLICES = {"mig": "a MIG slice of a GPU", "shared": "a GPU that several pods share in turns"}
"""Words of Kubernetes labels that say that a pod has less than a GPU."""


def find_gpus(name: str, words_of: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the GPUs that `name` may mean; `words_of` has the words of their names, the chip first."""
    same = [one for one in words_of if one.lower() == name.strip().lower()]
    asked = _words(name)
    return same or sorted(one for one, words in words_of.items() if _fits(asked, words))


def find_gpu(name: str, words_of: Mapping[str, Sequence[str]]) -> str:
    """Return the one GPU that `name` means.

    Raises `ScenarioError`: with the choices if several fit, else with those of the chip, or the nearest one.
    """
    found, known = find_gpus(name, words_of), sorted(words_of)
    if len(found) == 1:
        return found[0]
    if found:
        raise ScenarioError(f"GPU {name!r} may be {_or(found)}; say which")
    asked = _words(name)
    for word, what in _SLICES.items():
        if word in asked:
            raise ScenarioError(f"GPU {name!r} is {what}, which is not modelled; known: {', '.join(known)}")
    chips = [one for one in known if asked & set(words_of[one][:1])]
    if chips:
        raise ScenarioError(f"unknown GPU {name!r}; of this chip there is {', '.join(chips)}")
    begins = [one for one in known if name and one.startswith(name.lower())]
    hint = nearest(begins[0] if begins else name.lower(), known)
    raise ScenarioError(f"unknown GPU {name!r}{hint}; known: {', '.join(known)}")


def _fits(asked: frozenset[str], words: Sequence[str]) -> bool:
    return bool(words) and words[0] in asked and asked <= set(words)


def _words(name: str) -> frozenset[str]:
    """Return the words that tell GPUs apart: `NVIDIA-A100-SXM4-80GB` -> a100, sxm4, 80gb."""
    text = _JOINED.sub(r" \1 ", re.sub(r"[^a-z0-9]+", " ", name.lower()))
    words = _SIZE.sub(r"\1gb", text).split()
    return frozenset(words) - _SAY_NOTHING


def _or(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}"


def load_gpu(name: str, extra_dirs: Iterable[Path | str] = ()) -> GpuSpec:
    """Return the GPU called `name`, from `<dir>/<name>/gpu.json`; other names of it are understood too.

    Folders in `extra_dirs` come first, then those that ship. Raises `ScenarioError` with the choices if
    several GPUs have that name, with the nearest one if none has, or naming the field that is wrong.
    """
    files = _files(extra_dirs)
    folder = name if name in files else gpu_called(name, extra_dirs)
    return _read(files[folder], folder)


def gpu_called(name: str, extra_dirs: Iterable[Path | str] = ()) -> str:
    """Return the folder name of the GPU that `name` means (`NVIDIA H200` -> `h200_sxm`).

    Raises `ScenarioError` as `load_gpu` does.
    """
    files = _files(extra_dirs)
    return name if name in files else find_gpu(name, _words_of(files))


def gpus_called(name: str, extra_dirs: Iterable[Path | str] = ()) -> list[str]:
    """Return the names of all GPUs that `name` may mean; none if it means nothing here."""
    return find_gpus(name, _words_of(_files(extra_dirs)))


def gpu_names(extra_dirs: Iterable[Path | str] = ()) -> list[str]:
    """Return the names of all GPUs that have a `gpu.json`, sorted."""
    return sorted(_files(extra_dirs))


def _files(extra_dirs: Iterable[Path | str]) -> dict[str, Path]:
    """Return the `gpu.json` of each GPU by its name; the folder that comes first wins."""
    dirs = [*(Path(folder) for folder in extra_dirs), data_dir("kernels_profile")]
    return {path.parent.name: path for folder in reversed(dirs) for path in folder.glob("*/gpu.json")}


def _words_of(files: Mapping[str, Path]) -> dict[str, tuple[str, ...]]:
    return {name: _read(path, name).words for name, path in files.items()}


def _read(path: Path, name: str) -> GpuSpec:
    try:
        fields = json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ScenarioError(f"{path}: a GPU is a JSON object, found {type(fields).__name__}")
    try:
        return GpuSpec(**{**fields, "name": name})
    except ValidationError as error:
        raise ScenarioError(f"{path}: {_explain(error)}") from error


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(step) for step in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown field {place!r}{nearest(place, GpuSpec.model_fields)}"
    if first["type"] == "missing":
        return f"field {place!r} is missing"
    return f"{place} = {first['input']!r}: {first['msg']}"

"""A row of a table of starts as the memory settings of a deployment, or why it is none.

A setting that the memory model does not know is named and the row not judged.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from simserve.deploy.engine import placement_of
from simserve.engines.presets import ENGINES, PRESETS, EnginePreset
from simserve.errors import ScenarioError, TraceError, UserError, nearest
from simserve.hardware import GpuSpec, gpus_called, load_gpu
from simserve.model import ModelSpec, Parallelism, check_parallelism, load_model
from simserve.model.activation import lora_bytes
from simserve.model.draft import DraftMemory, draft_memory, drafter_of, eagle3_memory
from simserve.model.dtypes import AUTO, WeightsDtype, kv_cache_dtype, weight_types
from simserve.model.memory_lines import MemorySettings
from simserve.units import GIB
from simserve.validation.measured_runs import gpu_name

# The rows of a table of starts of real engines.
#
# A column that is blank means the engine's default. A value that cannot be read is an error with its line.

OUTCOMES = ("started", "no_kv_room", "oom_load", "oom_after_pool", "other")
_NEEDED = ("run_id", "engine", "version", "model", "gpu", "outcome")


@dataclass(frozen=True)
class MemoryRow:
    """One start. Reading a column that is not a number raises `TraceError` with its line."""

    cells: Mapping[str, str]
    place: str
    """File and line."""

    def text(self, column: str, default: str = "") -> str:
        """Return a cell, or `default` where it is blank."""
        return (self.cells.get(column) or "").strip() or default

    def number(self, column: str) -> float | None:
        """Return a number, None if the cell is blank."""
        text = self.text(column)
        if not text:
            return None
        try:
            return float(text)
        except ValueError:
            raise TraceError(f"{self.place}, column {column}: {text!r} is not a number") from None

    def count(self, column: str) -> int | None:
        """Return a whole number of at least 1, None if the cell is blank."""
        value = self.number(column)
        if value is None:
            return None
        if value < 1 or value != int(value):
            raise TraceError(f"{self.place}, column {column}: {value:g}, allowed: whole numbers from 1")
        return int(value)

    def word(self, column: str, allowed: tuple[str, ...], default: str) -> str:
        """Return one of the allowed words."""
        text = self.text(column, default)
        if text not in allowed:
            known = f"allowed: {', '.join(allowed)}{nearest(text, allowed)}"
            raise TraceError(f"{self.place}, column {column}: {text!r}, {known}")
        return text

    def yes(self, column: str, default: str = "no") -> bool:
        """Return True for `yes`."""
        return self.word(column, ("yes", "no"), default) == "yes"


def read_memory_rows(path: Path) -> list[MemoryRow]:
    """Return the rows of a table of starts; raises `TraceError` naming the column that it lacks."""
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file, strict=True)
            for column in _NEEDED:
                if column not in (table.fieldnames or ()):
                    raise TraceError(f"{path}, line 1: lacks the column {column!r} of a table of starts")
            rows = [_row(cells, f"{path}, line {table.line_num}") for cells in table]
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise TraceError(f"{path}: holds no rows")
    return rows


def _row(cells: Mapping[str | None, str | list[str]], place: str) -> MemoryRow:
    if None in cells:
        raise TraceError(f"{place}: more cells than columns")
    row = MemoryRow({str(name): str(cell or "") for name, cell in cells.items()}, place)
    row.word("outcome", OUTCOMES, "")
    row.yes("score", "yes")
    return row


_SAY_NOTHING = re.compile(r"(trust_remote_code|api_server_count|quantization|VLLM_USE_FLASHINFER_SAMPLER)=.*")
"""Flags that bear on no memory, or repeat a column."""
_PIECES = re.compile(r"(compilation_config: )?cudagraph_mode[ =:]*PIECEWISE")
_V1 = (0, 8)
"""First release of vLLM whose default engine is V1."""


class NotJudged(UserError):
    """A row that cannot judge the memory model; the message says why."""


@dataclass(frozen=True)
class Start:
    """What a row starts."""

    settings: MemorySettings
    max_model_len: int


def start_of(row: MemoryRow, folder: Path) -> Start:
    """Return what a row starts; models and GPUs that do not ship are looked for in `folder`.

    Raises `NotJudged` with the reason, or `TraceError` for a cell that cannot be read.
    """
    if not row.yes("score", "yes"):
        raise NotJudged(row.text("note") or row.text("reason") or "the table does not score it")
    if row.text("outcome") == "other":
        raise NotJudged(row.text("reason", "failed for another reason than memory"))
    _check_flags(row)
    try:
        return _start(row, folder)
    except ScenarioError as error:
        raise NotJudged("; ".join(one.brief for one in error.problems)) from error


def _flags(row: MemoryRow) -> list[str]:
    return [flag for flag in map(str.strip, row.text("other_flags").split(";")) if flag]


def _check_flags(row: MemoryRow) -> None:
    for flag in _flags(row):
        if not _SAY_NOTHING.fullmatch(flag) and not _PIECES.fullmatch(flag):
            raise NotJudged(f"other_flags = {flag}: not modelled")


def _start(row: MemoryRow, folder: Path) -> Start:
    preset, release = _engine(row)
    model, gpu = _model(row, folder / "configs"), _gpu(row, folder / "gpus")
    degrees = Parallelism(**{name: row.count(name) or 1 for name in ("tp", "pp", "dp", "ep")})
    check_parallelism(model, degrees)
    longest = row.count("max_model_len") or model.max_position_embeddings
    given = {name: value for name in ("max_num_batched_tokens", "max_num_seqs") if (value := row.count(name))}
    placement = placement_of(model, gpu.sm_arch, degrees)
    options = preset.options(gpu.hbm_bytes, gpu.name, given, longest, placement)
    share = row.number("gpu_memory_utilization")
    if share is None:
        share = preset.memory_share(gpu.hbm_bytes, options, placement)
    if not 0 < share <= 1:
        raise TraceError(
            f"{row.place}, column gpu_memory_utilization: {share:g}, allowed: more than 0 and at most 1"
        )
    rules_of = ENGINES[preset.policy].memory_rules
    assert rules_of is not None
    rules = rules_of(release)
    inside = row.yes("graphs_inside_share", "yes" if rules.graphs_inside else "no")
    budget = int(options.get("max_num_batched_tokens", options.get("chunked_prefill_size", 8192)))
    activation = row.text("dtype", "bf16")
    weights = _weights(row, model, activation)
    experts = _finer(row.text("experts_dtype"), model) or None
    kv = row.text("kv_cache_dtype", "auto")
    kv = kv_cache_dtype(activation if kv == "auto" else kv)
    weight_types(weights, experts)
    return Start(
        MemorySettings(
            model,
            gpu,
            degrees,
            weights_dtype=weights,
            kv_dtype=kv,
            block_size=row.count("block_size") or preset.block_size(placement),
            gpu_memory_utilization=share,
            max_num_batched_tokens=budget,
            max_num_seqs=int(options.get("max_num_seqs", 256)),
            rules=replace(rules, graphs_inside=inside),
            enforce_eager=row.yes("enforce_eager"),
            full_graphs=not any(map(_PIECES.fullmatch, _flags(row))),
            experts_dtype=experts,
            kv_groups=None if degrees.pp > 1 else ENGINES[preset.policy].kv_groups(model, options, budget),
            draft=_draft(row, model, degrees, weights, kv),
            adapter_bytes=_adapters(row, model, degrees),
            max_model_len=longest,
            moe_backend=_mxfp4_kernels(row),
        ),
        longest,
    )


def _mxfp4_kernels(row: MemoryRow) -> str:
    """Return which kernels hold MXFP4 experts; empty: those of the release."""
    named = row.text("moe_backend").lower()
    return next((kernels for kernels in ("marlin", "triton", "trtllm") if kernels in named), "")


def _adapters(row: MemoryRow, model: ModelSpec, degrees: Parallelism) -> int:
    """Return the bytes of slots for adapters: `slots:rank`, or a rank by name and slots if not one."""
    text = row.text("lora", "none")
    if text == "none":
        return 0
    found = re.fullmatch(r"(\d+):(\d+)", text)
    slots, rank = re.search(r"(?:loras|slots)\W*(\d+)", text), re.search(r"rank\W*(\d+)", text)
    if found is None and rank is None:
        raise NotJudged(f"lora = {text}: says no rank; allowed: slots:rank, as in 4:16")
    sizes = (found[1], found[2]) if found else (slots[1] if slots else "1", rank[1] if rank else "")
    return lora_bytes(model, int(sizes[0]), int(sizes[1]), tp=degrees.tp, pp=degrees.pp)


def _draft(
    row: MemoryRow, model: ModelSpec, degrees: Parallelism, weights: WeightsDtype, kv_dtype: str
) -> DraftMemory | None:
    """Return what drafts take: `method:drafts`, as in `eagle:2`."""
    method = row.text("speculation", "none").partition(":")[0].lower()
    if method in ("none", "ngram"):
        return None
    if method == "eagle3":
        return eagle3_memory(model, degrees, weights, kv_dtype)
    if method != "eagle" and not method.endswith("mtp"):
        raise NotJudged(f"speculation = {row.text('speculation')}: a draft model of its own is not named")
    drafter = drafter_of(model, "eagle" if method == "eagle" else "mtp")
    assert drafter is not None
    return draft_memory(
        drafter,
        degrees,
        weights_dtype=weights,
        kv_dtype=kv_dtype,
        experts_dtype=_finer(row.text("experts_dtype"), model) or None,
    )


def _weights(row: MemoryRow, model: ModelSpec, activation: str) -> WeightsDtype:
    """Return the types of the weights; blank: as the checkpoint ships, or all in 32 bit if asked for."""
    named = row.text("weights_dtype")
    if named:
        return _finer(named, model)
    own = model.checkpoint.weights_dtype(AUTO)
    return activation if own == "bf16" else own


def _finer(dtype: str, model: ModelSpec) -> str:
    """Return the checkpoint's own format where a row names its family alone (`int4` for `int4_g32`)."""
    if not dtype:
        return ""
    own = {str(value) for _, value in weight_types(model.checkpoint.weights)}
    finer = [one for one in own if one.startswith(f"{dtype}_")]
    return finer[0] if len(finer) == 1 else dtype


def _engine(row: MemoryRow) -> tuple[EnginePreset, tuple[int, ...]]:
    """Return the preset whose defaults hold, and the release; vLLM: of the newest preset not after it."""
    engine, version = row.text("engine").lower(), row.text("version")
    presets = [preset for preset in PRESETS.values() if preset.policy == engine and preset.release]
    if not presets:
        raise NotJudged(f"engine {engine}: its memory is not modelled")
    newest = max(presets, key=lambda preset: _numbers(preset.release))
    if not version:
        return newest, _numbers(newest.release)
    release = _numbers(version)
    if not release:
        raise TraceError(f"{row.place}, column version: {version!r} is not a release such as 0.19.0")
    if engine == "vllm" and release < _V1:
        raise NotJudged(f"vLLM {version}: the V0 engine is not modelled")
    older = [preset for preset in presets if _numbers(preset.release)[:2] <= release[:2]]
    found = max(older, key=lambda preset: _numbers(preset.release)) if older else None
    return found or min(presets, key=lambda preset: _numbers(preset.release)), release


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _model(row: MemoryRow, configs: Path) -> ModelSpec:
    name = row.text("base_model") or row.text("model")
    try:
        return load_model(name)
    except ScenarioError:
        path = configs / f"{name.replace('/', '--')}.json"
        if not path.is_file():
            raise
        return load_model(str(path))


def _as_its_chip(gpu: GpuSpec) -> GpuSpec:
    """Return a GPU that says its memory alone with the links and size of the chip in a shipped one."""
    for name in gpus_called(gpu.name.partition("_")[0]):
        shipped = load_gpu(name)
        found = {"nvlink": gpu.nvlink or shipped.nvlink}
        found["multiprocessors"] = gpu.multiprocessors or shipped.multiprocessors
        return gpu.model_copy(update=found)
    return gpu


def _gpu(row: MemoryRow, folder: Path) -> GpuSpec:
    name = row.text("gpu")
    try:
        gpu = load_gpu(gpu_name(name))
    except ScenarioError:
        beside = re.sub(r"[^a-z0-9]+", "_", name.lower())
        if not (folder / beside / "gpu.json").is_file():
            raise
        gpu = _as_its_chip(load_gpu(beside, [folder]))
    total = row.number("gpu_total_gib")
    if total is None:
        return gpu
    if total <= 0:
        raise TraceError(f"{row.place}, column gpu_total_gib: {total:g}, allowed: more than 0")
    source = "the total that the engine printed"
    return gpu.model_copy(update={"hbm": gpu.hbm.model_copy(update={"value": total * GIB, "source": source})})

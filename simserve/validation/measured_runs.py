"""Measured runs of a real engine, as read from a folder: experiments.csv and one requests file per run.

Requests carry what the client sent and saw. Lengths are those asked for: the client counted its own tokens,
which are not the engine's. A failed request has no length on file; its prompt is one of those that repeat.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simserve.core import Trace, TraceOrigin
from simserve.errors import ScenarioError, TraceError, nearest
from simserve.hardware import gpu_called, gpus_called
from simserve.model.load import published as published_model

# Names that measured runs use for models, GPUs and dtypes, in this project's words.

_RUN_AS = {"gb200": "b200_sxm"}
"""GPUs without tables that are run as one with tables; the comparison says so."""
_DTYPES = ((r"nvfp4", "nvfp4"), (r"mxfp4|fp4", "mxfp4"), (r"fp8", "fp8"), (r"bf16|fp16|^$", "bf16"))

_BLOCK_SCALED = re.compile(r"deepseek-(v3|r1)|minimax-m2", re.IGNORECASE)
"""Models whose own FP8 checkpoint has a scale for each 128 x 128 block (`weight_block_size`)."""


def model_preset(published: str) -> str:
    """Return the preset of a published model name (`meta-llama/Llama-2-7b-hf`); raises `ScenarioError`."""
    return published_model(published.split("(")[0]).preset


def gpu_name(published: str) -> str:
    """Return the name of a published GPU (`H100 80GB`); raises `ScenarioError`.

    Records of servers often leave out the form, and mean SXM: that one is taken where only one fits.
    """
    plain = published.split("(")[0]
    found = gpus_called(plain)
    modules = [name for name in found if "_sxm" in name]
    name = modules[0] if len(found) > 1 and len(modules) == 1 else gpu_called(plain)
    return _RUN_AS.get(name, name)


def dtype(published: str, model: str = "") -> str:
    """Return the weights' dtype (`FP16/BF16 (unquantised)` -> bf16; blank: bf16); raises `ScenarioError`.

    FP8 of a model whose own checkpoint is scaled by blocks is `fp8_block`.
    """
    for pattern, name in _DTYPES:
        if re.search(pattern, published.lower()):
            return "fp8_block" if name == "fp8" and _BLOCK_SCALED.search(model) else name
    raise ScenarioError(f"unknown weights dtype {published!r}; known: bf16, fp16, fp8, mxfp4, nvfp4")


Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

WHOLE = -1
"""Stage of the row that speaks of the whole run."""
REQUEST_COLUMNS = (
    "stage_index",
    "arrival_s",
    "input_tokens",
    "output_tokens_requested",
    "ttft_s",
    "e2e_s",
    "prompt_id_inferred",
    "error",
)
_PER_REQUEST = (
    "stage",
    "arrival_ns",
    "prompt_tokens",
    "output_tokens",
    "prompt_id",
    "ttft_s",
    "e2e_s",
    "failed",
)


@dataclass(frozen=True)
class MeasuredRun:
    """One experiment. Request columns have length n, in order of arrival."""

    id: str
    facts: Mapping[str, str]
    """The row of experiments.csv that speaks of the whole run; blank means unknown."""
    stage: Int64
    arrival_ns: Int64
    prompt_tokens: Int64
    output_tokens: Int64
    """Tokens asked for (and, with ignore_eos, produced)."""
    prompt_id: Int64
    """Which of the distinct prompts."""
    ttft_s: Float64
    """NaN where the request failed."""
    e2e_s: Float64
    failed: NDArray[np.bool_]
    steps_file: Path | None

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def overloaded(self) -> bool:
        """True if the client gave up on requests."""
        return self.facts["overloaded"] == "True"

    def number(self, name: str) -> int | None:
        """Return a whole-number fact, None if it is not known."""
        return round(float(self.facts[name])) if self.facts[name] else None

    def head(self, requests: int) -> MeasuredRun:
        """Return the run's first `requests` requests."""
        cut = {name: getattr(self, name)[:requests] for name in _PER_REQUEST}
        return MeasuredRun(id=self.id, facts=self.facts, steps_file=self.steps_file, **cut)

    def trace(self, block_tokens: int) -> Trace:
        """Return the run as a workload; prompts share blocks as the client's prompts shared text."""
        ids, offsets = _blocks(self, block_tokens)
        return Trace(
            self.arrival_ns,
            self.prompt_tokens,
            self.output_tokens,
            TraceOrigin(self.id, "measured run"),
            block_ids=ids,
            block_offsets=offsets,
            block_tokens=block_tokens,
        )


def read_runs(folder: Path, only: Sequence[str] = ()) -> list[MeasuredRun]:
    """Return the experiments of a folder that have a requests file; `only` selects by id or a part of it.

    Raises `TraceError` naming file and column, or the part of an id that matches nothing.
    """
    path = folder / "experiments.csv"
    if not path.is_file():
        raise TraceError(f"{path}: no such file; a folder of measured runs holds experiments.csv")
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    whole = table[table["stage_index"] == str(WHOLE)]
    rows = {str(row["experiment_id"]): row for _, row in whole.iterrows()}
    rows = {key: row for key, row in rows.items() if (folder / f"requests_{key}.csv.gz").is_file()}
    for part in only:
        if not any(part in key for key in rows):
            raise TraceError(f"{path}: no experiment with requests is called {part!r}{nearest(part, rows)}")
    wanted = [key for key in rows if not only or any(part in key for part in only)]
    return [_read_run(folder, key, {str(k): str(v) for k, v in rows[key].items()}) for key in wanted]


def _read_run(folder: Path, key: str, facts: dict[str, str]) -> MeasuredRun:
    path = folder / f"requests_{key}.csv.gz"
    table = pd.read_csv(path)
    missing = [name for name in REQUEST_COLUMNS if name not in table.columns]
    if missing:
        raise TraceError(f"{path}: lacks the column {missing[0]!r}; needed: {', '.join(REQUEST_COLUMNS)}")
    table = table.sort_values("arrival_s", kind="stable")
    arrival_s = table["arrival_s"].to_numpy(np.float64)
    prompt_id = table["prompt_id_inferred"].to_numpy(np.int64)
    steps = folder / f"steps_{key}.csv.gz"
    return MeasuredRun(
        id=key,
        facts=facts,
        stage=table["stage_index"].to_numpy(np.int64),
        arrival_ns=np.rint((arrival_s - arrival_s[0]) * 1e9).astype(np.int64),
        prompt_tokens=_known_lengths(table["input_tokens"].to_numpy(np.float64), prompt_id),
        output_tokens=table["output_tokens_requested"].to_numpy(np.int64),
        prompt_id=prompt_id,
        ttft_s=table["ttft_s"].to_numpy(np.float64),
        e2e_s=table["e2e_s"].to_numpy(np.float64),
        failed=table["error"].to_numpy(np.int64) != 0,
        steps_file=steps if steps.is_file() else None,
    )


def _known_lengths(tokens: Float64, prompt_id: Int64) -> Int64:
    """Fill the lengths of failed requests with those of the same prompt elsewhere (else the mean)."""
    known = ~np.isnan(tokens)
    length = {
        number: float(np.median(tokens[known & (prompt_id == number)])) for number in set(prompt_id[known])
    }
    mean = float(tokens[known].mean())
    filled = np.array([length.get(number, mean) for number in prompt_id])
    return np.rint(np.where(known, tokens, filled)).astype(np.int64)


def _blocks(run: MeasuredRun, block_tokens: int) -> tuple[Int64, Int64]:
    """Return block ids and offsets: a prompt's own blocks after those that its group has in common."""
    counts = run.prompt_tokens // block_tokens
    offsets = np.concatenate([[0], np.cumsum(counts)])
    row = np.repeat(np.arange(len(run)), counts)
    place = np.arange(offsets[-1]) - offsets[row]
    prompt = run.prompt_id[row]
    longest = int(counts.max(initial=1))
    ids = (prompt + 1) * longest + place
    shared = (run.number("system_prompt_tokens") or 0) // block_tokens
    group = prompt // (run.number("prompts_per_group") or 1)
    common = place < shared
    ids[common] = -1 - (group * longest + place)[common]
    return np.unique(ids, return_inverse=True)[1].astype(np.int64), offsets.astype(np.int64)

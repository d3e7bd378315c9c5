"""`python -m simserve.cli.reference [FOLDER]`: writes the reference pages (docs/reference)."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import typer
from typer.cli import get_docs_for_click

from simserve.cli import SUB_APPS, app
from simserve.engines.presets import PRESETS
from simserve.engines.vllm import VLLM
from simserve.hardware import gpu_names, load_gpu
from simserve.latency.tables.profiles import ProfileStore
from simserve.model import active_params, kv_bytes_per_token, load_model, preset_names, total_params
from simserve.model.load import other_names
from simserve.scenario.reference import scenario_reference
from simserve.units import GIB

# The reference page of names: models, GPUs and engines that ship, and what else they are called.

_HEAD = """# Names of models, GPUs and engines

Made from what ships: `make reference`.

A scenario, `simserve models show` and files of measurements understand the names that people paste. The
first screen of a run, the page and `scenario.resolved.yaml` say what was taken.

## Models

A model is found by the name of its repository, with or without the owner, in any case. The end of a name may
say what a release was trained for (`-Instruct`, `-Chat`, `-it`, `-Base`, `-hf`, `-Thinking`) and how it is
quantised (`-FP8`, `-FP8-dynamic`, `-NVFP4`, `-MXFP4`, `-AWQ`, `-GPTQ-Int4`, `-quantized.w4a16`,
`-quantized.w8a8`, `-bnb-4bit`, `-BF16`): such a release comes in its own types. FP8 releases of Qwen,
DeepSeek, Z.ai, MiniMax, StepFun and Xiaomi have a scale for each 128 x 128 weights; NVIDIA's releases ask
for an FP8 KV cache. A fine-tune under a known name is the known model. GGUF, EXL2 and MLX have no price here
and are refused. Nothing else is guessed: a near miss is suggested, not taken. Of a model that is not in the
list give the path of its `config.json`.
"""
_GPUS = """
## GPUs

What nvidia-smi and the product labels of Kubernetes say is understood (`NVIDIA H100 80GB HBM3`,
`NVIDIA-A100-SXM4-40GB`), and so is any choice of a GPU's words, in any case. A name that fits several is
asked back: `A100` has four forms, `H100` three. A folder of your own with `<gpu>/gpu.json` works alike; its
`words` list the words of its names, the chip first. "estimated": no kernel was measured, so every step time
is a roofline at assumed efficiencies, which the run says.
"""
_NEWEST = VLLM.presets[0]
_ENGINES = f"""
## Engines

An engine is found by name and version as package managers write them:
`{VLLM.name}=={_NEWEST.version}`, `{VLLM.title} {_NEWEST.release}`. A bare
name is the newest version that is modelled, as an unpinned installation gives; the resolved scenario pins
it. Any other version is refused, because defaults change between versions. TensorRT-LLM's scheduler is not
modelled.
"""


def names_reference() -> str:
    """Return the page, as Markdown."""
    return "\n".join([_HEAD, *_models(), _GPUS, *_gpus(), _ENGINES, *_engines(), ""])


def _table(*rows: Iterable[str]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], "|" + "---|" * lines[0].count(" | ") + "---|", *lines[1:]]


def _models() -> list[str]:
    rows = [("preset", "billion parameters (active)", "KV bytes per token at 16 bit", "also called")]
    for name in preset_names():
        spec = load_model(name)
        total, active = (f"{count / 1e9:.1f}" for count in (total_params(spec), active_params(spec)))
        size = total if total == active else f"{total} ({active})"
        also = ", ".join(f"`{other}`" for other in other_names(name))
        rows.append((f"`{name}`", size, f"{kv_bytes_per_token(spec):,}", also))
    return _table(*rows)


def _gpus() -> list[str]:
    store, rows = ProfileStore(), [("GPU", "title", "memory, GiB", "kernels", "words")]
    for name in gpu_names():
        spec = load_gpu(name)
        kernels = "measured" if store.ops(name) else "estimated"
        words = " ".join(spec.words)
        rows.append((f"`{name}`", spec.title, f"{spec.hbm_bytes / GIB:.1f}", kernels, words))
    return _table(*rows)


def _engines() -> list[str]:
    rows = [("engine", "release", "defaults of")]
    rows += [(f"`{one.name}`", one.release or "-", one.source) for one in PRESETS.values()]
    return _table(*rows)


def cli_reference() -> str:
    """Return every command with its arguments, options and examples, as Markdown."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="simserve")
    text = get_docs_for_click(obj=group, ctx=context, name="simserve", title="Every command")
    whole, *_ = re.split(rf"^## `simserve (?:{'|'.join(SUB_APPS)})`$", text, flags=re.MULTILINE)
    text = whole + "".join(_of_sub_app(name) for name in SUB_APPS)
    text = text.replace("\\[", "[")  # brackets that the terminal's markup would take
    made = "Made from `simserve COMMAND --help`: `make reference`."
    head, _, rest = text.partition("\n")
    return "\n".join(line.rstrip() for line in f"{head}\n\n{made}\n{rest}".splitlines()).rstrip() + "\n"


def _of_sub_app(name: str) -> str:
    """Return the section of a sub-command that has commands of its own; the list above only names it."""
    group = typer.main.get_group(importlib.import_module(f"simserve.cli.{name}").app)
    context = typer.Context(group, info_name=f"simserve {name}")
    return get_docs_for_click(obj=group, ctx=context, indent=1, name=f"simserve {name}")


PAGES = {"scenario.md": scenario_reference, "cli.md": cli_reference, "names.md": names_reference}


def main() -> None:
    """Write all pages into a folder."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference")
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()

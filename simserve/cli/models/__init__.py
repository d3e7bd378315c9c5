"""`simserve models`: the models that ship, and what any model needs on given GPUs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli import completion
from simserve.cli.help import App
from simserve.cli.models.tables import print_ledger, print_model, print_table

if TYPE_CHECKING:
    from simserve.model import MemoryLedger, ModelSpec, Parallelism
    from simserve.model.dtypes import WeightsDtype


app = App(
    invoke_without_command=True,
    epilog="Examples:"
    "\n\nsimserve models"
    "\n\nsimserve models show deepseek-v3 --gpu h200_sxm --tp 8 --weights-dtype fp8"
    "\n\nsimserve models show my-model/config.json",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@app.callback()
def models(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the models that ship; `show NAME` gives layers, weights and the memory on a GPU."""
    if ctx.invoked_subcommand:
        return
    from simserve.model import load_model, preset_names

    specs = [load_model(name) for name in preset_names()]
    if as_json:
        print(json.dumps([_facts(spec) for spec in specs], indent=2))
    else:
        print_table(specs)


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.models,
            help="A preset, a Hugging Face name, or the path of a config.json.",
        ),
    ],
    gpu: Annotated[
        str | None,
        typer.Option(autocompletion=completion.gpus, help="GPU to size memory and step times for."),
    ] = None,
    tp: Annotated[int, typer.Option(help="Tensor parallelism.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option(help="Data-parallel attention ranks.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert parallelism (1, or a divisor of tp x dp).")] = 1,
    weights_dtype: Annotated[
        str,
        typer.Option(
            help="bf16, fp8, fp8_block, int8, int4, nvfp4, mxfp4; or by part: "
            "attention=bf16,routed_experts=fp8. auto: what the checkpoint ships in."
        ),
    ] = "auto",
    kv_dtype: Annotated[
        str, typer.Option(help="bf16, fp8, fp8_ds_mla, int8, int4; auto: what the checkpoint asks for.")
    ] = "auto",
    engine: Annotated[
        str,
        typer.Option(
            autocompletion=completion.engines, help="Engine version whose defaults and memory rules apply."
        ),
    ] = "vllm",
    sequences: Annotated[int, typer.Option(help="Sequences in the decode step, per DP rank.")] = 32,
    context: Annotated[int, typer.Option(help="Context of each sequence, in tokens.")] = 2048,
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt in the prefill step.")] = 2048,
    as_json: AsJson = False,
) -> None:
    """Show one model: layers, parameters and KV bytes; with --gpu, also its memory and step times.

    Times are of one decode step and of one prompt, kernel by kernel, with the source of each figure.

    Example: simserve models show llama-3.1-70b --gpu h100_sxm --tp 4 --sequences 64 --context 4096
    """
    from simserve.cli.models.steps import Load, model_steps
    from simserve.model import Parallelism, load_model, weight_bytes_per_gpu

    spec, degrees = load_model(name), Parallelism(tp, pp, dp, ep)
    weights = spec.checkpoint.weights_dtype(_parts(weights_dtype))
    kv_dtype = spec.checkpoint.kv_dtype(kv_dtype)
    facts = _facts(spec, degrees, weights, kv_dtype)
    ledger = _ledger(spec, gpu, degrees, weights, kv_dtype, engine) if gpu else None
    steps = None
    if gpu:
        load, dtypes = (
            Load(sequences, context, prompt),
            {"weights_dtype": weights, "kv_dtype": kv_dtype},
        )
        steps = model_steps(spec, gpu, degrees, load, **dtypes, engine=engine)
    if as_json:
        facts["weight_bytes_per_gpu"] = weight_bytes_per_gpu(spec, degrees, weights)
        facts["ledger"] = _ledger_facts(ledger) if ledger else None
        facts["steps"] = steps.facts() if steps else None
        print(json.dumps(facts, indent=2))
        return
    print_model(spec, degrees, weights, kv_dtype)
    if ledger:
        print_ledger(ledger, str(gpu))
    if steps:
        print()
        steps.print()


def _parts(text: str) -> WeightsDtype:
    """Return what `attention=bf16,routed_experts=fp8` means; a word without `=` holds for all parts."""
    from simserve.errors import ScenarioError, nearest
    from simserve.model.dtypes import WeightTypes

    if "=" not in text:
        return text
    types: dict[str, str] = {}
    known = WeightTypes.model_fields
    for item in text.split(","):
        part, _, dtype = item.partition("=")
        types[part] = dtype
        if part not in known:
            hint = nearest(part, known)
            raise ScenarioError(f"--weights-dtype: unknown part {part!r}{hint}; known: {', '.join(known)}")
    return WeightTypes(**types)


def _ledger(
    spec: ModelSpec, gpu: str, degrees: Parallelism, weights_dtype: WeightsDtype, kv_dtype: str, engine: str
) -> MemoryLedger:
    from simserve.deploy.engine import placement_of
    from simserve.engines.presets import ENGINES, engine_preset, memory_rules
    from simserve.hardware import load_gpu
    from simserve.model import memory_ledger
    from simserve.model.memory_lines import MemorySettings

    preset, gpu_spec = engine_preset(engine), load_gpu(gpu)
    longest = spec.max_position_embeddings
    placement = placement_of(spec, gpu_spec.sm_arch, degrees)
    defaults = preset.options(gpu_spec.hbm_bytes, gpu_spec.name, {}, longest, placement)
    budget = int(defaults.get("max_num_batched_tokens", 8192))
    return memory_ledger(
        MemorySettings(
            spec,
            gpu_spec,
            degrees,
            weights_dtype=weights_dtype,
            kv_dtype=kv_dtype,
            block_size=preset.block_size(placement),
            gpu_memory_utilization=preset.memory_share(gpu_spec.hbm_bytes, defaults, placement),
            max_num_batched_tokens=budget,
            max_num_seqs=int(defaults.get("max_num_seqs", 256)),
            rules=memory_rules(preset.name),
            kv_groups=ENGINES[preset.policy].kv_groups(spec, defaults, budget) if degrees.pp == 1 else None,
        )
    )


def _facts(
    spec: ModelSpec,
    degrees: Parallelism | None = None,
    weights_dtype: WeightsDtype = "bf16",
    kv_dtype: str = "bf16",
) -> dict[str, Any]:
    from simserve.model import (
        Parallelism,
        active_params,
        flops_per_token,
        kv_bytes_per_token,
        kv_bytes_per_token_per_rank,
        total_params,
        weight_bytes_total,
    )

    degrees = degrees or Parallelism()
    return {
        "name": spec.name,
        "source": spec.source,
        "layers": spec.num_layers,
        "groups": [asdict(group) for group in spec.layers],
        "params": total_params(spec),
        "active_params": round(active_params(spec)),
        "kv_bytes_per_token": kv_bytes_per_token(spec, kv_dtype),
        "kv_bytes_per_token_per_rank": kv_bytes_per_token_per_rank(spec, degrees, kv_dtype),
        "flops_per_token": flops_per_token(spec),
        "weight_bytes": weight_bytes_total(spec, weights_dtype),
    }


def _ledger_facts(ledger: MemoryLedger) -> dict[str, Any]:
    plain = asdict(ledger)
    plain["kv_tokens"] = ledger.kv_tokens
    return plain

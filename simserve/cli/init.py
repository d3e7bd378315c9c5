"""`simserve init`: write a scenario file from flags, or from the answers to a few questions."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import typer

from simserve.cli import completion
from simserve.cli.overwrite import refuse_to_overwrite
from simserve.errors import UserError

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS_OF_YAML = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def init(
    model: str | None = typer.Option(
        None, autocompletion=completion.models, help="Model: `simserve models` lists them; or a config.json."
    ),
    gpu: str | None = typer.Option(
        None, autocompletion=completion.gpus, help="GPU: `simserve gpus` lists them."
    ),
    engine: str | None = typer.Option(
        None, autocompletion=completion.engines, help="Engine and version; default: vllm-0.33."
    ),
    replicas: int | None = typer.Option(None, min=1, help="Copies of the model; default: 1."),
    tp: int | None = typer.Option(None, min=1, help="GPUs that share each copy; default: 1."),
    trace: str | None = typer.Option(None, metavar="FILE", help="Request trace to replay."),
    rate: float | None = typer.Option(None, help="Instead of a trace: requests per second."),
    prompt_tokens: int | None = typer.Option(None, min=1, help="Tokens of each prompt, with --rate."),
    output_tokens: int | None = typer.Option(None, min=1, help="Tokens of each answer, with --rate."),
    requests: int = typer.Option(1000, min=1, help="Requests to generate, with --rate."),
    slo_ttft_ms: float | None = typer.Option(None, help="Longest time to first token of a good request, ms."),
    slo_tpot_ms: float | None = typer.Option(
        None, help="Longest mean time per later token of a good request, ms."
    ),
    out: Path = typer.Option(Path("scenario.yaml"), help="File to write."),
    force: bool = typer.Option(False, "--force", help="Replace an existing file."),
) -> None:
    """Write a scenario that `simserve run` accepts as it is; on a terminal, ask for what is not given.

    Examples:

    simserve init

    simserve init --model llama-3.1-8b --gpu h100_sxm --rate 4 --prompt-tokens 1000 --output-tokens 200

    simserve init --model llama-3.1-8b --gpu h100_sxm --trace traces/chat.csv.gz --out mine.yaml
    """
    refuse_to_overwrite(out, force)
    lengths = {"--rate": rate, "--prompt-tokens": prompt_tokens, "--output-tokens": output_tokens}
    _one_workload(trace, lengths)
    if sys.stdin.isatty():
        model = model or typer.prompt("Model", default="llama-3.1-8b")
        gpu = gpu or typer.prompt("GPU", default="h100_sxm")
        engine = engine or typer.prompt("Engine", default="vllm-0.33")
        replicas = replicas or typer.prompt("Replicas", default=1, type=int)
        tp = tp or typer.prompt("GPUs of each replica (tp)", default=1, type=int)
        if trace is None and not any(lengths.values()):
            trace = typer.prompt("Trace file (empty: generate requests)", default="", show_default=False)
        if not trace:
            rate = rate or typer.prompt("Requests per second", type=float)
            prompt_tokens = prompt_tokens or typer.prompt("Tokens of each prompt", type=int)
            output_tokens = output_tokens or typer.prompt("Tokens of each answer", type=int)
        if slo_ttft_ms is None and slo_tpot_ms is None:
            slo_ttft_ms = typer.prompt("Target for TTFT in ms (0: none)", default=0.0, type=float) or None
            slo_tpot_ms = typer.prompt("Target for TPOT in ms (0: none)", default=0.0, type=float) or None
    lengths = {"--rate": rate, "--prompt-tokens": prompt_tokens, "--output-tokens": output_tokens}
    needed: dict[str, Any] = {"--model": model, "--gpu": gpu, **({} if trace else lengths)}
    if missing := [flag for flag, value in needed.items() if value is None]:
        also = "; or give --trace instead of the last three" if missing[-3:] == list(lengths) else ""
        raise UserError(f"init: give {', '.join(missing)} (only a terminal is asked){also}")
    text = _scenario(
        model=str(model),
        gpu=str(gpu),
        engine=engine or "vllm-0.33",
        replicas=replicas or 1,
        tp=tp or 1,
        workload=_replayed(trace, out) if trace else _generated(requests, rate, prompt_tokens, output_tokens),
        slo={"ttft_ms": slo_ttft_ms, "tpot_ms": slo_tpot_ms},
        name=out.stem,
    )
    _write(text, out)
    file = shlex.quote(str(out))
    typer.echo(f"Wrote {out}. Next:")
    typer.echo(f"  simserve run {file}")
    typer.echo(f"  simserve run {file} --force --set pools.0.replicas={(replicas or 1) * 2}")
    typer.echo(
        f"  simserve models show {shlex.quote(str(model))} --gpu {shlex.quote(str(gpu))} --tp {tp or 1}"
    )


def _one_workload(trace: str | None, lengths: dict[str, Any]) -> None:
    given = [flag for flag, value in lengths.items() if value is not None]
    if trace and given:
        raise UserError(f"init: --trace has its own arrivals and lengths: leave out {', '.join(given)}")


def _scalar(value: str) -> str:
    """Return a string as YAML writes it, quoted where it would be read as something else."""
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_YAML
    return value if plain else json.dumps(value, ensure_ascii=False)


def _replayed(trace: str, out: Path) -> str:
    """Return the workload of a trace; a file of the current folder is named from the scenario's folder."""
    path = Path(trace)
    if path.is_file() and not path.is_absolute():
        trace = Path(os.path.relpath(path, out.parent)).as_posix()
    return (
        f"  trace: {_scalar(trace)}\n"
        "  rate_scale: 1                     # 2: the same requests in half the time\n"
    )


def _generated(requests: int, rate: float | None, prompt: int | None, output: int | None) -> str:
    return (
        "  synthetic:\n"
        f"    requests: {requests}\n"
        f"    arrivals: {{kind: poisson, rate_per_s: {rate}}}\n"
        "    # Every request has the same lengths; for a spread: {kind: lognormal, p50: 900, mean: 1500}\n"
        f"    prompt_tokens: {{kind: constant, value: {prompt}}}\n"
        f"    output_tokens: {{kind: constant, value: {output}}}\n"
    )


def _scenario(
    *,
    model: str,
    gpu: str,
    engine: str,
    replicas: int,
    tp: int,
    workload: str,
    slo: dict[str, float | None],
    name: str,
) -> str:
    limits = ", ".join(f"{key}: {value:g}" for key, value in slo.items() if value is not None)
    targets = (
        f"slo: {{{limits}}}    # a good request meets all of these"
        if limits
        else "# slo: {ttft_ms: 500, tpot_ms: 25}    # limits of a good request; without them none is judged"
    )
    return (
        "# Every key: docs/reference/scenario.md, or `simserve schema` for your editor.\n"
        f"name: {json.dumps(name, ensure_ascii=False)}\n\n"
        f"model: {_scalar(model)}    # see `simserve models`, or the path of a Hugging Face config.json\n"
        f"engine: {_scalar(engine)}    # that version's scheduler and defaults\n\n"
        f"workload:\n{workload}\n"
        "pools:    # replicas: copies of the model; tp: GPUs that share each copy\n"
        f"  - {{name: main, gpu: {_scalar(gpu)}, replicas: {replicas}, tp: {tp}}}\n\n"
        f"{targets}\n"
    )


def _write(text: str, out: Path) -> None:
    """Write the file once it is known that it can be run; raises `UserError` and writes nothing if not."""
    from simserve.scenario import build_all, load_scenario

    trial = out.with_name(f".{out.name}.partial")
    try:
        trial.write_text(text, encoding="utf-8")
        build_all(load_scenario(trial))
        trial.replace(out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from error
    except UserError as error:
        problem = str(error).replace(str(trial), str(out))
        raise type(error)(f"{problem}\n{out}: not written") from error
    finally:
        if trial.parent.is_dir():
            trial.unlink(missing_ok=True)

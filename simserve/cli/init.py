"""`simserve init`: write a scenario file from flags, or from the answers to a few questions."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from simserve.cli import completion
from simserve.cli.init_text import Wanted, scenario_text
from simserve.cli.overwrite import refuse_to_overwrite
from simserve.errors import UserError


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
        model = model or _ask("Model", _model, "llama-3.1-8b")
        gpu = gpu or _ask("GPU", _gpu, "h100_sxm")
        engine = engine or _ask("Engine", _engine, "vllm-0.33")
        replicas = replicas or _ask("Replicas", _count, "1")
        tp = tp or _ask("GPUs of each replica (tp)", _count, "1")
        if trace is None and not any(lengths.values()):
            trace = _ask("Trace file (empty: generate requests)", _trace, "")
        if not trace:
            rate = rate or _ask("Requests per second", _positive)
            prompt_tokens = prompt_tokens or _ask("Tokens of each prompt", _count)
            output_tokens = output_tokens or _ask("Tokens of each answer", _count)
        if slo_ttft_ms is None and slo_tpot_ms is None:
            slo_ttft_ms = _ask("Target for TTFT in ms (0: none)", _limit, "0")
            slo_tpot_ms = _ask("Target for TPOT in ms (0: none)", _limit, "0")
    lengths = {"--rate": rate, "--prompt-tokens": prompt_tokens, "--output-tokens": output_tokens}
    needed: dict[str, Any] = {"--model": model, "--gpu": gpu, **({} if trace else lengths)}
    if missing := [flag for flag, value in needed.items() if value is None]:
        also = "; or give --trace instead of the last three" if missing[-3:] == list(lengths) else ""
        raise UserError(f"init: give {', '.join(missing)} (questions are asked on a terminal only){also}")
    slo = {"ttft_ms": slo_ttft_ms, "tpot_ms": slo_tpot_ms}
    wanted = Wanted(
        model=str(model),
        gpu=str(gpu),
        engine=engine or "vllm-0.33",
        replicas=replicas or 1,
        tp=tp or 1,
        trace=trace,
        rate=rate,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        requests=requests,
        slo={name: limit for name, limit in slo.items() if limit},
    )
    _write(wanted, out)
    for line in _next_lines(wanted, out):
        typer.echo(line)


def _one_workload(trace: str | None, lengths: dict[str, Any]) -> None:
    given = [flag for flag, value in lengths.items() if value is not None]
    if trace and given:
        raise UserError(f"init: --trace has its own arrivals and lengths: leave out {', '.join(given)}")


def _ask(question: str, understood: Callable[[str], Any], default: str | None = None) -> Any:
    """Ask until the answer is understood; a wrong one is explained."""

    def checked(answer: str) -> Any:
        try:
            return understood(answer.strip())
        except (UserError, ValueError) as error:
            raise typer.BadParameter(str(error)) from error

    return typer.prompt(question, default=default, value_proc=checked, show_default=bool(default))


def _model(answer: str) -> str:
    from simserve.model import load_model

    load_model(answer)
    return answer


def _gpu(answer: str) -> str:
    from simserve.hardware import load_gpu

    load_gpu(answer)
    return answer


def _engine(answer: str) -> str:
    from simserve.policy.presets import engine_called

    engine_called(answer)
    return answer


def _trace(answer: str) -> str:
    from simserve.scenario.files import find

    if answer and find(answer, Path()) is None:
        raise UserError(f"{answer}: no such file")
    return answer


def _count(answer: str) -> int:
    if not answer.isdecimal() or int(answer) < 1:
        raise ValueError(f"{answer!r}: give a whole number, 1 or more")
    return int(answer)


def _positive(answer: str) -> float:
    if (value := _limit(answer)) == 0:
        raise ValueError(f"{answer!r}: give a number above 0")
    return value


def _limit(answer: str) -> float:
    try:
        value = float(answer)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{answer!r}: give a number, 0 or more")
    return value


def _next_lines(wanted: Wanted, out: Path) -> list[str]:
    """Return what to do next, in the reader's own names."""
    file = shlex.quote(str(out))
    model, gpu = shlex.quote(wanted.model), shlex.quote(wanted.gpu)
    return [
        f"Wrote {out}: {wanted.name}. Next:",
        f"  simserve run {file}",
        f"  simserve run {file} --force --set pools.0.replicas={wanted.replicas * 2}",
        f"  simserve models show {model} --gpu {gpu} --tp {wanted.tp}",
    ]


def _write(wanted: Wanted, out: Path) -> None:
    """Write the file once it is known that it can be run; raises `UserError` and writes nothing if not."""
    from simserve.cli.init_variants import questions_of
    from simserve.scenario import build, load_scenario

    trial = out.with_name(f".{out.name}.partial")
    try:
        trial.write_text(scenario_text(wanted, out, {}), encoding="utf-8")
        it = load_scenario(trial)
        questions = questions_of(wanted, it, build(it))
        trial.write_text(scenario_text(wanted, out, questions), encoding="utf-8")
        trial.replace(out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from error
    except UserError as error:
        problem = str(error).replace(str(trial), str(out))
        raise type(error)(f"{problem}\n{out}: not written") from error
    finally:
        if trial.parent.is_dir():
            trial.unlink(missing_ok=True)

"""`simserve init`: write a scenario file from flags, or from the answers to a few questions."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from simserve.cli import completion
from simserve.cli.writing import refuse_to_overwrite
from simserve.errors import UserError, together

if TYPE_CHECKING:
    from simserve.deploy.build import Deployment
    from simserve.scenario import LoadedScenario


# The scenario that `simserve init` writes: what was asked for, and the questions to ask next.

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS_OF_YAML = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


@dataclass(frozen=True)
class Wanted:
    """What a scenario was asked to hold. Either `trace`, or a rate (requests/s) and lengths (tokens)."""

    model: str
    gpu: str
    engine: str
    replicas: int
    tp: int
    trace: str | None
    rate: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    requests: int
    slo: dict[str, float]
    """Limits in ms by name; empty if there are none."""

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.replicas * self.tp

    @property
    def name(self) -> str:
        """The scenario's name."""
        return f"{self.model} on {self.gpus} x {self.gpu}"


def scenario_text(wanted: Wanted, out: Path, questions: dict[str, list[str]]) -> str:
    """Return the scenario; `questions` have the lines of the variants that answer them, to be uncommented."""
    file = out.name
    limits = ", ".join(f"{key}: {value:g}" for key, value in wanted.slo.items())
    targets = (
        f"slo: {{{limits}}}    # a good request meets all of these"
        if limits
        else "# slo: {ttft_ms: 500, tpot_ms: 25}    # limits of a good request; without them none is judged"
    )
    return (
        f"# Run it: simserve run {file}    Every key: docs/reference/scenario.md, or `simserve schema`\n"
        f"name: {json.dumps(wanted.name, ensure_ascii=False)}\n\n"
        f"model: {scalar(wanted.model)}\n"
        f"engine: {scalar(wanted.engine)}    # that version's scheduler and defaults\n\n"
        f"workload:{_workload(wanted, out)}\n"
        f"pools:    # {wanted.gpus} GPUs: copies of the model (replicas) x GPUs that share each copy (tp)\n"
        f"  - {pool(wanted.gpu, wanted.replicas, wanted.tp)}\n\n"
        f"{targets}\n"
        f"{_questions(questions, file)}"
    )


def pool(gpu: str, replicas: int, tp: int, role: str = "") -> str:
    """Return one pool in a line."""
    named = f"name: {role}, role: {role}" if role else "name: main"
    return f"{{{named}, gpu: {scalar(gpu)}, replicas: {replicas}, tp: {tp}}}"


def scalar(value: str) -> str:
    """Return a string as YAML writes it, quoted where it would be read as something else."""
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_YAML
    return value if plain else json.dumps(value, ensure_ascii=False)


def _questions(questions: dict[str, list[str]], file: str) -> str:
    if not questions:
        return ""
    lines = [
        "",
        f"# To ask more, uncomment `compare:` and the lines of a question, then: simserve run {file} --force",
        "# compare:",
    ]
    for question, variants in questions.items():
        lines += [f"#   # {question}", *(f"#   {line}" for line in variants)]
    return "\n".join([*lines, ""])


def _workload(wanted: Wanted, out: Path) -> str:
    if wanted.trace:
        return (
            f"    # what was read, and how: simserve trace show {wanted.trace}\n"
            f"  trace: {scalar(_from_scenario(wanted.trace, out))}\n"
            "  rate_scale: 1    # 2: the same requests in half the time\n"
        )
    prompt, output = wanted.prompt_tokens or 0, wanted.output_tokens or 0
    spread = f"{{kind: lognormal, p50: {max(1, prompt * 2 // 3)}, mean: {prompt}}}"
    return (
        "    # your own requests instead: `trace: FILE` in place of `synthetic:` and what is below it\n"
        "  synthetic:\n"
        f"    requests: {wanted.requests}\n"
        f"    arrivals: {{kind: poisson, rate_per_s: {wanted.rate:g}}}\n"
        f"    prompt_tokens: {{kind: constant, value: {prompt}}}    # or varied: {spread}\n"
        f"    output_tokens: {{kind: constant, value: {output}}}\n"
    )


def _from_scenario(trace: str, out: Path) -> str:
    """Return the name of a trace; that of a file of the current folder starts from the scenario's folder."""
    path = Path(trace)
    if path.is_file() and not path.is_absolute():
        return Path(os.path.relpath(path, out.parent)).as_posix()
    return trace


# The questions that `simserve init` puts into a scenario, as variants of it: GPUs, a split, chunk sizes.

Lines = list[str]
"""Variants as YAML, below `compare:`."""
Runs = Callable[[dict[str, Any]], bool]
"""Whether the scenario with some changed values could be run."""
CHUNK = ("max_num_batched_tokens", "chunked_prefill_size")
"""The engines' options for the tokens of a step: vLLM's, SGLang's."""


def questions_of(wanted: Wanted, it: LoadedScenario, base: Deployment) -> dict[str, Lines]:
    """Return the questions to ask next, each with variants that can be run."""
    from simserve.deploy.build import Parts, build
    from simserve.scenario.load import changed

    parts = Parts()

    def runs(changes: dict[str, Any]) -> bool:
        try:
            build(changed(it, changes), base.trace, parts)
        except UserError:
            return False
        return True

    found = {
        "Which of my GPUs?": _other_gpu(wanted, base, runs),
        "Prefill and decode apart, or not?": _split(wanted, runs),
        "Which chunk size?": _chunks(base),
    }
    return {question: lines for question, lines in found.items() if lines}


def _other_gpu(wanted: Wanted, base: Deployment, runs: Runs) -> Lines:
    """Return the next faster GPU with measured kernels that the model fits on, or the next slower one."""
    from simserve.hardware import load_gpu
    from simserve.latency.tables.profiles import ProfileStore

    here = base.pools[0].gpu
    others = [load_gpu(name) for name in ProfileStore().gpus() if name != here.name]
    more = {gpu.name: gpu.hbm_bytes_per_s - here.hbm_bytes_per_s for gpu in others}
    for name in sorted(more, key=lambda name: (more[name] < 0, abs(more[name]))):
        if runs({"pools.0.gpu": name}):
            return [f"on_{name}: {{pools: [{pool(name, wanted.replicas, wanted.tp)}]}}"]
    return []


def _split(wanted: Wanted, runs: Runs) -> Lines:
    """Return a split over the same GPUs; where the model needs all of them, one over twice as many."""
    half, tp = wanted.replicas // 2, wanted.tp
    same = [(half, wanted.replicas - half, tp)] if half else [(1, 1, tp // 2)] if tp > 1 else []
    for prefill, decode, degree in [*same, (wanted.replicas, wanted.replicas, tp)]:
        roles = {"prefill": prefill, "decode": decode}
        plain = {"gpu": wanted.gpu, "tp": degree}
        if runs({"pools": [{"name": r, "role": r, "replicas": n, **plain} for r, n in roles.items()]}):
            lines = [f"    - {pool(wanted.gpu, n, degree, role)}" for role, n in roles.items()]
            gpus = (prefill + decode) * degree
            if gpus == wanted.gpus:
                return ["split:", "  pools:", *lines]
            whole = pool(wanted.gpu, wanted.replicas * 2, tp)
            return [f"split_{gpus}_gpus:", "  pools:", *lines, f"whole_{gpus}_gpus: {{pools: [{whole}]}}"]
    return []


def _chunks(base: Deployment) -> Lines:
    """Return a quarter and twice the tokens that a step holds by default."""
    options = base.pools[0].engine.options
    name = next((name for name in CHUNK if options.get(name)), None)
    sizes = (options[name] // 4, options[name] * 2) if name else ()
    return [f"chunks_of_{tokens}: {{engine: {{{name}: {tokens}}}}}" for tokens in sizes]


def init(
    model: str | None = typer.Option(
        None, autocompletion=completion.models, help="Model: `simserve models` lists them; or a config.json."
    ),
    gpu: str | None = typer.Option(
        None, autocompletion=completion.gpus, help="GPU: `simserve gpus` lists them."
    ),
    engine: str | None = typer.Option(
        None, autocompletion=completion.engines, help="Engine and version; default: the newest vLLM."
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
        engine = engine or _ask("Engine", _engine, _default_engine())
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
        engine=engine or _default_engine(),
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


def _default_engine() -> str:
    from simserve.engines.presets import DEFAULT_ENGINE

    return DEFAULT_ENGINE


def _engine(answer: str) -> str:
    from simserve.engines.presets import engine_called

    engine_called(answer)
    return answer


def _trace(answer: str) -> str:
    from simserve.scenario.load import find

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
    from simserve.deploy.build import build
    from simserve.scenario.load import loaded_text

    trial = out.with_name(f".{out.name}.partial")
    try:
        it = loaded_text(scenario_text(wanted, out, {}), out)
        questions = questions_of(wanted, it, build(it))
        trial.write_text(scenario_text(wanted, out, questions), encoding="utf-8")
        trial.replace(out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from error
    except UserError as error:
        raise together([error, UserError("not written", place=str(out))]) from error
    finally:
        if trial.parent.is_dir():
            trial.unlink(missing_ok=True)

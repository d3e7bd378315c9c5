"""The scenario that `simserve init` writes: what was asked for, and the questions to ask next."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

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

"""The two steps that `simserve models show` explains: one that decodes a batch, and one prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from simserve.latency import OpTime
    from simserve.model import ModelSpec, Parallelism
    from simserve.model.dtypes import WeightsDtype


class Load(NamedTuple):
    """What the steps carry; with attention data parallelism, on one of its ranks."""

    sequences: int
    context: int
    """Tokens that each decoding sequence attends, the new one included."""
    prompt: int
    """New tokens of the prompt, nothing cached."""

    def check(self) -> None:
        """Raise `ScenarioError` for a step that carries nothing."""
        from simserve.errors import ScenarioError

        for name, value in self._asdict().items():
            if value < 1:
                raise ScenarioError(f"--{name} {value}: at least 1")


class ModelSteps(NamedTuple):
    """Where the time of a model's steps goes."""

    load: Load
    decode: list[OpTime]
    prompt: list[OpTime]
    overhead: str
    """Name of the engine overhead that is included."""
    estimated: tuple[str, ...]
    """What has no measured table, in words."""

    def print(self) -> None:
        """Print both steps, and what was estimated."""
        from simserve.cli.step_text import print_step

        load = self.load
        print_step(f"Decode, {load.sequences:,} sequences at context {load.context:,}", self.decode)
        print()
        print_step(f"Prefill, one prompt of {load.prompt:,} tokens", self.prompt)
        for note in self.estimated:
            print(f"estimated: {note}")

    def facts(self) -> dict[str, Any]:
        """Return the same for machines."""

        def step(parts: list[OpTime], **about: int) -> dict[str, Any]:
            total_us = sum(part.us for part in parts)
            plain = [part._asdict() | {"share": part.us / total_us} for part in parts]
            return {**about, "step_us": total_us, "parts": plain}

        load = self.load
        return {
            "decode": step(self.decode, sequences=load.sequences, context=load.context),
            "prompt": step(self.prompt, tokens=load.prompt),
            "overhead": self.overhead,
            "estimated": list(self.estimated),
        }


def model_steps(
    spec: ModelSpec,
    gpu: str,
    degrees: Parallelism,
    load: Load,
    weights_dtype: WeightsDtype,
    kv_dtype: str,
    engine: str,
) -> ModelSteps:
    """Return where the time goes, with the overhead of the named engine version."""
    from simserve.core import Chunk, Request
    from simserve.hardware import load_gpu
    from simserve.latency import OVERHEADS, compile_step_latency, explain_step
    from simserve.policy.presets import engine_preset

    load.check()
    overhead = OVERHEADS.get(engine_preset(engine).policy, OVERHEADS["vllm"])
    latency = compile_step_latency(
        spec, load_gpu(gpu), degrees, weights_dtype=weights_dtype, kv_dtype=kv_dtype, overhead=overhead
    )
    chunk = Chunk(Request(0, 0, load.prompt, 1), load.prompt, 0, True)
    return ModelSteps(
        load,
        explain_step(latency, load.sequences, load.sequences * load.context),
        explain_step(latency, 0, 0, [chunk]),
        overhead.name,
        latency.estimated,
    )

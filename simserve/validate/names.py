"""Names that measured runs use for models, GPUs and dtypes, in this project's words."""

from __future__ import annotations

import re

from simserve.errors import ScenarioError
from simserve.hardware import gpu_called, gpus_called
from simserve.model.load import published as published_model

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

"""Names that measured runs use for models, GPUs and dtypes, in this project's words."""

from __future__ import annotations

import re

from simserve.errors import ScenarioError, nearest
from simserve.hardware import gpu_names
from simserve.model import preset_names

_MODEL_SUFFIXES = re.compile(
    r"-(hf|instruct|chat|it|base|fp8|fp8-dynamic|nvfp4|awq|\d{4}|17b-128e|17b-16e|17b-16e-instruct|2507)$"
)
_SAME_ARCHITECTURE = {"deepseek-r1": "deepseek-v3"}
"""Models that differ from a preset in their weights only."""
_GPUS = (
    (r"h100.*(sxm|80)", "h100_sxm"),
    (r"h200", "h200_sxm"),
    (r"gb200|\bb200", "b200_sxm"),
    (r"a100", "a100_sxm"),
    (r"h800", "h800"),
    (r"h20\b", "h20"),
    (r"l40s", "l40s"),
    (r"4090", "rtx_4090"),
    (r"rtx pro 6000|rtxpro6000", "rtx_pro_6000"),
)
_DTYPES = ((r"nvfp4", "nvfp4"), (r"mxfp4|fp4", "mxfp4"), (r"fp8", "fp8"), (r"bf16|fp16|^$", "bf16"))

_BLOCK_SCALED = re.compile(r"deepseek-(v3|r1)|minimax-m2", re.IGNORECASE)
"""Models whose own FP8 checkpoint has a scale for each 128 x 128 block (`weight_block_size`)."""


def model_preset(published: str) -> str:
    """Return the preset of a published model name (`meta-llama/Llama-2-7b-hf`); raises `ScenarioError`."""
    known = preset_names()
    plain = published.split("(")[0].strip().split("/")[-1].lower().replace("_", "-")
    plain = plain.replace("meta-llama-", "llama-")
    name = plain
    while name not in known and (shorter := _MODEL_SUFFIXES.sub("", name)) != name:
        name = shorter
    if name not in known:  # a name without its size
        name = next((one for one in known if re.sub(r"-\d+b$", "", one) == name), name)
    name = next((ours for theirs, ours in _SAME_ARCHITECTURE.items() if name.startswith(theirs)), name)
    if name not in known:
        raise ScenarioError(f"no preset for the model {published!r}{nearest(plain, known)}")
    return name


def gpu_name(published: str) -> str:
    """Return the name of a published GPU (`H100-SXM-80GB`); raises `ScenarioError`."""
    for pattern, name in _GPUS:
        if re.search(pattern, published.lower()) and name in gpu_names():
            return name
    raise ScenarioError(f"no figures for the GPU {published!r}{nearest(published, gpu_names())}")


def dtype(published: str, model: str = "") -> str:
    """Return the weights' dtype (`FP16/BF16 (unquantised)` -> bf16; blank: bf16); raises `ScenarioError`.

    FP8 of a model whose own checkpoint is scaled by blocks is `fp8_block`.
    """
    for pattern, name in _DTYPES:
        if re.search(pattern, published.lower()):
            return "fp8_block" if name == "fp8" and _BLOCK_SCALED.search(model) else name
    raise ScenarioError(f"unknown weights dtype {published!r}; known: bf16, fp16, fp8, mxfp4, nvfp4")

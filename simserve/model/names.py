"""Which preset a published model name means, and how that release is quantised.

A name is looked up without its owner and without regard to case; then without what its end says about the
kind of release: trained for chat (`-Instruct`), quantised (`-FP8`, `-AWQ`, `-quantized.w4a16`). Releases with
a date or a version in their name are listed by the preset, because a version can change a shape (Mistral 7B
v0.1 has a window, v0.3 another vocabulary): `_aliases` if all is the same, `_releases` with the fields that
are not. Nothing else is taken off: a near miss is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simserve.errors import ScenarioError, nearest

Quantisation = Mapping[str, Any]
"""A `quantization_config` as the release's config.json has it; empty: 16 bit."""

_ROLES = re.compile(r"-(hf|instruct|chat|it|base|pt|thinking|unsloth|neuralmagic|compressed)$")
"""Ends that say what a release was trained for or who packed it; its shape is that of the others."""


def _compressed(**weights: Any) -> Quantisation:
    """llm-compressor: every linear layer but the head."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


_BLOCKS: Quantisation = {"quant_method": "fp8", "weight_block_size": [128, 128]}
_NF4: Quantisation = {
    "quant_method": "bitsandbytes",
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
}
_QUANTISED: tuple[tuple[str, Quantisation], ...] = (
    (
        "fp8-kv|fp8-static-pertensor",
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    ),
    ("fp8-block", _compressed(num_bits=8, type="float", block_structure=[128, 128])),
    (
        r"fp8|fp8-dynamic|fp8-static|fp8-per-?tensor|w8a8-fp8|quantized\.w8a8-fp8",
        _compressed(num_bits=8, type="float"),
    ),
    ("(nvfp4|fp4)(-v2)?|nvfp4a16", _compressed(num_bits=4, type="float", group_size=16)),
    (r"(quantized\.)?w8a(8|16)|int8|int8-w8a(8|16)", _compressed(num_bits=8, type="int")),
    (r"(quantized\.)?w4a16(-g128)?", _compressed(num_bits=4, type="int", group_size=128)),
    ("awq(-int4|-4bit|-marlin)?|(int4|4bit)-awq", {"quant_method": "awq", "bits": 4, "group_size": 128}),
    (
        "gptq(-int4|-4bit|-marlin)?|(int4|4bit)-gptq|int4",
        {"quant_method": "gptq", "bits": 4, "group_size": 128},
    ),
    ("gptq-(int8|8bit)|(int8|8bit)-gptq", {"quant_method": "gptq", "bits": 8, "group_size": 128}),
    ("bnb-4bit|bnb-nf4", _NF4),
    ("bnb-8bit", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    ("bf16|fp16", {}),
)
"""Ends that say how a release is quantised, and the configuration that such releases have. `fp8-kv` is AMD's;
fp4 was NVIDIA's name for NVFP4; AWQ and GPTQ are 4 bit in groups of 128 unless they say otherwise, as
their makers' releases are."""
_NVFP4 = ("nvfp4", "fp4", "nvfp4-v2", "fp4-v2")
_FOREIGN = re.compile(r"[-.](gguf|i?q\d(_\w+)?|exl[23]|mlx|hqq|aqlm|w4a8\w*|w4afp8|ud-\w+)\b")
"""Formats of other engines, and those without a price."""
_BLOCK_OWNERS = frozenset(("qwen", "zai-org", "deepseek-ai", "minimaxai", "xiaomimimo", "stepfun-ai"))
"""Owners whose `-FP8` releases have a scale for each 128 x 128 weights (their config.json in the wheel
aiconfigurator-core 0.12.0, PyPI, 2026-09)."""
_MODELOPT_OWNERS = frozenset(("nvidia",))
"""Owners whose releases name an FP8 KV cache: `kv_cache_quant_algo` FP8 in NVIDIA's FP8 and NVFP4 releases of
Llama 3.1, Qwen3, DeepSeek V3.1 and V3.2, GLM-5, Kimi K2.6 and MiniMax M2.5 (same wheel)."""


@dataclass(frozen=True)
class Release:
    """A published checkpoint: its architecture, and what its config.json has that the preset's has not."""

    preset: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def quantised(self, config: Quantisation) -> Release:
        """Return the release of these weights with that `quantization_config`."""
        return Release(self.preset, {**self.changes, "quantization_config": config})


@dataclass(frozen=True)
class Catalogue:
    """The names that are known."""

    names: Mapping[str, Release]
    """By lower-case name without owner, or with it where another owner's release of that name differs."""
    owners: Mapping[str, str]
    """Preset -> lower-case owner of its own releases."""
    kept: Mapping[str, list[str]]
    """Preset -> modules that its NVFP4 releases keep in 16 bit, besides the head."""

    def find(self, name: str) -> Release:
        """Return the release called `name`.

        Raises `ScenarioError` naming the nearest preset, or a format that cannot be priced.
        """
        whole = re.sub(r"[\s_]+", "-", name.strip().lower()).strip("/")
        if whole in self.names:
            return self.names[whole]
        owner, _, word = whole.rpartition("/")
        if foreign := _FOREIGN.search(word):
            what = foreign[1].upper()
            raise ScenarioError(f"model {name!r}: {what} has no price here; name the unquantised model")
        release, mark = self._without_mark(name, word)
        if not mark:
            return release
        if mark in _NVFP4:
            owner = owner or "nvidia"  # whose format it is
        found = _quantisation(mark, owner or self.owners.get(release.preset, ""))
        if mark in _NVFP4 and (kept := self.kept.get(release.preset)):
            found = {**found, "ignore": [*found["ignore"], *kept]}
        return release.quantised(found)

    def _without_mark(self, name: str, word: str) -> tuple[Release, str]:
        """Return the release of a name without owner, and the end that tells how it is quantised."""
        mark = ""
        while True:
            word = re.sub(r"^meta-(?=llama-)", "", word)
            if word in self.names:
                return self.names[word], mark
            quantised = "" if mark else _end(word)
            if quantised:
                word, mark = word[: -len(quantised) - 1], quantised
            elif role := _ROLES.search(word):
                word = word[: role.start()]
            else:
                raise self._unknown(name, word)

    def _unknown(self, name: str, word: str) -> ScenarioError:
        begins = [one for one in sorted(self.names) if one.startswith(word)]
        hint = nearest(begins[0] if begins else word, self.names)
        return ScenarioError(
            f"unknown model {name!r}{hint}; `simserve models` lists those that are known; "
            "of any other give the path of its config.json"
        )


def _end(word: str) -> str:
    """Return the longest end of a name that tells a quantisation, without its hyphen; empty if none does."""
    ends: Iterable[str] = (word[match.end() :] for match in re.finditer("-", word))
    return next((end for end in ends if any(re.fullmatch(pattern, end) for pattern, _ in _QUANTISED)), "")


def _quantisation(mark: str, owner: str) -> Quantisation:
    if mark == "fp8" and owner in _BLOCK_OWNERS:
        return _BLOCKS
    found = next(config for pattern, config in _QUANTISED if re.fullmatch(pattern, mark))
    return {**found, "kv_cache_quant_algo": "FP8"} if found and owner in _MODELOPT_OWNERS else found

"""The types that a checkpoint ships in: what its `quantization_config` says of weights and KV cache.

Formats of fp8, fbgemm_fp8, compressed-tensors, awq, gptq, modelopt, mxfp4 and bitsandbytes, as vLLM loads
them: matrices of the layers are quantised unless a list (`ignore`, `modules_to_not_convert` ...) keeps them
in 16 bit; embedding, norms and router never are, and the head only where GPTQ says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from simserve.model.dtypes import PLAIN, Checkpoint, WeightsDtype, WeightTypes
from simserve.model.layers.base import Module
from simserve.model.spec import ModelSpec

# What checkpoints call the matrices of a model's layers, so that their lists of modules can be read.
#
# Families name the same matrix differently; every name that one of them uses is given for it (`layers`).

Names = dict[str, list[list[Module]]]
"""By part of the weights: for each layer that has the part, its matrices."""

_ROOTS = ("model.layers.{}.", "language_model.model.layers.{}.", "model.language_model.layers.{}.")


def module_names(spec: ModelSpec) -> Names:
    """Return the matrices of every layer, by part; the head is left out."""
    names: Names = {}
    for index, group in enumerate(spec.order):
        for attention in spec.layers[group].attentions:
            names.setdefault("attention", []).append(_under(index, attention.modules()))
        for ffn in spec.layers[group].ffns:
            for part, modules in ffn.modules().items():
                names.setdefault(part, []).append(_under(index, modules))
    return names


def _under(layer: int, modules: list[Module]) -> list[Module]:
    roots = [root.format(layer) for root in _ROOTS]
    return [tuple(root + name for root in roots for name in module) for module in modules]


Fields = Mapping[str, Any]

_KEPT = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
"""Keys that list what stays in 16 bit."""


class _Unpriced(Exception):
    """A format that has no price; the message names it."""


def checkpoint_of(config: Fields | None, names: Names, place: str) -> Checkpoint:
    """Return what a `quantization_config` says; `names` are the model's modules, `place` the file's name."""
    if not config:
        return PLAIN
    method = str(config.get("quant_method", "")).lower()
    source = f"quantization_config of {place}: {method or 'no quant_method'}"
    try:
        kv = _kv_of(config)
        dtypes = _METHODS.get(method, _unknown)(config)
        types = {part: dtype for part, dtype in _by_part(dtypes, config, names) if dtype is not None}
    except _Unpriced as error:
        return Checkpoint(source=source, unpriced=f"{source}: {error}")
    if config.get("lm_head") is True:
        types["head"] = dtypes("lm_head") or "bf16"
    return Checkpoint(_simplest(types), kv, source)


def _simplest(types: dict[str, str]) -> WeightsDtype:
    """One word where all parts agree, or where only the experts are in mxfp4."""
    found = set(types.values())
    if len(found) == 1 and "head" not in types:
        return found.pop()
    rest = {dtype for part, dtype in types.items() if part != "routed_experts"}
    if types.get("routed_experts") == "mxfp4" and rest == {"bf16"}:
        return "mxfp4"
    return WeightTypes(**({"head": "bf16"} | types))


Dtypes = Callable[[str], str | None]
"""From a module's name to its format; None: it stays in 16 bit."""


def _by_part(dtypes: Dtypes, config: Fields, names: Names) -> Iterator[tuple[str, str]]:
    kept = [str(entry) for key in _KEPT for entry in config.get(key) or ()]
    for part, layers in names.items():
        found = {_dtype_of(module, dtypes, kept) for layer in layers for module in layer}
        if len(found) > 1:
            mixed, name = " and ".join(sorted(found)), part.replace("_", " ")
            raise _Unpriced(f"modules of {name} are in {mixed}, and one type for each part is modelled")
        if found:
            yield part, found.pop()


def _dtype_of(module: Module, dtypes: Dtypes, kept: list[str]) -> str:
    if any(_names(entry, name) for entry in kept for name in module):
        return "bf16"
    return next((dtype for name in module if (dtype := dtypes(name))), "bf16")


def _names(entry: str, module: str) -> bool:
    """Tell whether a list's entry means a module: `re:` patterns, globs, or whole parts of its path."""
    if entry.startswith("re:"):
        return re.match(entry[3:], module) is not None
    if "*" in entry:
        return fnmatchcase(module, entry) or fnmatchcase(module, f"{entry}.*")
    return f".{entry}." in f".{module}."


def _fp8(config: Fields) -> Dtypes:
    block = config.get("weight_block_size")
    if block not in (None, [128, 128]):
        raise _Unpriced(f"weight_block_size = {block}, known is [128, 128]")
    return lambda module: "fp8_block" if block else "fp8"


def _integers(config: Fields) -> Dtypes:
    bits = config.get("bits", config.get("w_bit", 4))
    dtype = _integer(bits, config.get("group_size", config.get("q_group_size", 128)))
    if config.get("dynamic"):
        raise _Unpriced("`dynamic` gives modules formats of their own")
    return lambda module: dtype


def _integer(bits: object, group: object) -> str:
    if bits == 8:
        return "int8"
    known = {128: "int4", 64: "int4_g64", 32: "int4_g32", -1: "int4_channel", None: "int4_channel"}
    if bits == 4 and group in known:
        return known[group]  # type: ignore[index]
    raise _Unpriced(
        f"{bits} bits in groups of {group}, known are 8 bits, and 4 in groups of 32, 64, 128 or all"
    )


def _compressed(config: Fields) -> Dtypes:
    groups = [group for group in (config.get("config_groups") or {}).values() if isinstance(group, Mapping)]
    rules = [(list(group.get("targets") or ()), _scheme(group.get("weights") or {})) for group in groups]
    if not rules:
        raise _Unpriced("no config_groups")

    def dtypes(module: str) -> str | None:
        for targets, dtype in rules:
            if any(target == "Linear" or _names(str(target), module) for target in targets):
                return dtype
        return None

    return dtypes


def _scheme(weights: Fields) -> str:
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if kind == "float" and bits == 8:
        block = weights.get("block_structure")
        if block not in (None, [128, 128]):
            raise _Unpriced(f"block_structure = {block}, known is [128, 128]")
        return "fp8_block" if block else "fp8"
    if kind == "float" and bits == 4 and group in (16, 32):
        return "nvfp4" if group == 16 else "mxfp4"
    if kind == "int":
        return _integer(bits, group)
    raise _Unpriced(f"weights of {bits} bits, type {kind}, group_size {group}")


_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
    "W4A16_AWQ": "int4",
    "MXFP4": "mxfp4",
}


def _modelopt(config: Fields) -> Dtypes:
    inner = config.get("quantization")
    algorithm = config.get("quant_algo") or (inner or {}).get("quant_algo")
    if algorithm is None and config.get("config_groups"):
        return _compressed(config)
    if algorithm not in _ALGORITHMS:
        raise _Unpriced(f"quant_algo = {algorithm}, known are {', '.join(_ALGORITHMS)}")
    return lambda module: _ALGORITHMS[str(algorithm)]


def _mxfp4(config: Fields) -> Dtypes:
    return lambda module: "mxfp4" if "experts" in module.split(".") else None


def _bitsandbytes(config: Fields) -> Dtypes:
    if config.get("load_in_8bit") or config.get("_load_in_8bit"):
        return lambda module: "int8"
    kind = config.get("bnb_4bit_quant_type", "fp4")
    if kind not in ("nf4", "fp4"):
        raise _Unpriced(f"bnb_4bit_quant_type = {kind}, known are nf4 and fp4")
    double = bool(config.get("bnb_4bit_use_double_quant"))
    return lambda module: "nf4_double" if double else "nf4"


def _unknown(config: Fields) -> Dtypes:
    raise _Unpriced(f"this method is not priced; known: {', '.join(_METHODS)}")


_METHODS: dict[str, Callable[[Fields], Dtypes]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "compressed-tensors": _compressed,
    "awq": _integers,
    "gptq": _integers,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
}


def _kv_of(config: Fields) -> str:
    inner = config.get("quantization") or {}
    algorithm = config.get("kv_cache_quant_algo") or inner.get("kv_cache_quant_algo")
    scheme = config.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        algorithm = f"{scheme.get('type', 'float')}{scheme.get('num_bits')}"
    if algorithm is None:
        return "bf16"
    if str(algorithm).lower() in ("fp8", "float8"):
        return "fp8"
    raise _Unpriced(f"KV cache in {algorithm}, known is 8-bit float")

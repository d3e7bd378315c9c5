"""Which GPU a name means: nvidia-smi's (`NVIDIA H100 80GB HBM3`), a Kubernetes label, what a shop says.

A GPU's file lists the words of its names, the chip first. A name means the GPUs whose words hold all of its
own: one of them is the answer, several are a question back. Nothing is guessed from a part of a word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from simserve.errors import ScenarioError, nearest

_SAY_NOTHING = frozenset(("nvidia", "amd", "geforce", "instinct", "tesla", "gpu", "oam", "generation"))
"""Words that no two GPUs differ by."""
_JOINED = re.compile(r"(rtx|sxm\d?|pcie|nvl\d*|nvidia)")
_SIZE = re.compile(r"\b(\d+) *gi?b\b")
_SLICES = {"mig": "a MIG slice of a GPU", "shared": "a GPU that several pods share in turns"}
"""Words of Kubernetes labels that say that a pod has less than a GPU."""


def find_gpus(name: str, words_of: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the GPUs that `name` may mean; `words_of` has the words of their names, the chip first."""
    same = [one for one in words_of if one.lower() == name.strip().lower()]
    asked = _words(name)
    return same or sorted(one for one, words in words_of.items() if _fits(asked, words))


def find_gpu(name: str, words_of: Mapping[str, Sequence[str]]) -> str:
    """Return the one GPU that `name` means.

    Raises `ScenarioError`: with the choices if several fit, else with those of the chip, or the nearest one.
    """
    found, known = find_gpus(name, words_of), sorted(words_of)
    if len(found) == 1:
        return found[0]
    if found:
        raise ScenarioError(f"GPU {name!r} may be {_or(found)}; say which")
    asked = _words(name)
    for word, what in _SLICES.items():
        if word in asked:
            raise ScenarioError(f"GPU {name!r} is {what}, which is not modelled; known: {', '.join(known)}")
    chips = [one for one in known if asked & set(words_of[one][:1])]
    if chips:
        raise ScenarioError(f"unknown GPU {name!r}; of this chip there is {', '.join(chips)}")
    begins = [one for one in known if name and one.startswith(name.lower())]
    hint = nearest(begins[0] if begins else name.lower(), known)
    raise ScenarioError(f"unknown GPU {name!r}{hint}; known: {', '.join(known)}")


def _fits(asked: frozenset[str], words: Sequence[str]) -> bool:
    return bool(words) and words[0] in asked and asked <= set(words)


def _words(name: str) -> frozenset[str]:
    """Return the words that tell GPUs apart: `NVIDIA-A100-SXM4-80GB` -> a100, sxm4, 80gb."""
    text = _JOINED.sub(r" \1 ", re.sub(r"[^a-z0-9]+", " ", name.lower()))
    words = _SIZE.sub(r"\1gb", text).split()
    return frozenset(words) - _SAY_NOTHING


def _or(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}"

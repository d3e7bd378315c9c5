"""Tokens of texts: those of a Hugging Face tokenizer, or words times a ratio that the user states.

Either way a text becomes units whose equality is that of the content, and a whole number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from simserve.errors import TraceError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


INSTALL = "pip install -e '.[text]'"


class TokenCounter(Protocol):
    """Splits texts into units, and says how many tokens units are."""

    def units(self, texts: Sequence[str]) -> list[list[bytes]]:
        """Return the units of each text."""
        ...

    def tokens(self, units: int) -> int:
        """Return how many tokens so many units are."""
        ...

    def within(self, tokens: int) -> int:
        """Return how many units lie wholly in the first `tokens` tokens."""
        ...

    def words(self) -> str:
        """Return what was counted how, for the report."""
        ...


@dataclass(frozen=True)
class ByTokenizer:
    """Exact counts: a unit is a token."""

    name: str
    tokenizer: Tokenizer

    def units(self, texts: Sequence[str]) -> list[list[bytes]]:
        """Return the ids of each text's tokens, four bytes each."""
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [[token.to_bytes(4, "big") for token in one.ids] for one in encodings]

    def tokens(self, units: int) -> int:
        """Return the same number."""
        return units

    def within(self, tokens: int) -> int:
        """Return the same number."""
        return tokens

    def words(self) -> str:
        """Name the tokenizer."""
        return f"lengths counted with the tokenizer {self.name}"


@dataclass(frozen=True)
class ByWords:
    """Words between white space, times a ratio."""

    ratio: float

    def units(self, texts: Sequence[str]) -> list[list[bytes]]:
        """Return the words of each text."""
        return [[word.encode("utf-8", "surrogatepass") for word in text.split()] for text in texts]

    def tokens(self, units: int) -> int:
        """Return words times the ratio, to the nearest whole number; some text is a token at least."""
        return max(round(units * self.ratio), min(units, 1))

    def within(self, tokens: int) -> int:
        """Return the words that end by then."""
        return int(tokens // self.ratio)

    def words(self) -> str:
        """State the assumed ratio."""
        return f"lengths assumed: {self.ratio:g} tokens a word (tokens_per_word), words between white space"


def tokenizer_counter(name: str) -> ByTokenizer:
    """Return the counter of a tokenizer.json, a folder that holds one, or a name on Hugging Face.

    Raises `TraceError` if the library is missing, or there is no such tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TraceError(
            f"tokenizer {name!r} needs the library tokenizers, which is not installed: {INSTALL}; or give "
            "tokens_per_word: 1.3 instead"
        ) from error
    path = Path(name)
    file = path / "tokenizer.json" if path.is_dir() else path
    local = file.exists() or name.endswith(".json") or path.is_absolute()
    try:
        found = Tokenizer.from_file(str(file)) if local else Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises Exception itself
        reason = " ".join(str(error).split())[:200]
        wanted = (
            "allowed: a tokenizer.json, or a folder that holds one"
            if local
            else "allowed: a model's name on Hugging Face (which must be reached, and may ask for a login: "
            "HF_TOKEN), a tokenizer.json, or a folder that holds one"
        )
        raise TraceError(f"tokenizer {name!r} cannot be loaded ({reason}); {wanted}") from error
    found.no_truncation()
    found.no_padding()
    return ByTokenizer(file.name if local and not path.is_dir() else path.name if local else name, found)

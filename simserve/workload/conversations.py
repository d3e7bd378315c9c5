"""Conversations as requests: which turns are sent, how long they are, and what their prompts share.

A request's prompt is everything said before its answer. Prompts are compared token by token (with a ratio:
word by word), in blocks of 16 tokens, so that common system prompts and histories can hit the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload.blocks import spans
from simserve.workload.draft import Draft, Kept, finish
from simserve.workload.source import TraceFile
from simserve.workload.synthetic.arrivals import CHOICES, ArrivalOptions
from simserve.workload.tables.json import JsonRows
from simserve.workload.token_counts import INSTALL, ByWords, TokenCounter, tokenizer_counter

BLOCK_TOKENS = 16
_AT_ONCE = 256
"""Conversations whose texts are tokenized together."""


class TextOptions(ArrivalOptions):
    """How texts become lengths, which turns are replayed, and when."""

    tokenizer: str | None = Field(
        default=None,
        min_length=1,
        description="Tokenizer: a tokenizer.json, a folder with one, or a model's name on Hugging Face "
        f"(needs {INSTALL}).",
    )
    tokens_per_word: float | None = Field(
        default=None, gt=0, le=100, description="Tokens a word instead of a tokenizer: an assumption."
    )
    tokens_per_message: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="With a tokenizer, tokens that the chat template adds to each message.",
    )
    turns: Literal["first", "last", "all"] | None = Field(
        default=None,
        description="Which answers of a conversation are requested: the first (as vLLM's and SGLang's "
        "benchmarks do with ShareGPT, its default), the last (default of OpenAI messages), or all, as a "
        "session.",
    )
    think_s: float | None = Field(
        default=None, ge=0, le=1e9, description="With turns: all, seconds from an answer to the next turn."
    )
    output_tokens: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="Length of an answer that the file does not have."
    )

    @model_validator(mode="after")
    def _consistent(self) -> TextOptions:
        if self.tokenizer is not None and self.tokens_per_word is not None:
            raise ValueError("tokenizer and tokens_per_word both say how to count: leave one of them out")
        if self.tokens_per_message and self.tokens_per_word is not None:
            raise ValueError(
                "tokens_per_message is for a tokenizer; with tokens_per_word, the ratio holds it"
            )
        if (self.turns == "all") != (self.think_s is not None):
            raise ValueError(
                "turns: all and think_s (seconds from an answer to the next turn) belong together"
            )
        return self


@dataclass(frozen=True)
class Message:
    """One message; `answer`: the model wrote it."""

    role: str
    text: str
    answer: bool


@dataclass(frozen=True)
class Conversation:
    """The messages of one row of the file."""

    row: int
    messages: list[Message]

    def answers(self, turns: str, unanswered: bool) -> list[int]:
        """Return the places of the answers asked for; one past the end if it is still to come."""
        places = [i for i, one in enumerate(self.messages) if one.answer and i > 0]
        if turns == "first":
            places = places[:1]
        if turns == "last":
            places = [i for i in places if i == len(self.messages) - 1]
        if not places and unanswered and not self.messages[-1].answer:
            places = [len(self.messages)]
        return places


def conversation_trace(
    rows: JsonRows,
    format: str,
    conversations: list[Conversation],
    options: TextOptions,
    turns: str,
    notes: list[str],
) -> Trace:
    """Return the trace of a file of texts; `turns` are those taken by default.

    Raises `TraceError` if no conversation has an answer, and about the tokenizer.
    """
    turns = options.turns or turns
    counter = _counter(rows, options)
    asked: list[tuple[Conversation, list[int]]] = []
    for one in conversations:
        places = one.answers(turns, options.output_tokens is not None)
        if places:
            asked.append((Conversation(one.row, one.messages[: places[-1] + 1]), places))
    if not asked:
        raise TraceError(
            f"{rows.file.path}: no conversation has an answer of the model after a prompt; allowed: such "
            "answers, or the option output_tokens for their length"
        )
    table = _Columns()
    for one, units in _tokenized([one for one, _ in asked], counter, options.tokens_per_message):
        table.add(one, asked[len(table.turns)][1], units, counter, options)
    return _finished(rows, format, options, turns, counter, table, len(conversations), notes)


class _Columns:
    """Columns of the requests, conversation by conversation."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.prompt: list[int] = []
        self.output: list[int] = []
        self.block_lists: list[list[int]] = []
        self.turns: list[int] = []
        self.assumed = 0
        self._codes: dict[bytes, int] = {}

    def add(
        self,
        one: Conversation,
        places: list[int],
        units: list[list[bytes]],
        counter: TokenCounter,
        options: TextOptions,
    ) -> None:
        """Add the requests of a conversation that ask for the answers at `places`."""
        edges = spans(np.array([len(part) for part in units], dtype=np.int64)).tolist()
        prompts = [counter.tokens(edges[place]) for place in places]
        blocks = self._blocks(units, counter, max(prompts) // BLOCK_TOKENS)
        self.turns.append(len(places))
        for place, prompt in zip(places, prompts, strict=True):
            self.rows.append(one.row)
            self.prompt.append(prompt)
            self.block_lists.append(blocks[: prompt // BLOCK_TOKENS])
            if place < len(units):
                self.output.append(counter.tokens(len(units[place]) - options.tokens_per_message))
            else:
                assert options.output_tokens is not None, "an answer to come has a length"
                self.output.append(options.output_tokens)
                self.assumed += 1

    def _blocks(self, units: list[list[bytes]], counter: TokenCounter, n: int) -> list[int]:
        """Return a number for each of the first n blocks, equal where all content up to its end is equal."""
        flat = [unit for message in units for unit in message]
        digest, seen, numbers = hashlib.blake2b(digest_size=16), 0, []
        for block in range(1, n + 1):
            end = counter.within(block * BLOCK_TOKENS)
            digest.update(b"\0".join(flat[seen:end]) + b"\0\0")
            seen = end
            numbers.append(self._codes.setdefault(digest.digest(), len(self._codes)))
        return numbers


def _tokenized(
    conversations: list[Conversation], counter: TokenCounter, template: int
) -> Iterator[tuple[Conversation, list[list[bytes]]]]:
    """Yield each conversation with the units of its messages, after `template` tokens each.

    The role is part of a message's first unit: the same words of another role are other content.
    """
    rest = iter(conversations)
    while group := list(islice(rest, _AT_ONCE)):
        texts = iter(counter.units([message.text for one in group for message in one.messages]))
        for one in group:
            units = []
            for message in one.messages:
                own = [b"template"] * template + next(texts)
                units.append([message.role.encode() + b"\1" + own[0], *own[1:]] if own else own)
            yield one, units


def _finished(
    rows: JsonRows,
    format: str,
    options: TextOptions,
    turns: str,
    counter: TokenCounter,
    table: _Columns,
    n_conversations: int,
    notes: list[str],
) -> Trace:
    of_conversation = np.repeat(np.arange(len(table.turns)), table.turns)
    starts_ns, how = options.made_ns(len(table.turns))
    draft = Draft(
        rows.file,
        format,
        starts_ns[of_conversation],
        np.array(table.prompt, dtype=np.int64),
        np.array(table.output, dtype=np.int64),
        rows=Kept(rows, table.rows),
    )
    draft.block_ids = np.array([i for ids in table.block_lists for i in ids], dtype=np.int64)
    draft.block_offsets = spans(np.array([len(ids) for ids in table.block_lists], dtype=np.int64))
    draft.block_tokens = BLOCK_TOKENS
    draft.assume(counter.words())
    added = options.tokens_per_message
    draft.assume(
        f"the chat template adds {added} tokens to each message (tokens_per_message)"
        if added
        else "tokens of the chat template are not counted (tokens_per_message: 0)"
    )
    draft.assume(f"prompts compared in blocks of {BLOCK_TOKENS} tokens, by their content")
    draft.assume(how)
    if turns == "all" and options.think_s is not None:
        draft.session = of_conversation
        first = np.diff(of_conversation, prepend=-1) != 0
        draft.think_ns = np.where(first, 0, round(options.think_s * 1e9))
        draft.assume(f"every answer is a turn of a session, {options.think_s:g} s after the one before it")
    else:
        draft.assume(f"the {turns} answer of each conversation is the request (turns: {turns})")
    for note in notes:
        draft.assume(note)
    draft.change(table.assumed, f"requests have no answer: {options.output_tokens} output tokens assumed")
    draft.change(n_conversations - len(table.turns), "conversations have no such answer: left out")
    return finish(draft)


def check_options(file: TraceFile, what: str, options: TextOptions) -> None:
    """Raise `TraceError` if nothing says how the texts of `what` are counted, or when requests come."""
    missing = []
    if options.tokenizer is None and options.tokens_per_word is None:
        missing.append(
            "text has no lengths: set tokenizer: NAME-OR-FILE (the model's on Hugging Face, or a "
            f"tokenizer.json; {INSTALL}), or tokens_per_word: 1.3 (an assumption, which the report lists)"
        )
    if not options.given:
        missing.append(
            f"and text has no arrivals: set {CHOICES}" if missing else f"no arrivals: set {CHOICES}"
        )
    if missing:
        raise TraceError(f"{file.path}: {what}: {'; '.join(missing)}")


def _counter(rows: JsonRows, options: TextOptions) -> TokenCounter:
    if options.tokens_per_word is not None:
        return ByWords(options.tokens_per_word)
    try:
        return tokenizer_counter(str(options.tokenizer))
    except TraceError as error:
        raise TraceError(f"{rows.file.path}: {error}") from error

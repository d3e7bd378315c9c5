"""What prompts of a load test have in common, as blocks: by their text, or by what the tool says of them.

Of a text, beginnings are compared character by character; how many characters a token takes is the mean of
the file. Without texts, prompts with equal names are equal, and a turn carries on the turns before it if its
prompt is long enough to hold them.
"""

from __future__ import annotations

import numpy as np

from simserve.validate.importers.load_test import Int64, Requests
from simserve.workload.draft import Draft

BLOCK_TOKENS = 16


def add_blocks(draft: Draft, found: Requests) -> None:
    """Put blocks into the draft if the load test shows any prefix that prompts have in common."""
    if found.text is None or not any(found.text):
        _blocks_of_names(draft, found)
    else:
        _blocks_of_texts(draft, found.prompt_tokens, found.text.tolist())


def _blocks_of_texts(draft: Draft, prompt_tokens: Int64, texts: list[str]) -> None:
    """Cut texts into pieces of one length; pieces after equal beginnings are equal blocks."""
    characters = BLOCK_TOKENS * sum(map(len, texts)) / max(int(prompt_tokens.sum()), 1)
    counts = prompt_tokens // BLOCK_TOKENS
    known: dict[tuple[int, str], int] = {}
    ids: list[int] = []
    for row, (text, count) in enumerate(zip(texts, counts.tolist(), strict=True)):
        before = -1
        for i in range(count):
            piece = text[round(i * characters) : round((i + 1) * characters)]
            before = known.setdefault((before, piece or f"end of row {row}"), len(known))
            ids.append(before)
    draft.block_ids = np.array(ids, np.int64)
    draft.block_offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    draft.block_tokens = BLOCK_TOKENS
    draft.assume(f"prefixes: by the prompts' text, {characters:.0f} characters for {BLOCK_TOKENS} tokens")


def _blocks_of_names(draft: Draft, found: Requests) -> None:
    """Give equal prompts, and the turns of a conversation, equal blocks; nothing if there are none."""
    names = [f"row {i}" for i in range(len(found))] if found.content is None else found.content.tolist()
    first_prompt = found.prompt_tokens.copy()
    own = np.arange(len(found)).astype(str).astype(object)
    grown = False
    if found.session is not None:
        names, first_prompt, own, grown = _carried_on(found, names)
    content = np.unique(np.array(names, dtype=str), return_inverse=True)[1]
    if not grown and len(np.unique(content)) == len(found):
        draft.assume("no prefix information")
        return
    counts = found.prompt_tokens // BLOCK_TOKENS
    offsets = np.concatenate([[0], np.cumsum(counts)])
    row = np.repeat(np.arange(len(found)), counts)
    place = np.arange(offsets[-1]) - offsets[row]
    longest = int(counts.max(initial=1))
    shared = place < (first_prompt // BLOCK_TOKENS)[row]
    mine = np.unique(own.astype(str), return_inverse=True)[1]
    ids = np.where(shared, content[row] * longest + place, -1 - (mine[row] * longest + place))
    draft.block_ids = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    draft.block_offsets, draft.block_tokens = offsets.astype(np.int64), BLOCK_TOKENS
    draft.assume(
        f"prefixes: equal prompts and carried-on conversations share blocks of {BLOCK_TOKENS} tokens"
    )


def _carried_on(found: Requests, names: list[str]) -> tuple[list[str], Int64, np.ndarray, bool]:
    """Let the turns of a conversation begin with its first prompt, where each carries the ones before it.

    Returns the name and the length of what each row begins with, whose the rest is, and whether any does.
    """
    assert found.session is not None
    names, first_prompt = list(names), found.prompt_tokens.copy()
    own = np.arange(len(found)).astype(str).astype(object)
    turns: dict[str, list[int]] = {}
    for row, session in enumerate(found.session.tolist()):
        turns.setdefault(session, []).append(row)
    grown = False
    for session, rows in turns.items():
        carried = found.prompt_tokens[rows[:-1]] + found.output_tokens[rows[:-1]]
        if len(rows) < 2 or (found.prompt_tokens[rows[1:]] < carried).any():
            continue
        grown = True
        for row in rows:
            names[row], first_prompt[row] = names[rows[0]], found.prompt_tokens[rows[0]]
            own[row] = f"session {session}"
    return names, first_prompt, own, grown

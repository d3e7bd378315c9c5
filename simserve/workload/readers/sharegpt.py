"""ShareGPT's JSON: conversations of people and models, as text without times.

Lengths are counted with a tokenizer or assumed from words, arrivals come from the options.
"""

from __future__ import annotations

from typing import Any, ClassVar

from simserve.core import Trace
from simserve.errors import nearest
from simserve.workload.conversations import (
    Conversation,
    Message,
    TextOptions,
    check_options,
    conversation_trace,
)
from simserve.workload.jsonl import JsonRows
from simserve.workload.readers.base import READERS, ReaderOptions
from simserve.workload.source import TraceFile, shown

ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
PROMPTS = ("human", "user", "system", "tool", "function", "observation")

WHO = (*PROMPTS, *ANSWERS)


@READERS.register("sharegpt")
class ShareGptReader:
    """JSON with conversations of `from` and `value`."""

    Options: ClassVar[type[ReaderOptions]] = TextOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise a row with conversations."""
        return '"conversations"' in file.first_row and "value" in file.first_row

    def read(self, file: TraceFile, options: TextOptions) -> Trace:
        """Read the conversations; those without an answer are left out and counted."""
        check_options(file, "ShareGPT conversations", options)
        rows = JsonRows(file)
        found = [Conversation(i, _messages(rows, i, row)) for i, row in enumerate(rows)]
        return conversation_trace(rows, "sharegpt", found, options, "first", [])


def _messages(rows: JsonRows, row: int, fields: dict[str, Any]) -> list[Message]:
    parts = fields.get("conversations")
    if not isinstance(parts, list):
        rows.refuse(row, "conversations", "a list of messages {from, value}")
    messages = []
    for place, part in enumerate(parts, start=1):
        who, text = (part.get("from"), part.get("value")) if isinstance(part, dict) else (None, None)
        if not isinstance(who, str) or not isinstance(text, str):
            rows.fail(row, f"message {place} is {shown(part)}; allowed is {{from: TEXT, value: TEXT}}")
        if who not in WHO:
            near, allowed = nearest(who, WHO), ", ".join(WHO)
            rows.fail(row, f"message {place} is from {shown(who)}{near}; allowed: {allowed}")
        messages.append(Message(who, text, who in ANSWERS))
    return messages

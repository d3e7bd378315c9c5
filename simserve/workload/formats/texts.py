"""ShareGPT's JSON: conversations of people and models, as text without times.

Lengths are counted with a tokenizer or assumed from words, arrivals come from the options.
"""

from __future__ import annotations

import json
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
from simserve.workload.formats.base import READERS, ReaderOptions
from simserve.workload.source import TraceFile, shown
from simserve.workload.tables.json import JsonRows

# Chat requests as OpenAI's API takes them: JSON lines with messages of role and content, as text.
#
# The last message is the answer if the assistant's. A batch's input has the messages in `body`. Lengths are
# counted with a tokenizer or assumed from words, arrivals come from the options.

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
KEYS = ("messages", "conversation")
"""Names of the list: OpenAI's, and that of LMSYS-Chat-1M."""


@READERS.register("openai_messages")
class OpenAiMessagesReader:
    """JSON with messages of `role` and `content`."""

    Options: ClassVar[type[ReaderOptions]] = TextOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise a row with a list of messages."""
        first = file.first_row
        if not any(f'"{key}"' in first for key in KEYS):
            return False
        try:
            return _holder(json.loads(first)) is not None
        except (ValueError, RecursionError):
            return False

    def read(self, file: TraceFile, options: TextOptions) -> Trace:
        """Read the requests; one without an answer needs the option output_tokens."""
        check_options(file, "OpenAI messages", options)
        rows = JsonRows(file)
        images, found = 0, []
        for i, row in enumerate(rows):
            messages, n = _messages(rows, i, row)
            images += n
            found.append(Conversation(i, messages))
            if options.turns in (None, "last") and options.output_tokens is None and not messages[-1].answer:
                rows.fail(
                    i,
                    f"the last message is of role {messages[-1].role}, so there is no answer to count; set "
                    "output_tokens: N (its length), or turns: first; a batch's output file has the lengths "
                    "(usage)",
                )
        notes = [f"{images:,} images and sounds cost nothing here: only text is counted"] if images else []
        return conversation_trace(rows, "openai_messages", found, options, "last", notes)


def _holder(row: Any) -> tuple[dict[str, Any], str] | None:
    """Return the object that holds the messages, and their key."""
    for place in (row, row.get("body") if isinstance(row, dict) else None):
        if isinstance(place, dict):
            for key in KEYS:
                parts = place.get(key)
                if isinstance(parts, list) and parts and isinstance(parts[0], dict) and "role" in parts[0]:
                    return place, key
    return None


def _messages(rows: JsonRows, row: int, fields: dict[str, Any]) -> tuple[list[Message], int]:
    """Return the messages of a row, tools first, and how many parts of them are no text."""
    holder = _holder(fields)
    if holder is None:
        rows.fail(row, f"no messages in {shown(fields)}; allowed: a list of {{role, content}}")
    request, key = holder
    messages, other = [], 0
    if request.get("tools"):
        messages.append(Message("tools", json.dumps(request["tools"], default=str), False))
    for place, part in enumerate(request[key], start=1):
        if not isinstance(part, dict) or not isinstance(part.get("role"), str):
            rows.fail(row, f"message {place} is {shown(part)}; allowed: {{role: TEXT, content: TEXT}}")
        role = part["role"]
        if role not in ROLES:
            rows.fail(
                row,
                f"message {place} has role {shown(role)}{nearest(role, ROLES)}; allowed: {', '.join(ROLES)}",
            )
        text, n = _text(rows, row, place, part)
        other += n
        messages.append(Message(role, text, role == "assistant"))
    return messages, other


def _text(rows: JsonRows, row: int, place: int, message: dict[str, Any]) -> tuple[str, int]:
    """Return the text of a message (parts one after another, tool calls as JSON), and its other parts."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else [] if content is None else content
    if not isinstance(parts, list):
        rows.fail(row, f"content of message {place} is {shown(content)}; allowed: text or a list of parts")
    texts, other = [], 0
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            texts.append(text)
        else:
            other += 1
    if message.get("tool_calls"):
        texts.append(json.dumps(message["tool_calls"], default=str))
    return "\n".join(texts), other


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
        found = [Conversation(i, _sharegpt_messages(rows, i, row)) for i, row in enumerate(rows)]
        return conversation_trace(rows, "sharegpt", found, options, "first", [])


def _sharegpt_messages(rows: JsonRows, row: int, fields: dict[str, Any]) -> list[Message]:
    parts = fields.get("conversations")
    if not isinstance(parts, list):
        rows.refuse(row, "conversations", "a list of messages {from, value}")
    messages = []
    for place, part in enumerate(parts, start=1):
        who, text = (part.get("from"), part.get("value")) if isinstance(part, dict) else (None, None)
        if not isinstance(who, str) or not isinstance(text, str):
            rows.fail(row, f"message {place} is {shown(part)}; allowed: {{from: TEXT, value: TEXT}}")
        if who not in WHO:
            near, allowed = nearest(who, WHO), ", ".join(WHO)
            rows.fail(row, f"message {place} is from {shown(who)}{near}; allowed: {allowed}")
        messages.append(Message(who, text, who in ANSWERS))
    return messages

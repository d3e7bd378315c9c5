"""Files of requests that hold no token counts, and what to do about each."""

from __future__ import annotations

from simserve.workload.source import TraceFile

_CONVERT = (
    "simserve has no tokenizer: count the tokens of each request with the model's own first, and give a file "
    "with the lengths, such as arrival_s,prompt_tokens,output_tokens"
)


def without_lengths(file: TraceFile) -> str | None:
    """Return what `file` is and what would be read instead, if it is known to hold no lengths."""
    first = file.first_row
    if '"conversations"' in first and '"value"' in first:
        return f"ShareGPT conversations are text, not lengths; {_CONVERT}"
    if '"messages"' in first or ('"custom_id"' in first and '"body"' in first):
        return f"OpenAI messages are text, not lengths; {_CONVERT}; a batch's output file has them (usage)"
    names = file.header
    if "Metric" in names and names & {"avg", "p99"}:
        return (
            "AIPerf's CSV holds statistics, not requests: give profile_export.jsonl, which AIPerf writes "
            "beside it, with a line per request"
        )
    return None

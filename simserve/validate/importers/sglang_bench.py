"""SGLang's `bench_serving --output-file`, a JSON line per run, with or without `--output-details`.

Its TPOT, ITL and E2E latency are ours. It stores no send times.
"""

from __future__ import annotations

from simserve.validate.importers.base import IMPORTERS
from simserve.validate.importers.bench_lists import is_bench, read_bench
from simserve.validate.importers.json_file import JsonFile
from simserve.validate.importers.load_test import LoadTest

ONLY_SGLANG = {"mean_e2e_latency_ms", "total_output_tokens_retokenized", "server_info", "accept_length"}
"""Keys that vLLM's tool never writes."""
_WORDS = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms", "itl_ms": "itl_ms", "e2e_latency_ms": "e2e_ms"}


@IMPORTERS.register("sglang-bench")
class SglangBench:
    """One JSON line per run."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise the statistics or the lists, and a key of its own."""
        return is_bench(file.first) and bool(ONLY_SGLANG & file.first.data.keys())

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return one load test per line."""
        return [read_bench(one, "sglang-bench", _WORDS, ()) for one in file.records]

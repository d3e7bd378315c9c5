"""vLLM's `vllm bench serve --save-result`, with or without `--save-detailed`; several runs if appended.

Its TPOT is ours, its ITL too (every gap), its E2EL is our E2E. Duration is the wall time of the whole run.
"""

from __future__ import annotations

from simserve.validate.importers.base import IMPORTERS
from simserve.validate.importers.bench_lists import is_bench, read_bench
from simserve.validate.importers.json_file import JsonFile
from simserve.validate.importers.load_test import LoadTest
from simserve.validate.importers.sglang_bench import ONLY_SGLANG

_WORDS = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms", "itl_ms": "itl_ms", "e2el_ms": "e2e_ms"}


@IMPORTERS.register("vllm-bench")
class VllmBench:
    """One JSON, or one per line."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise the statistics or the lists."""
        return is_bench(file.first) and not ONLY_SGLANG & file.first.data.keys()

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return one load test per run."""
        return [read_bench(one, "vllm-bench", _WORDS, ()) for one in file.records]

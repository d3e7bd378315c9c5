"""Hugging Face transformers' continuous batching, serving a random-weight Llama for real on this CPU.

Its scheduler takes decoding requests first, then prompts in order while one token budget lasts, as vLLM does.
Without flash-attn its attention is one matrix of all queries on all keys of a step under a mask.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import (  # pyright: ignore[reportMissingImports]
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.generation import (  # pyright: ignore[reportMissingImports]
    ContinuousBatchingConfig,
)

from benchmarks.cpu_engine.scheduler import Sequence
from simserve.model.layers import DenseFfn, GqaAttention
from simserve.model.spec import ModelSpec

LONGEST_S = 600.0


class TransformersEngine:
    """One model with random weights; `serve` may be called again and again."""

    def __init__(self, spec: ModelSpec, pages: int, page_size: int, max_sequences: int, budget: int) -> None:
        """A model of equal dense layers with GQA; raises `ValueError` for others."""
        (group,) = spec.layers
        (attention,), (ffn,) = group.attentions, group.ffns
        if not isinstance(attention, GqaAttention) or not isinstance(ffn, DenseFfn):
            raise ValueError(f"{spec.name}: only Llama-like models")
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=spec.hidden_size, intermediate_size=ffn.intermediate_size,
            num_hidden_layers=group.count, num_attention_heads=attention.num_attention_heads,
            num_key_value_heads=attention.num_key_value_heads, head_dim=attention.head_dim,
            vocab_size=spec.vocab_size, max_position_embeddings=spec.max_position_embeddings,
        )  # fmt: skip
        self.model = LlamaForCausalLM(config).eval()
        self._settings: dict[str, Any] = {
            "page_size": page_size, "num_blocks": pages,
            "max_batch_tokens": budget,
            "max_requests_per_batch": max_sequences, "allow_block_sharing": False,
            "use_async_batching": False,
            "use_cuda_graph": False, "auto_switch_to_flash": False,
        }  # fmt: skip

    def serve(self, requests: list[Sequence]) -> list[Sequence]:
        """Serve requests at their arrival times; sets first and last token's time."""
        manager: Any = self.model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(**self._settings),
        )
        manager.start()
        while not manager.is_running():
            time.sleep(0.01)
        begin = time.perf_counter()
        for request in sorted(requests, key=lambda request: request.arrival_s):
            time.sleep(max(0.0, request.arrival_s - (time.perf_counter() - begin)))
            manager.add_request(
                request.prompt, request_id=str(request.number), max_new_tokens=request.output_tokens,
                record_timestamps=True,
            )  # fmt: skip
        waiting = {str(request.number): request for request in requests}
        while waiting:
            result = manager.get_result(timeout=LONGEST_S)
            if result is None:
                raise RuntimeError("continuous batching has stopped answering")
            if result.error:
                raise RuntimeError(f"continuous batching: {result.error}")
            if result.is_finished():
                request = waiting.pop(result.request_id)
                request.made = list(result.generated_tokens)
                stamps = np.array(result.timestamps) - begin
                request.first_s, request.last_s = float(stamps[0]), float(stamps[-1])
        manager.stop(block=True)
        return requests

    def loop_us(self, sequences: int, steps: int) -> float:
        """Return microseconds of a decode step beside the model: served with the model left out."""
        width = self.model.config.vocab_size
        forward = self.model.forward

        def nothing(**inputs: Any) -> Any:
            return SimpleNamespace(logits=torch.zeros(1, inputs["input_ids"].shape[1], width))

        self.model.forward = nothing
        try:
            served = self.serve([Sequence(i, 0.0, [1] * 8, steps) for i in range(sequences)])
        finally:
            self.model.forward = forward
        spans = [(request.last_s - request.first_s) / (steps - 1) for request in served]
        return 1e6 * float(np.median(spans))

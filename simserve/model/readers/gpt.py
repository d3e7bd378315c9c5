"""GPT-2 and GPT-3: multi-head attention, a two-matrix MLP, biases, learned positions, a tied head."""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS
from simserve.model.spec import DenseFfn, GqaAttention, LayerGroup, ModelSpec

_MLP_RATIO = 4
"""Width of the MLP over the hidden size where `n_inner` is absent (GPT-2's own default)."""


@READERS.register("gpt2")
@READERS.register("GPT2LMHeadModel")
def read_gpt(config: Config, name: str) -> ModelSpec:
    """Read GPT-2; GPT-3 is written in its field names. GPT-3's sparse layers are taken as dense."""
    hidden = config.size("n_embd")
    heads = config.size("n_head")
    positions = config.size("n_positions")
    attention = GqaAttention(heads, heads, hidden // heads, bias=True, output_bias=True)
    mlp = DenseFfn(config.size("n_inner", _MLP_RATIO * hidden), matrices=2, bias=True)
    return ModelSpec(
        name=name,
        hidden_size=hidden,
        vocab_size=config.size("vocab_size"),
        max_position_embeddings=positions,
        layers=(LayerGroup(config.size("n_layer"), (attention,), (mlp,)),),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        source=config.place,
        learned_positions=positions,
    )

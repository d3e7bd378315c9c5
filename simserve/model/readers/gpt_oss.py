"""gpt-oss: every other layer slides over a short window, and every layer has routed experts with biases."""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS, decoder, gqa
from simserve.model.readers.spans import spans
from simserve.model.spec import ModelSpec, MoeFfn


@READERS.register("gpt_oss")
@READERS.register("GptOssForCausalLM")
def read_gpt_oss(config: Config, name: str) -> ModelSpec:
    """Read gpt-oss; `intermediate_size` is the width of an expert."""
    config.ignore("experts_per_token")  # says the same as num_experts_per_tok
    bias = config.flag("attention_bias", True)
    moe = MoeFfn(
        n_routed_experts=config.size("num_local_experts"),
        num_experts_per_tok=config.size("num_experts_per_tok"),
        moe_intermediate_size=config.size("intermediate_size"),
        bias=True,
    )
    settings = {"bias": bias, "output_bias": bias, "sinks": True}
    layers = [((gqa(config, **settings, **span),), (moe,)) for span in spans(config)]
    return decoder(config, name, layers)

"""Models that put an image encoder in front of a language model of another family: `text_config` names it.

LLaVA and LLaVA-NeXT (Granite Vision, Pixtral as a LLaVA), Mistral 3, Kimi-VL. The encoder is read by
`simserve.model.vision`.
"""

from __future__ import annotations

from simserve.model.readers.base import READERS, Config
from simserve.model.spec import ModelSpec

_OWN = ("llava", "llava_next", "kimi_vl")


@READERS.register("llava")
@READERS.register("LlavaForConditionalGeneration")
@READERS.register("llava_next")
@READERS.register("LlavaNextForConditionalGeneration")
@READERS.register("kimi_vl")
@READERS.register("KimiVLForConditionalGeneration")
def read_vision_language(config: Config, name: str) -> ModelSpec:
    """Read the language model inside."""
    config.ignore("projector_hidden_act", "multimodal_projector_bias", "spatial_merge_size")
    config.ignore("use_image_newline_parameter")
    inner = config.text("model_type")
    if inner in ("", *_OWN):
        raise config.error("text_config.model_type", inner or None, "the family of the language model")
    return READERS.get(inner)(config, name)

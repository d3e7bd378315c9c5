"""Models: their layers, what they weigh, what they compute, and what they keep per token."""

from simserve.model.load import load_model, preset_names
from simserve.model.parallel import Parallelism
from simserve.model.spec import ModelSpec

__all__ = ["ModelSpec", "Parallelism", "load_model", "preset_names"]

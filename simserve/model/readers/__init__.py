"""Readers of model configurations, one file per architecture family.

A reader turns a `Config` into a `ModelSpec`. It is registered under each `model_type` and each entry of
`architectures` that it understands.
"""

from simserve.model.readers.base import READERS, Reader, read_config

__all__ = ["READERS", "Reader", "read_config"]

"""Kinds of layers, one file each: what they weigh, keep, compute, and which kernels they run."""

from simserve.model.layers.base import Attention, Ffn, Part, products
from simserve.model.layers.compressed import CompressedAttention
from simserve.model.layers.dense import DenseFfn
from simserve.model.layers.gqa import GqaAttention
from simserve.model.layers.hyper import HyperConnections
from simserve.model.layers.linear import LinearAttention
from simserve.model.layers.mla import MlaAttention
from simserve.model.layers.moe import MoeFfn

__all__ = [
    "Attention",
    "CompressedAttention",
    "DenseFfn",
    "Ffn",
    "GqaAttention",
    "HyperConnections",
    "LinearAttention",
    "MlaAttention",
    "MoeFfn",
    "Part",
    "products",
]

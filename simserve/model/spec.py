"""What a model is, for a simulator: heterogeneous layer groups with their shapes.

Field names follow Hugging Face `config.json`. Nothing here knows about GPUs or parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simserve.errors import ScenarioError
from simserve.model.dtypes import PLAIN, Checkpoint
from simserve.model.layers import Attention, CompressedAttention, Ffn, HyperConnections, MlaAttention, MoeFfn

# How one replica spreads over GPUs.


@dataclass(frozen=True)
class Parallelism:
    """Degrees of parallelism of one replica (names as in vLLM and SGLang).

    tp splits heads and matrices, pp splits layers, dp gives each attention rank its own requests and KV
    pool, ep spreads routed experts (1: experts are split by tp like any matrix). GPUs = tp * pp * dp.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class VisionTower:
    """An image encoder in front of the language model; it is in 16 bit and holds no KV cache."""

    params: int
    """Of the encoder, cut by tp."""
    projector_params: int
    """Of what maps its patches to the language model's width, whole on every GPU."""
    patch_values: int
    """Values per patch that the widest of its layers keeps."""
    patches_per_token: int
    """Patches that become one token of the language model."""
    pixels: int
    """Values of a patch's pixels."""


@dataclass(frozen=True)
class LayerGroup:
    """`count` equal layers, each with these attentions and these feed-forward blocks in order.

    Nearly every model has one of each; a LongCat block has two attentions, two dense MLPs and one MoE.
    """

    count: int
    attentions: tuple[Attention, ...]
    ffns: tuple[Ffn, ...]
    residual: HyperConnections | None = None
    """What joins its blocks; None: they add to one stream."""

    @property
    def blocks(self) -> int:
        """Attentions and feed-forward blocks."""
        return len(self.attentions) + len(self.ffns)


@dataclass(frozen=True)
class ModelSpec:
    """A model's architecture."""

    name: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    layers: tuple[LayerGroup, ...]
    tie_word_embeddings: bool
    source: str
    """Where the figures were read."""
    num_nextn_predict_layers: int = 0
    """Multi-token-prediction layers that the checkpoint ships; not part of `layers` or of any total."""
    learned_positions: int = 0
    """Rows of a learned position embedding (GPT-2 and GPT-3); 0 with rotary positions."""
    layer_order: tuple[int, ...] = ()
    """Index into `layers` of each layer, first to last; empty if the groups simply follow one another."""
    rotary_values: int = 0
    """Sines and cosines of all its rotary tables; 0: one table, of every position."""
    vision: VisionTower | None = None
    """Its image encoder; no part of `layers` or of any total."""
    checkpoint: Checkpoint = PLAIN
    """The types of its weights and KV cache, which hold unless a deployment says otherwise."""

    architecture: str = ""
    """Its class, the first of `architectures` in the configuration; empty if that names none."""

    @property
    def num_layers(self) -> int:
        """Layers, a LongCat block counting once."""
        return sum(group.count for group in self.layers)

    @property
    def moes(self) -> tuple[MoeFfn, ...]:
        """The feed-forward blocks with routed experts, one for each group of layers that has them."""
        return tuple(ffn for group in self.layers for ffn in group.ffns if isinstance(ffn, MoeFfn))

    @property
    def has_mla(self) -> bool:
        """Whether layers attend over a latent cache."""
        return any(isinstance(one, MlaAttention) for group in self.layers for one in group.attentions)

    @property
    def has_compressed(self) -> bool:
        """Whether layers attend over compressed tokens."""
        return any(isinstance(one, CompressedAttention) for group in self.layers for one in group.attentions)

    @property
    def has_sparse_attention(self) -> bool:
        """Whether an indexer picks the tokens that are attended to."""
        return any(one.index_flops for group in self.layers for one in group.attentions)

    @property
    def order(self) -> tuple[int, ...]:
        """Index into `layers` of each layer, first to last (length `num_layers`)."""
        if self.layer_order:
            return self.layer_order
        return tuple(index for index, group in enumerate(self.layers) for _ in range(group.count))


# How a pipeline divides the layers: vLLM's rule.
#
# Equal shares; the layers left over go one each to the stages before the last, from the back, so that the
# stage with the head stays light (vLLM, `get_pp_indices`).


@dataclass(frozen=True)
class Stage:
    """One pipeline stage."""

    index: int
    layers: tuple[int, ...]
    """Layers of each of the spec's groups that the stage holds."""
    first: bool
    last: bool

    def groups(self, spec: ModelSpec) -> tuple[LayerGroup, ...]:
        """Return the groups of the stage's layers, each with the stage's count of them."""
        pairs = zip(self.layers, spec.layers, strict=True)
        return tuple(replace(group, count=count) for count, group in pairs if count)


def pipeline_stages(spec: ModelSpec, pp: int) -> list[Stage]:
    """Return the stages, first to last. Raises `ScenarioError` if there are more stages than layers."""
    total = spec.num_layers
    if not 1 <= pp <= total:
        raise ScenarioError(f"does not fit the {total} layers of {spec.name}", "pp", pp, f"1 to {total}")
    share, left = divmod(total, pp)
    sizes = [share] * pp
    for back in range(2, left + 2):
        sizes[-back] += 1
    return _stages(spec, sizes)


def _stages(spec: ModelSpec, sizes: list[int]) -> list[Stage]:
    order, stages, start = spec.order, [], 0
    for index, size in enumerate(sizes):
        own = order[start : start + size]
        layers = tuple(own.count(group) for group in range(len(spec.layers)))
        stages.append(Stage(index, layers, first=index == 0, last=index == len(sizes) - 1))
        start += size
    return stages

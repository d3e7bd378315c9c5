"""What every kind of layer answers: its matrices, its cache, its kernels, its arithmetic, its words.

One file per kind of attention and of feed-forward block. Weights, memory, FLOPs, the latency plan, the
profiler's shapes and the tables of `simserve models` are folds over these answers, so that a new kind is a
new file here (and a new kernel in `latency/kernels` only where it computes attention in a new way).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar, Literal, NamedTuple

from simserve.errors import ScenarioError

Kind = Literal["embedding", "head", "attention", "dense_ffn", "shared_expert", "routed_expert", "plain"]
"""`plain` are norms, biases and routers: small, never quantised, and whole on every GPU."""

Split = Literal["rows", "columns", "kv_heads", "experts", "none"]
"""How tp cuts a part: its outputs; its inputs; its outputs, but no finer than KV heads; over experts; not."""


@dataclass(frozen=True)
class Part:
    """Parameters of one layer (or of the model's ends) that are stored and used alike: a [rows, columns]."""

    kind: Kind
    rows: int
    """Outputs of a matrix; of routed experts those of all matrices of one expert together."""
    columns: int = 1
    """Inputs."""
    split: Split = "none"
    product: str = ""
    """The kernel that multiplies with it, alone or fused with others of that name; "": looked up or added."""
    active: float = 1.0
    """Share of the parameters that one token uses."""
    copies: int = 1
    """Matrices of this shape: routed experts."""
    kv_heads: int = 0
    """Heads that a `kv_heads` split cannot cut."""
    in_attention: bool = False
    """True if attention itself computes the product, in whichever of its forms."""
    after_core: bool = False
    """True if it multiplies the result of attention."""

    @property
    def params(self) -> int:
        """Parameters in the whole model."""
        return self.rows * self.columns * self.copies

    @property
    def matmul(self) -> bool:
        """False if the parameters are looked up or added, not multiplied."""
        return bool(self.product)

    @property
    def quantised(self) -> bool:
        """True if the checkpoint's format holds for it, False if it stays at 16 bit."""
        return self.matmul and self.kind not in ("head", "plain")

    def local(self, tp: int) -> tuple[int, int]:
        """Return (rows, columns) on one of `tp` GPUs, padded as engines do where tp does not divide them."""
        match self.split:
            case "rows":
                return ceil(self.rows / tp), self.columns
            case "columns":
                return self.rows, ceil(self.columns / tp)
            case "kv_heads":
                return self.rows // self.kv_heads * max(1, ceil(self.kv_heads / tp)), self.columns
            case _:
                return self.rows, self.columns


class Product(NamedTuple):
    """One matrix product of one GPU: y[m, n] = x[m, k] W[k, n]."""

    kind: Kind
    n: int
    k: int
    after_core: bool = False
    """True if it multiplies the result of attention."""


def products(parts: Iterable[Part], tp: int) -> dict[str, Product]:
    """Return the products of one of `tp` GPUs by name, in order; parts of one name are one wide matrix.

    Routed experts, whose products depend on the tokens' choice, are left out.
    """
    made: dict[str, Product] = {}
    for part in parts:
        if not part.matmul or part.split == "experts":
            continue
        n, k = part.local(tp)
        known = made.get(part.product)
        made[part.product] = Product(part.kind, n + (known.n if known else 0), k, part.after_core)
    return made


# What runs between the products.


@dataclass(frozen=True)
class Shard:
    """One GPU's part of a layer, and the bytes of one value there."""

    hidden: int
    tp: int
    width: Any
    """Of hidden states: an int or a float, which every count of bytes then is."""
    kv_width: Any
    """Of the KV cache."""


class Rows(NamedTuple):
    """A kernel that moves `bytes` bytes for each token: a norm, an activation, a copy."""

    name: str
    bytes: float
    kind: str = ""
    """What the table `elementwise` calls it; "": it is not measured."""
    values: int = 0
    """Values of one row, as the profiler makes them."""
    written: int = 0
    """Values of a row that go to the KV cache."""
    only_measured: bool = False
    """True if engines fuse it into a neighbour, unless a profile of the user's own machine holds it."""
    start_us: Mapping[int, float] | None = None
    """By SM architecture: what it takes before the first byte; it does not run on others."""


class AllReduce(NamedTuple):
    """The sum over the ranks of tensor parallelism of `bytes` bytes for each token."""

    name: str
    bytes: float


After = Mapping[str, Sequence[Rows | AllReduce]]
"""What follows each product, by its name; "" comes before the first."""


class Block(NamedTuple):
    """Products in their order, and what runs between them."""

    parts: list[Part]
    after: After


# What a layer keeps of a sequence.


class Cache(NamedTuple):
    """Entries that one attention keeps, on one rank."""

    entry_bytes: int
    ratio: int = 1
    """Tokens that one entry stands for."""
    span_tokens: int = 0
    """Tokens that it keeps, the last of a sequence (or those of its own chunk); 0: all."""
    chunked: bool = False
    """True if it keeps the tokens since the last multiple of the span."""

    @property
    def token_bytes(self) -> float:
        """Bytes for each token: a whole number wherever an entry stands for one token."""
        return self.entry_bytes if self.ratio == 1 else self.entry_bytes / self.ratio


@dataclass(frozen=True)
class LargestStep:
    """The largest step of a deployment, for which an engine sets activations aside."""

    tokens: int
    """Most tokens of a step."""
    sequences: int
    """Most sequences of a step."""
    longest: int
    """Tokens of the longest sequence."""
    hidden_size: int
    tp: int
    expert_cut: int
    """GPUs that one routed expert is cut over."""
    keeps_expert_buffers: bool
    """True if the kernels of routed experts use buffers that stay allocated."""


Form = Literal["expanded", "absorbed"]
"""Form of latent attention; other attentions have only one."""
Module = tuple[str, ...]
"""One matrix of a checkpoint, under each of the names that families give it."""


class Attention(ABC):
    """One attention of a layer, its projections in and out included."""

    num_attention_heads: int
    name: ClassVar[str] = "attention"
    """What reports call its kernels."""

    @property
    def label(self) -> str:
        """What reports call the kernels of this very one."""
        return self.name

    @abstractmethod
    def parts(self, hidden: int) -> list[Part]:
        """Return its parameters, in the order in which they are multiplied."""

    @abstractmethod
    def after(self, at: Shard) -> After:
        """Return the kernels that follow each product, by its name; "" comes first."""

    @abstractmethod
    def core(self, tp: int) -> object:
        """Return the shape of attention itself on one of `tp` GPUs, by which its kernel is found."""

    @abstractmethod
    def caches(self, tp: int, kv_dtype: str) -> tuple[Cache, ...]:
        """Return what one of `tp` ranks keeps; raises `ScenarioError` for a type that it cannot have."""

    @abstractmethod
    def pair_flops(self, form: Form) -> int:
        """Return the FLOPs of one query and one key, all heads, without an indexer."""

    @abstractmethod
    def activation_values(self, step: LargestStep) -> int:
        """Return the most values per token that it keeps at once on one GPU, beside the hidden states."""

    @abstractmethod
    def modules(self) -> list[Module]:
        """Return its matrices as checkpoints name them, without the layer's prefix."""

    @property
    @abstractmethod
    def brief(self) -> str:
        """Kind and heads in a few characters."""

    @property
    @abstractmethod
    def words(self) -> str:
        """Kind, heads and sizes."""

    def sequence_bytes(self, tp: int, kv_dtype: str) -> int:
        """Return the bytes that one of `tp` ranks keeps of every sequence, however long: constant states."""
        return 0

    def block(self, at: Shard) -> Block:
        """Return its products and what runs between them, without attention itself."""
        return Block([part for part in self.parts(at.hidden) if not part.in_attention], self.after(at))

    def token_bytes(self, tp: int, kv_dtype: str) -> float:
        """Return the bytes of one more token of a short sequence on one of `tp` ranks."""
        return sum(cache.token_bytes for cache in self.caches(tp, kv_dtype))

    def attended(self, context_tokens: float) -> float:
        """Return how many keys one query attends of so many tokens (a chunk is taken as full)."""
        return context_tokens

    @property
    def index_flops(self) -> float:
        """FLOPs of one query and one token in the indexer that picks keys; all pairs pass it."""
        return 0

    @property
    def state_flops(self) -> float:
        """FLOPs of one token's update of the constant state."""
        return 0

    @property
    def rotary_width(self) -> int:
        """Values of a head that are rotated."""
        return 0

    @property
    def kv_heads(self) -> int:
        """KV heads that tensor parallelism splits; 0 if every rank keeps the whole cache."""
        return 0

    @property
    def bounded(self) -> bool:
        """True if it forgets tokens."""
        return any(cache.span_tokens for cache in self.caches(1, "bf16"))

    def heads_on(self, tp: int, model: str = "the model") -> int:
        """Return the query heads of one of `tp` GPUs; raises `ScenarioError` if these cannot split them."""
        heads = self.num_attention_heads
        if heads % tp:
            raise ScenarioError(
                f"does not divide the {heads} attention heads of {model}", "tp", tp, divisors(heads)
            )
        return heads // tp

    def check_tp(self, model: str, tp: int) -> None:
        """Raise `ScenarioError` unless `tp` GPUs can split the layer."""
        self.heads_on(tp, model)


class Ffn(ABC):
    """One feed-forward block of a layer."""

    name: ClassVar[str]
    """What memory and reports call its products."""

    @abstractmethod
    def parts(self, hidden: int) -> list[Part]:
        """Return its parameters, in the order in which they are multiplied."""

    @abstractmethod
    def entry(self, at: Shard) -> Block:
        """Return what runs where attention does, also if the rest runs on other GPUs: norm and router."""

    @abstractmethod
    def body(self, at: Shard) -> Block:
        """Return what follows, without routed experts."""

    @abstractmethod
    def activation_values(self, step: LargestStep) -> int:
        """Return the most values per token that it keeps at once on one GPU, beside the hidden states."""

    @property
    @abstractmethod
    def hidden_states(self) -> int:
        """Hidden states per token that it keeps beside those."""

    @abstractmethod
    def modules(self) -> dict[str, list[Module]]:
        """Return its matrices by part of the weights, as checkpoints name them."""

    @property
    @abstractmethod
    def words(self) -> str:
        """Kind and sizes."""


def mlp_parts(kind: Kind, name: str, width: int, hidden: int, matrices: int = 3) -> list[Part]:
    """Return the matrices of an MLP: gate (with three `matrices`) and up are one product."""
    up = [Part(kind, width, hidden, "rows", f"{name} up")] * (matrices - 1)
    return [*up, Part(kind, hidden, width, "columns", f"{name} down")]


def mlp_activation(name: str, parts: list[Part], at: Shard) -> Rows:
    """Return the activation between both products of the MLP of that name."""
    shapes = products(parts, at.tp)
    up, down = shapes[f"{name} up"].n, shapes[f"{name} down"].k
    return Rows(f"{name} activation", (up + down) * at.width, "silu_mul", up)


def input_norm(at: Shard) -> Rows:
    """Return the norm before a block, which adds the block before it to the residual stream."""
    return Rows("norm", 4 * at.hidden * at.width, "add_rmsnorm", at.hidden)


def shares(value: int, parts: int) -> int:
    """Return one of `parts` shares, rounded up."""
    return -(-value // parts)


def divisors(number: int) -> str:
    """Return the divisors of a number, in words."""
    return ", ".join(str(one) for one in range(1, number + 1) if not number % one)


def under(prefix: str, names: Iterable[str]) -> list[Module]:
    """Return modules of one name each below a prefix."""
    return [(f"{prefix}.{name}",) for name in names]

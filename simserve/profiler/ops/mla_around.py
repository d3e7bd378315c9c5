"""What runs around multi-head latent attention: batched products of decodes, and the keys of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from typing import Any, NamedTuple

from simserve.profiler import torch_kernels
from simserve.profiler.case import Case, Kernel, refinement
from simserve.profiler.device import Device
from simserve.profiler.need import need_torch, version_of
from simserve.profiler.ops.mla import BLOCK, LATENT, latent_of
from simserve.profiler.reference import TOLERANCE, finite, relative_error, sampled
from simserve.profiler.shapes import Shapes
from simserve.profiler.tensors import copies, normal, random_order, whole, width_of


class MlaBmm:
    """The `mla_bmm` table: batched products into ("pre") and out of ("post") the latent space of decodes.

    Stage "keys" puts the keys of prompts together: latents out of their blocks, made keys beside rotary ones.
    """

    name = "mla_bmm"
    key_columns = ("stage", "dtype", *LATENT, "tokens")

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield every stage at every token count up to the largest decode batch, and some beyond."""
        tokens = shapes.sizes.tokens
        for latent in shapes.latents:
            for stage in ("pre", "post", "keys"):
                for count, level in zip(tokens, refinement(len(tokens)), strict=True):
                    key = (
                        ("stage", stage),
                        ("dtype", shapes.dtype),
                        *zip(LATENT, latent, strict=True),
                        ("tokens", count),
                    )
                    yield Case(self.name, key, "torch", level)

    def build(self, case: Case, device: Device) -> Kernel:
        """Return the call of a case."""
        made = _keys_call(case, device) if case["stage"] == "keys" else _product_call(case, device)
        version, tolerance = version_of("torch"), TOLERANCE[case["dtype"]]
        return Kernel(made.call, made.sets, made.error, tolerance, made.name, version, rows=case["tokens"])


class _Made(NamedTuple):
    """What a `Kernel` is made of."""

    call: Callable[[int], Any]
    sets: int
    error: Callable[[], float]
    name: str


def _product_call(case: Case, device: Device) -> _Made:
    torch = need_torch()
    latent, dtype, tokens = latent_of(case), case["dtype"], case["tokens"]
    inner, outer = (latent.nope, latent.kv_lora) if case["stage"] == "pre" else (latent.kv_lora, latent.v_dim)
    heads = latent.q_heads
    sets = device.rotation(heads * (inner * outer + tokens * (inner + outer)) * width_of(dtype))
    x = copies(normal(device, heads, tokens, inner, dtype=dtype), sets)
    weights = copies(normal(device, heads, inner, outer, dtype=dtype, scale=inner**-0.5), sets)

    def error() -> float:
        rows = sampled(tokens)
        output = torch.bmm(x[0], weights[0])
        if not finite(output):
            return float("inf")
        return relative_error(output[:, rows], torch.bmm(x[0][:, rows].double(), weights[0].double()))

    return _Made(lambda i: torch.bmm(x[i], weights[i]), sets, error, "torch.bmm")


def _keys_call(case: Case, device: Device) -> _Made:
    """What was made of the latents does not rotate: the product before has just written it."""
    torch = need_torch()
    latent, dtype, tokens = latent_of(case), case["dtype"], case["tokens"]
    width, heads, blocks = latent.kv_lora + latent.rope, latent.q_heads, ceil(tokens / BLOCK)
    made_elements = tokens * heads * (latent.nope + latent.v_dim)
    device.rotation(2 * made_elements * width_of(dtype))  # raises if it does not fit
    sets = device.rotation(blocks * BLOCK * width * width_of(dtype))
    cache = copies(normal(device, blocks, BLOCK, 1, width, dtype=dtype), sets)
    table = whole(device, random_order(blocks)).view(1, blocks)
    made = normal(device, tokens, heads, latent.nope + latent.v_dim, dtype=dtype)

    def call(i: int) -> Any:
        latents = torch_kernels.gathered(cache[i], table)[0, 0, :tokens]
        return torch_kernels.expanded_keys(made, latents[:, latent.kv_lora :], latent.nope)

    def error() -> float:
        expected = torch.empty(
            tokens, heads, latent.nope + latent.rope, dtype=torch.float64, device=made.device
        )
        expected[..., : latent.nope] = made[..., : latent.nope].double()
        place = torch.arange(tokens, device=made.device)
        expected[..., latent.nope :] = cache[0][
            table[0, place // BLOCK], place % BLOCK, :, latent.kv_lora :
        ].double()
        return relative_error(call(0), expected)

    return _Made(call, sets, error, "gather + concatenate")

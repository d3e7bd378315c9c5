"""The memory of an FFN GPU of attention-FFN disaggregation: weights, and no KV cache."""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.hardware import GpuSpec
from simserve.model.dtypes import WeightsDtype, weight_types
from simserve.model.memory_rules import KERNELS_BYTES, nccl_bytes
from simserve.model.memory_settings import MemoryLine
from simserve.model.parallel import Parallelism
from simserve.model.spec import ModelSpec
from simserve.model.weights import check_parallelism, weight_bytes_per_stage
from simserve.units import GB, GIB


def ffn_ledger(
    spec: ModelSpec,
    gpu: GpuSpec,
    gpus: int,
    *,
    weights_dtype: WeightsDtype,
    experts_dtype: str | None,
    redundant_experts: int,
    share: float,
) -> tuple[MemoryLine, ...]:
    """Return the uses of one FFN GPU's memory in bytes; they add up to the HBM.

    Routed experts lie whole on the `gpus`, dense MLPs and shared experts are copied to each. `share` of the
    HBM may be used. Raises `ScenarioError` if they do not divide, or do not fit.
    """
    spread = Parallelism(dp=gpus, ep=gpus)
    try:
        check_parallelism(spec, spread, redundant_experts)
    except ScenarioError as error:
        raise ScenarioError(f"afd.ffn_gpus = {gpus}: {error}") from error
    (weights,) = weight_bytes_per_stage(
        spec, spread, weights_dtype, redundant_experts=redundant_experts, experts_dtype=experts_dtype
    )
    outside = gpu.hbm_bytes - int(share * gpu.hbm_bytes)
    types = weight_types(weights_dtype, experts_dtype)
    rows = [
        ("outside the share", outside, f"1 - {share:g} of the HBM: activations, the CUDA context"),
        ("dense MLP weights", weights.dense_ffn, f"{types.dense}, a copy on each FFN GPU"),
        ("shared expert weights", weights.shared_expert, f"{types.shared_experts}, a copy on each FFN GPU"),
        (
            "routed expert weights",
            weights.routed_expert,
            f"{types.routed_experts}, spread over {gpus} FFN GPUs",
        ),
        ("other", KERNELS_BYTES + nccl_bytes(gpus), f"kernels {KERNELS_BYTES / GIB:.1f} GiB, buffers"),
    ]
    needed = sum(size for _, size, _ in rows)
    if needed > gpu.hbm_bytes:
        raise ScenarioError(
            f"afd.ffn_gpus = {gpus}: {spec.name} needs {(needed - outside) / GB:.1f} GB on each FFN GPU, and "
            f"{(gpu.hbm_bytes - outside) / GB:.1f} GB of a {gpu.name} may be used ({share:g} of "
            f"{gpu.hbm_bytes / GB:.1f} GB); more FFN GPUs hold fewer experts each"
        )
    rows.append(("free", gpu.hbm_bytes - needed, "no KV cache here"))
    return tuple(MemoryLine(*row) for row in rows if row[1])

"""What a pool says of its kernels, as the compilers of step latencies take it."""

from __future__ import annotations

from simserve.latency import ProfileStore
from simserve.latency.kernels.experts import ExpertLoad
from simserve.latency.setting import Analytic, KernelSettings
from simserve.scenario.pool_spec import PoolSpec


def kernel_settings(
    spec: PoolSpec, expert_load: ExpertLoad, profiles: ProfileStore, analytic: Analytic
) -> KernelSettings:
    """Return the settings that all pools have, whatever is compiled for them."""
    return {
        "weights_dtype": spec.weights_dtype,
        "kv_dtype": spec.kv_dtype,
        "experts_dtype": spec.experts_dtype,
        "moe_backend": spec.moe_backend,
        "expert_load": expert_load,
        "profiles": profiles,
        "analytic": analytic,
    }

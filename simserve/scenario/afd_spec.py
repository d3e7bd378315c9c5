"""What a pool says about FFN GPUs of its own: attention-FFN disaggregation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simserve.scenario.part import Part

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AfdSpec(Part):
    """FFN GPUs beside the attention ranks of each replica, and the network between."""

    ffn_gpus: Annotated[int, Field(ge=1, le=65_536)] = Field(
        description="GPUs of each replica that compute FFN layers: routed experts spread over them, dense "
        "MLPs and shared experts are copied to each."
    )
    gpu: str | None = Field(None, description="Their kind; default: the pool's.")
    microbatches: Annotated[int, Field(ge=1, le=16)] = Field(
        3,
        description="Parts of each rank's batch that are on the way at once (Step-3: 3, MegaScale-Infer: 2).",
    )
    exchange: Literal["network", "deepep"] = Field(
        "network",
        description="How tokens get there and back: over the network by formula, or as DeepEP's low-latency "
        "kernels did among as many GPUs (exchange tables).",
    )
    network_gb_s: Positive = Field(
        40.0, description="network: GB/s that each GPU reaches, each way (one 400 Gb/s NIC at 80 %)."
    )
    network_us: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        20.0, description="network: start of a transfer in microseconds (assumption)."
    )
    copies: Literal["gpu", "node"] = Field(
        "gpu",
        description="network: a token goes once to each FFN GPU, or once to each FFN node, that holds one of "
        "its experts (and over NVLink from there).",
    )
    price_per_gpu_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="Price of one FFN GPU for one hour; default: the pool's."
    )

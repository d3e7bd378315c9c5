"""MoE layers at which ranks with different loads meet: expert-parallel with an all-to-all, or gathered.

The all-to-all waits for the fullest rank; the experts see the tokens of all. With tensor parallelism
inside a rank (tp > 1) its GPUs share the rank's tokens on the wire.
"""

from __future__ import annotations

import numpy as np

from simserve.latency.blocks.plan import Setting
from simserve.latency.costs import Cost, LinearOp
from simserve.latency.grid import Float64
from simserve.latency.kernels.collective import all_reduce, collective
from simserve.latency.kernels.exchange import LOW_LATENCY_MAX_TOKENS, NORMAL_SMS, ExpertExchange
from simserve.latency.kernels.expert_counts import expert_counts
from simserve.latency.kernels.expert_shape import Experts
from simserve.latency.kernels.experts import RoutedExperts
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.topology import TopologyExchange
from simserve.latency.roofline import BYTES
from simserve.model.spec import MoeFfn


class EpGroup:
    """Dispatch, experts and combine over `ep` ranks (see `blocks.plan.GroupKernels`)."""

    def __init__(self, setting: Setting, ffn: MoeFfn, experts: Experts) -> None:
        """`experts` with redundant copies counted."""
        machine, ranks = setting.machine, setting.parallel.ep
        nodes = -(-ranks // setting.gpus_per_node)
        self._all2all = setting.all2all
        self._nodes, self._per_node = nodes, setting.gpus_per_node
        self._tp = setting.parallel.tp
        self._sms = machine.multiprocessors
        row = setting.hidden * BYTES[setting.activation_dtype]
        phases = ("dispatch", "combine")
        if setting.all2all == "nccl":
            exchange = collective(machine, "all-to-all", "all_to_all", ranks, row * experts.topk)
            self._wire = (lambda received, sent: exchange.cost(received),) * 2
        elif setting.all2all == "allgather":
            gather, scatter = _gathering(machine, ranks, row * ranks)
            self._wire = (
                lambda received, sent: gather.cost(sent),
                lambda received, sent: scatter.cost(sent),
            )
        elif setting.all2all == "analytic":
            shape = (setting.hidden, experts.topk, ranks)
            self._wire = tuple(TopologyExchange(machine, phase, *shape).cost for phase in phases)
        else:
            shape = (setting.hidden, max(1, round(experts.topk)), ffn.n_routed_experts, ranks, nodes)
            mode = setting.all2all.removeprefix("deepep_") if "_" in setting.all2all else ""
            self._wire = tuple(ExpertExchange(machine, phase, *shape, mode=mode).cost for phase in phases)
        load = setting.expert_load
        self._small, self._large = (
            RoutedExperts(machine, experts, load, phase) for phase in ("decode", "prefill")
        )
        self.weights = self._small.weights
        self.counts = expert_counts(machine, experts)

    def wire(self, sent: Float64, received: Float64) -> tuple[Cost, Cost]:
        """Return dispatch and combine."""
        sent, received = (np.maximum(tokens / self._tp, 1.0) for tokens in (sent, received))
        dispatch, combine = self._wire
        return dispatch(received, sent), combine(received, sent)

    def experts(self, tokens: Float64, group_tokens: Float64) -> Cost:
        """Return the experts' cost; small steps run the kernels of the low-latency mode."""
        below = np.full(np.shape(group_tokens), self._low_latency(float(np.max(tokens))))
        return self._small.cost(group_tokens).where(below, self._large.cost(group_tokens))

    def ranks_per_port(self, tokens: int) -> int:
        """Return 1: a rank has its own NIC or NVLink; but normal kernels send once per node, and gathered
        tokens reach all."""
        if self._all2all == "allgather":
            return 0
        return 1 if self._low_latency(tokens) or self._nodes == 1 else self._per_node

    def share_of_sms(self, tokens: int) -> float:
        """Return what DeepEP's normal kernels occupy; low-latency ones leave the wire to the NIC."""
        if not self._all2all.startswith("deepep") or self._low_latency(tokens):
            return 0.0
        return NORMAL_SMS / self._sms

    def _low_latency(self, tokens: float) -> bool:
        if self._all2all == "deepep_normal":
            return False
        return self._all2all == "deepep_low_latency" or tokens / self._tp <= LOW_LATENCY_MAX_TOKENS


class GatheredGroup:
    """Every rank computes with the tokens of all: gathered before, summed and scattered after.

    Without attention ranks (dp = 1) all GPUs have all tokens already, and an all-reduce sums the outputs.
    """

    def __init__(self, setting: Setting, experts: Experts) -> None:
        """`experts` split over tp, or over ep."""
        machine, parallel = setting.machine, setting.parallel
        gpus = parallel.tp * parallel.dp
        row = setting.hidden * BYTES[setting.activation_dtype]
        self._before: LinearOp | None = None
        if parallel.dp == 1:
            self._after = all_reduce(machine, "MoE all-reduce", gpus, row)
        else:
            self._before, self._after = _gathering(machine, gpus, row * parallel.dp)
        self._experts = RoutedExperts(machine, experts, setting.expert_load)
        self.weights = self._experts.weights
        self.counts = expert_counts(machine, experts)

    def wire(self, sent: Float64, received: Float64) -> tuple[Cost, Cost]:
        """Return all-gather and reduce-scatter at the fullest rank's tokens, as engines pad them."""
        after = self._after.cost(sent)
        none = Cost(np.zeros_like(after.us), np.zeros_like(after.tags))
        return (none if self._before is None else self._before.cost(sent)), after

    def experts(self, tokens: Float64, group_tokens: Float64) -> Cost:
        """Return the experts' cost for the tokens of all."""
        return self._experts.cost(group_tokens)

    def ranks_per_port(self, tokens: int) -> int:
        """Return 0: every rank receives the tokens of all."""
        return 0

    def share_of_sms(self, tokens: int) -> float:
        """Return 0: nothing overlaps here."""
        return 0.0


def _gathering(machine: Machine, gpus: int, token_bytes: float) -> tuple[LinearOp, LinearOp]:
    """Return what brings the tokens of all ranks to every GPU, and what sums the GPUs' outputs for each rank.

    `token_bytes` is what a token of the fullest rank stands for, with those that it is padded to.
    """
    return (
        collective(machine, "token all-gather", "all_gather", gpus, token_bytes),
        collective(machine, "token reduce-scatter", "reduce_scatter", gpus, token_bytes),
    )

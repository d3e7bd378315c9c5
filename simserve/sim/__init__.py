"""The event loop: replicas, sources and what they record. The only layer that knows SimPy."""

from simserve.sim.cluster import Progress
from simserve.sim.simulate import simulate
from simserve.sim.specs import Clients, GroupSpec, LocalRule, ReplicaSpec, SplitSpec, SwitchRule

__all__ = [
    "Clients",
    "GroupSpec",
    "LocalRule",
    "Progress",
    "ReplicaSpec",
    "SplitSpec",
    "SwitchRule",
    "simulate",
]

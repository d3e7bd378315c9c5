"""The event loop: replicas, sources and what they record. The only layer that knows SimPy."""

from simserve.engine.cluster import Progress
from simserve.engine.simulate import simulate
from simserve.engine.spec import GroupSpec, ReplicaSpec
from simserve.engine.split_spec import LocalRule, SplitSpec, SwitchRule

__all__ = ["GroupSpec", "LocalRule", "Progress", "ReplicaSpec", "SplitSpec", "SwitchRule", "simulate"]

"""The event loop: replicas, sources and what they record. The only layer that knows SimPy."""

from simserve.engine.cluster import Progress
from simserve.engine.simulate import simulate
from simserve.engine.spec import ReplicaSpec

__all__ = ["Progress", "ReplicaSpec", "simulate"]

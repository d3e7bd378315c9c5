"""The scheduler of vLLM V1, by version (domain rules read in vLLM 0.15.1, 0.19.0 and 0.33.0)."""

from simserve.engines.vllm.disagg import VllmSplitPolicy
from simserve.engines.vllm.engine import VLLM
from simserve.engines.vllm.options import VllmParams
from simserve.engines.vllm.router import VllmDpRouter
from simserve.engines.vllm.scheduler import VllmPolicy
from simserve.engines.vllm.spec_decode import VllmSplitDraftingPolicy

__all__ = ["VLLM", "VllmDpRouter", "VllmParams", "VllmPolicy", "VllmSplitDraftingPolicy", "VllmSplitPolicy"]

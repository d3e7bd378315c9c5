"""The scheduler of vLLM V1, by version (domain rules read in vLLM 0.15.1, 0.19.0 and 0.33.0)."""

from simserve.policy.vllm.drafting_split import VllmSplitDraftingPolicy
from simserve.policy.vllm.params import VllmParams
from simserve.policy.vllm.scheduler import VllmPolicy
from simserve.policy.vllm.split import VllmSplitPolicy

__all__ = ["VllmParams", "VllmPolicy", "VllmSplitDraftingPolicy", "VllmSplitPolicy"]

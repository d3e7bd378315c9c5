"""The SGLang scheduler as a policy: see `scheduler`."""

from simserve.policy.sglang.content import BlockContent, Content, SessionContent, UniqueContent
from simserve.policy.sglang.params import SglangParams
from simserve.policy.sglang.scheduler import SglangPolicy

__all__ = ["BlockContent", "Content", "SessionContent", "SglangParams", "SglangPolicy", "UniqueContent"]

"""The SGLang scheduler as a policy: see `scheduler`."""

from simserve.policy.sglang.content import BlockContent, Content, SessionContent, UniqueContent
from simserve.policy.sglang.params import SglangParams
from simserve.policy.sglang.scheduler import SglangPolicy
from simserve.policy.sglang.split import SglangDecodePolicy, SglangPrefillPolicy

__all__ = [
    "BlockContent",
    "Content",
    "SessionContent",
    "SglangDecodePolicy",
    "SglangParams",
    "SglangPolicy",
    "SglangPrefillPolicy",
    "UniqueContent",
]

"""The SGLang scheduler as a policy: see `scheduler`."""

from simserve.engines.sglang.disagg import SglangDecodePolicy, SglangPrefillPolicy
from simserve.engines.sglang.engine import SGLANG
from simserve.engines.sglang.options import SglangParams
from simserve.engines.sglang.scheduler import SglangPolicy
from simserve.engines.sglang.sequence import BlockContent, Content, SessionContent, UniqueContent

__all__ = [
    "SGLANG",
    "BlockContent",
    "Content",
    "SessionContent",
    "SglangDecodePolicy",
    "SglangParams",
    "SglangPolicy",
    "SglangPrefillPolicy",
    "UniqueContent",
]

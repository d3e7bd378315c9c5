"""A latency law that can be computed by hand: fixed + per token + per context, all integers."""

from __future__ import annotations

from array import array
from itertools import accumulate

import numpy as np

from simserve.latency.base import PAGE


class PlainLatency:
    """step = fixed + per_token * tokens + (mean context) * per_context + prefix pairs * per_pair, in ns."""

    def __init__(self, fixed=1000, per_token=10, per_context=3, per_pair=1, stages=1, hop=0, host=0, last=0):
        self.fixed, self.per_token, self.per_context, self.per_pair = fixed, per_token, per_context, per_pair
        self.stages, self.hop, self.host, self.last = stages, hop, host, last
        self.booked_ns = 0

    def decode_ns(self, sequences, mean_context):
        return self.fixed + self.per_token * sequences + self.per_context * mean_context

    def decode_page(self, sequences, page):
        times = (self.decode_ns(sequences, page * PAGE + i) for i in range(PAGE))
        return array("q", accumulate(times, initial=0))

    def step_ns(self, decodes, decode_context, chunks):
        tokens = decodes + sum(c.tokens for c in chunks)
        ns = self.fixed + self.per_token * tokens
        if decodes:
            ns += self.per_context * (decode_context // decodes)
        ns += self.per_pair * sum(c.tokens * c.cached for c in chunks)
        self.booked_ns += ns
        return ns

    def stage_ns(self, step_ns, decodes, decode_context, chunks):
        return [step_ns] * (self.stages - 1) + [step_ns + self.last]

    def host_ns(self, sequences, chunks, running):
        return self.host

    def hop_ns(self, tokens):
        return self.hop

    def decode_provenance(self, sequences, page, visits):
        mean = page * PAGE + np.arange(PAGE)
        return {
            "analytic": float(visits @ (self.fixed + self.per_token * sequences + self.per_context * mean))
        }

    def step_provenance(self):
        return {"analytic": float(self.booked_ns)}

"""From a result to the numbers that are reported: whole run, steady window, use of the hardware."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from simserve.core import Result, Status
from simserve.metrics.bottlenecks import Limit, limits
from simserve.metrics.columns import Bool, Columns, Slo, derive
from simserve.metrics.definitions import DEFINITIONS
from simserve.metrics.groups import (
    DRAFT_DEFINITIONS,
    GROUP_DEFINITIONS,
    DraftUse,
    GroupUse,
    TierUse,
    draft_uses,
    group_uses,
    tier_uses,
    tier_warnings,
)
from simserve.metrics.rates import Advice, Rates, cost_per_million, rates_of
from simserve.metrics.replications import Replications
from simserve.metrics.slo_verdict import SloVerdict, evidence, judge_slo
from simserve.metrics.stability import STABLE, Stability, judge
from simserve.metrics.stages import STAGE_DEFINITIONS, SplitSummary, split_summary, split_warnings
from simserve.metrics.targets import targets_of
from simserve.metrics.utilisation import Use, pool_uses, replica_uses
from simserve.metrics.window import WindowSummary, steady_span, summarize_window, whole_span

SCHEMA = 3
"""Version of summary.json; grows when a key changes its meaning or goes away."""


@dataclass(frozen=True)
class Counts:
    """Where the requests went: requests = completed + refused + abandoned + unfinished."""

    requests: int
    arrived: int
    """Less than `requests` only if the run ended before some could arrive."""
    completed: int
    refused: int
    abandoned: int
    """Their clients gave up."""
    unfinished: int
    reasons: dict[str, int]
    """Refused, abandoned and unfinished requests by reason."""
    cut: dict[str, int]
    """Completed requests whose answer was cut short, by reason."""
    no_output: int
    """Completed with 0 output tokens: they have no TTFT, TPOT or ITL."""
    one_output: int
    """Completed with 1 output token: they have no TPOT or ITL."""
    preempted: int
    """Requests preempted at least once."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Tokens of completed requests; cached are the prompt tokens that the prefix cache had."""
    wasted_tokens: int = 0
    """Output tokens made for nobody: after their clients had given up."""


@dataclass(frozen=True)
class Summary:
    """Every number that simserve reports about a run; None is 'no data'."""

    schema: int
    counts: Counts
    whole: WindowSummary
    steady: WindowSummary
    rates: Rates
    """What is served per second, by which deployments are ranked."""
    steady_window: tuple[int, int]
    stability: Stability
    slo_verdict: SloVerdict | None
    """Is the SLO met? None without one."""
    replicas: list[Use]
    pools: list[Use]
    limits: list[Limit]
    """What limits each pool."""
    provenance: dict[str, float]
    """Share of simulated busy time by where its latency came from."""
    operations: dict[str, float]
    """Share of simulated busy time by group of kernels."""
    price_per_hour: float | None
    """Of all GPUs, if every pool has a price."""
    cost_per_million_output_tokens: float | None
    warnings: list[str]
    definitions: dict[str, str]
    kv_tiers: list[TierUse]
    """KV tiers below HBM, by replica; empty without tiers."""
    split: SplitSummary | None = None
    """Stages and transfers of a prefill/decode split."""
    groups: list[GroupUse] = field(default_factory=list)
    """Groups of attention ranks that step together; empty without them."""
    speculation: list[DraftUse] = field(default_factory=list)
    """Speculative decoding by pool; empty without it."""
    replications: Replications | None = None
    """What other seeds add; None for a single run."""
    advice: list[Advice] | None = None
    """Changes that were simulated in short and help; None: not looked for."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers, as in summary.json; nothing of a split that is not there."""
        plain = asdict(self)
        if self.split is None:
            del plain["split"]
        if not self.groups:
            del plain["groups"]
        if not self.speculation:
            del plain["speculation"]
        if self.replications is None:
            del plain["replications"]
        if self.advice is None:
            del plain["advice"]
        return plain


def summarize(result: Result, slo: Slo | None = None, *, closed_loop: bool = False) -> Summary:
    """Return the summary of `result`. `closed_loop` exempts it from the stability verdict.

    Definitions are in `definitions.py` and inside the summary. Work is O(n); a million requests take about a
    second.
    """
    columns = derive(result)
    whole = whole_span(result, columns)
    counts = _counts(result, columns)
    limited = slo if slo is not None and slo.limits() else None
    stability, targets = judge(result, closed_loop), targets_of(slo)
    all_of_it = summarize_window(result, columns, whole, limited)
    steady = summarize_window(
        result, columns, steady_span(result, columns), limited, carried=stability.verdict == STABLE
    )
    rates = rates_of(result, columns, all_of_it, steady, stability, closed_loop)
    price = _price_per_hour(result)
    tiers = tier_uses(result)
    split = split_summary(result, whole.start_ns, whole.end_ns)
    pools = pool_uses(result, whole)
    speculation = draft_uses(result)
    return Summary(
        schema=SCHEMA,
        counts=counts,
        whole=all_of_it,
        steady=steady,
        rates=rates,
        steady_window=result.steady_window,
        stability=stability,
        slo_verdict=judge_slo(targets, [evidence(result, targets, stability)]) if targets else None,
        replicas=replica_uses(result, whole),
        pools=pools,
        limits=limits(result, pools, whole),
        provenance=_shares(result.provenance_ns),
        operations=_shares(result.op_ns),
        price_per_hour=price,
        cost_per_million_output_tokens=cost_per_million(price, rates.output_tokens_per_s),
        warnings=[*result.warnings, *tier_warnings(tiers), *split_warnings(split)],
        definitions=dict(DEFINITIONS)
        | (STAGE_DEFINITIONS if result.split is not None else {})
        | (GROUP_DEFINITIONS if result.groups else {})
        | (DRAFT_DEFINITIONS if speculation else {}),
        kv_tiers=tiers,
        split=split,
        groups=group_uses(result),
        speculation=speculation,
    )


def _counts(result: Result, columns: Columns) -> Counts:
    done = columns.completed
    outputs = result.output_tokens[done]
    return Counts(
        requests=len(result),
        arrived=int(columns.arrived.sum()),
        completed=int(done.sum()),
        refused=int((result.status == Status.REFUSED).sum()),
        abandoned=int((result.status == Status.ABANDONED).sum()),
        unfinished=int((result.status == Status.UNFINISHED).sum()),
        reasons=_by_reason(result, ~done),
        cut=_by_reason(result, done),
        no_output=int((outputs == 0).sum()),
        one_output=int((outputs == 1).sum()),
        preempted=int((result.preemptions > 0).sum()),
        prompt_tokens=int(result.prompt_tokens[done].sum()),
        output_tokens=int(outputs.sum()),
        cached_tokens=int(result.cached_tokens[done].sum()),
        wasted_tokens=result.wasted_tokens,
    )


def _by_reason(result: Result, members: Bool) -> dict[str, int]:
    found = result.reason[members & (result.reason >= 0)]
    counts = np.bincount(found, minlength=len(result.reasons))
    return {text: int(n) for text, n in zip(result.reasons, counts, strict=True) if n}


def _shares(provenance_ns: dict[str, float]) -> dict[str, float]:
    total = sum(provenance_ns.values())
    return {name: ns / total for name, ns in provenance_ns.items()} if total > 0 else {}


def _price_per_hour(result: Result) -> float | None:
    prices = [pool.price_per_gpu_hour for pool in result.pools]
    if not prices or None in prices:
        return None
    gpus = [pool.replicas * pool.gpus_per_replica for pool in result.pools]
    own = sum(n * price for n, price in zip(gpus, prices, strict=True) if price is not None)
    return float(own + sum(pool.beside_price_per_hour for pool in result.pools))

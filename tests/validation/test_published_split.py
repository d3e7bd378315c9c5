"""Published rows of a prefill/decode split become a scenario with both sides, or say why not."""

from __future__ import annotations

import pytest

from simserve.validation.published_row import NotSimulatable, setup_of, split_of

ROW = {
    "row_id": "x-1",
    "simulatable": "yes",
    "mode": "disagg",
    "model": "Qwen3-8B",
    "gpu": "H800 80GB",
    "framework": "vLLM",
    "framework_version": "0.15.1",
    "weights_precision": "BF16",
    "prefill_config": "2P TP8",
    "decode_config": "1D TP4",
    "isl": "128",
    "osl": "128",
    "length_dist": "random, fixed",
    "concurrency": "1",
    "num_requests": "50",
    "scheduler_settings": "prefix caching off; MooncakeConnector over 8x400G RoCE; toy proxy",
}


def test_both_sides_and_the_links() -> None:
    scenario = setup_of(ROW).scenario
    assert [(pool.role, pool.replicas, pool.tp) for pool in scenario.pools] == [
        ("prefill", 2, 8),
        ("decode", 1, 4),
    ]
    assert scenario.transfer is not None
    assert (scenario.transfer.link, scenario.transfer.links) == ("rdma_400g", 8)


def test_links_that_are_not_named_are_the_default() -> None:
    transfer = setup_of({**ROW, "scheduler_settings": "over 2x56G"}).scenario.transfer
    assert transfer is not None
    assert transfer.links is None


@pytest.mark.parametrize("config", ["4 nodes, EP32", "", "1P1D"])
def test_sides_that_are_not_plain_are_not_run(config: str) -> None:
    row = {**ROW, "prefill_config": config}
    assert split_of(row) is None
    with pytest.raises(NotSimulatable, match="disagg"):
        setup_of(row)

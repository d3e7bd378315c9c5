"""Options of the engines: defaults as read in their code, and what is refused, by name and with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simserve.deploy.build import Deployment, build
from simserve.engines.presets import PRESETS, engine_preset
from simserve.engines.sglang import SglangParams
from simserve.engines.sglang.options import NOT_MODELLED as NOT_IN_SGLANG
from simserve.engines.vllm import VllmParams
from simserve.engines.vllm.options import NOT_MODELLED as NOT_IN_VLLM
from simserve.errors import ScenarioError
from simserve.scenario.load import load_scenario

GIB = 1 << 30
LONGEST = 131_072


def deployment(folder: Path, engine: str, pool: str = "") -> Deployment:
    path = folder / "scenario.yaml"
    path.write_text(
        "name: options\nmodel: llama-3.1-8b\n"
        f"engine: {{{engine}}}\n"
        "workload: {trace: traces/chat.csv.gz, limit: 5}\n"
        f"pools: [{{gpu: h100_sxm{pool}}}]\n"
    )
    return build(load_scenario(path))


def settings(folder: Path, engine: str, pool: str = "") -> dict[str, object]:
    return deployment(folder, engine, pool).pools[0].engine.options


@pytest.mark.parametrize(
    ("engine", "gib", "gpu", "tokens", "seqs"),
    [
        ("vllm-0.33", 180, "b200_sxm", 16384, 1024),
        ("vllm-0.19", 180, "b200_sxm", 8192, 1024),  # the tier of 160 GiB came later
        ("vllm-0.15", 180, "b200_sxm", 8192, 1024),
        ("vllm-0.33", 80, "h100_sxm", 8192, 1024),
        ("vllm-0.33", 80, "a100_sxm", 2048, 256),
        ("vllm-0.33", 24, "rtx_4090", 2048, 256),
    ],
)
def test_defaults_by_gpu(engine: str, gib: int, gpu: str, tokens: int, seqs: int) -> None:
    """`EngineArgs.get_batch_defaults`, for the API server."""
    found = engine_preset(engine).options(gib * GIB, gpu, {}, LONGEST)
    assert (found["max_num_batched_tokens"], found["max_num_seqs"]) == (tokens, seqs)


@pytest.mark.parametrize(
    ("given", "tokens", "seqs"),
    [
        ({"performance_mode": "throughput"}, 16384, 2048),
        ({"performance_mode": "throughput", "max_num_seqs": 7}, 16384, 7),
        ({"max_num_batched_tokens": 512}, 512, 512),  # no more sequences than tokens
        ({"enable_chunked_prefill": False}, LONGEST, 1024),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 2048}, 2048, 1024),
    ],
)
def test_defaults_that_follow_from_other_settings(given: dict[str, object], tokens: int, seqs: int) -> None:
    """`EngineArgs._set_default_max_num_seqs_and_batched_tokens_args`."""
    found = engine_preset("vllm-0.33").options(80 * GIB, "h100_sxm", given, LONGEST)
    assert (found["max_num_batched_tokens"], found["max_num_seqs"]) == (tokens, seqs)


def test_few_short_sequences_lower_the_budget() -> None:
    found = engine_preset("vllm-0.33").options(80 * GIB, "h100_sxm", {"max_num_seqs": 2}, 1000)
    assert found["max_num_batched_tokens"] == 2000


@pytest.mark.parametrize(
    ("engine", "pool", "message"),
    [
        (
            "preset: vllm-0.33, enable_chunked_prefill: false, max_num_batched_tokens: 2048",
            "",
            r"max_num_batched_tokens = 2,048 is less than max_model_len \(131,072\)",
        ),
        (
            "preset: vllm-0.33, enable_chunked_prefill: false, max_num_batched_tokens: 2048",
            ", max_model_len: 2049",
            r"is less than max_model_len \(2,049\)",
        ),
        (
            "preset: vllm-0.33, max_num_batched_tokens: 512, max_num_seqs: 513",
            "",
            r"max_num_seqs = 513, allowed: at most max_num_batched_tokens \(512\)",
        ),
        (
            "preset: vllm-0.33, max_num_seqs: 4, max_num_active_seqs: 5",
            "",
            r"max_num_active_seqs = 5, allowed: at most max_num_seqs \(4\)",
        ),
        (
            "preset: vllm-0.33, long_prefill_token_threshold: 2049",
            ", max_model_len: 2048",
            r"long_prefill_token_threshold = 2,049, allowed: at most max_model_len \(2,048\)",
        ),
        ("preset: vllm-0.33, max_num_partial_prefills: 2", "", "that vLLM 0.33 does not have"),
        ("preset: vllm-0.19, max_num_partial_prefills: 2", "", "Concurrent Partial Prefill is unsupported"),
        ("preset: vllm-0.19, max_num_queued_reqs: 2", "", "that vLLM 0.19 does not have"),
        (
            "preset: vllm-0.15, performance_mode: throughput",
            "",
            "engine.performance_mode = throughput is not an option of vLLM 0.15",
        ),
        ("preset: vllm-0.33, kv_offloading_size: 2", "", "kv_tiers"),
        ("preset: vllm-0.33, kv_cache_dtype: fp8", "", "the pool's kv_dtype"),
        ("preset: sglang-0.5.23, min_free_slots_delay: 2", "", "held back"),
        ("preset: sglang-0.5.23, page_size: 2", "", "is called block_size"),
    ],
)
def test_refused_with_the_line_of_the_setting(tmp_path: Path, engine: str, pool: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as error:
        deployment(tmp_path, engine, pool)
    assert "scenario.yaml:3" in str(error.value)


def test_a_prompt_fits_in_a_step_where_chunks_are_off(tmp_path: Path) -> None:
    own = settings(tmp_path, "preset: vllm-0.33, enable_chunked_prefill: false", ", max_model_len: 3000")
    assert own["max_num_batched_tokens"] == 8192
    exact = "preset: vllm-0.33, enable_chunked_prefill: false, max_num_batched_tokens: 2048"
    deployment(tmp_path, exact, ", max_model_len: 2048").simulate()


@pytest.mark.parametrize("option", sorted(NOT_IN_VLLM))
def test_options_of_vllm_are_refused_by_name(option: str) -> None:
    assert option not in VllmParams.model_fields
    for version in ("0.15", "0.19", "0.33"):
        reason = VllmParams.why_not(option, {"version": version})
        assert reason is not None
        assert f"vLLM {version}" in reason


def test_no_option_is_both_modelled_and_not() -> None:
    assert not SglangParams.model_fields.keys() & NOT_IN_SGLANG.keys()
    assert SglangParams.why_not("enable_hierarchical_cache", {})
    assert SglangParams.why_not("enable_hierarchical_cash", {}) is None


@pytest.mark.parametrize("preset", ["vllm-0.15", "vllm-0.19", "vllm-0.33", "sglang-0.5.23"])
@pytest.mark.parametrize(
    "option", ["enable_lora", "max_loras", "max_loras_per_batch", "lora_modules", "lora_paths"]
)
def test_adapters_are_refused_by_name(tmp_path: Path, preset: str, option: str) -> None:
    with pytest.raises(ScenarioError, match=rf"engine.{option}: .*adapters, which are not simulated"):
        deployment(tmp_path, f"preset: {preset}, {option}: 4")


def test_every_preset_names_its_source() -> None:
    assert all(preset.source for preset in PRESETS.values())


def documented() -> dict[str, str]:
    """Option -> default, as the tables of docs/engines.md say."""
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    return {row[1].strip().strip("`"): row[2].strip() for row in rows}


@pytest.mark.parametrize("params", [VllmParams, SglangParams])
def test_the_page_has_every_option_with_its_default(params: type[VllmParams] | type[SglangParams]) -> None:
    page = documented()
    by_preset = {
        "version",
        "max_num_batched_tokens",
        "max_num_seqs",
        "async_scheduling",
        "chunked_prefill_size",
    }
    for name, field in params.model_fields.items():
        assert name in page, f"docs/engines.md lacks {name}"
        if name not in by_preset:
            words = str(field.default).lower()
            assert page[name] in (words, words.removesuffix(".0"))


def sharing(folder: Path, options: str = "", pool: str = "") -> Deployment:
    """DeepSeek-V3 on eight B200, with attention data parallelism."""
    (folder / "long.csv").write_text("arrival_ms,prompt_tokens,output_tokens\n0,20000,4\n")
    path = folder / "sharing.yaml"
    path.write_text(
        f"name: sharing\nmodel: deepseek-v3\nengine: {{preset: sglang-0.5.23{options}}}\n"
        "workload: {trace: long.csv, format: plain}\n"
        f"pools: [{{gpu: b200_sxm, dp: 8, ep: 8, weights_dtype: fp8{pool}}}]\n"
    )
    return build(load_scenario(path))


def test_attention_ranks_of_sglang_share_what_the_server_is_told(tmp_path: Path) -> None:
    """`handle_data_parallelism`: chunk // dp, conservativeness x 0.3; `memory_hook`: see test_server.py."""
    pool = sharing(tmp_path).pools[0]
    own = pool.engine.options
    assert (own["chunked_prefill_size"], own["max_running_requests"]) == (2048, 2048)
    assert own["schedule_conservativeness"] == pytest.approx(0.3)
    assert pool.engine.gpu_memory_utilization == 0.742


def test_what_is_written_again_is_what_the_server_is_told(tmp_path: Path) -> None:
    """A resolved scenario must not be shared out twice."""
    given = ", max_running_requests: 400, chunked_prefill_size: 4096, schedule_conservativeness: 0.7"
    first = sharing(tmp_path, given).pools[0]
    written = first.engine.as_mapping()
    assert written["chunked_prefill_size"] == 4096
    for engine in (first.engine, sharing(tmp_path).pools[0].engine):
        settings = [f"{name}: {json.dumps(value)}" for name, value in engine.as_mapping().items()]
        options = "".join(f", {setting}" for setting in settings if not setting.startswith("preset"))
        again = sharing(tmp_path, options).pools[0].engine
        assert again.options == engine.options
        assert again.gpu_memory_utilization == engine.gpu_memory_utilization


def test_a_chunk_too_small_to_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ScenarioError,
        match=r"sharing.yaml:3.*chunked_prefill_size = 6 is too little for dp = 8 ranks to share; allowed: 8",
    ):
        sharing(tmp_path, ", chunked_prefill_size: 6")


def test_a_server_that_would_keep_all_memory_free_says_so(tmp_path: Path) -> None:
    """In MiB: 512 + 1.5 x 524,288 + 1,024 + 2 x 512 + 4.5 x 512 x 8 + 1,536 = 808,960, that is 848 GB."""
    with pytest.raises(
        ScenarioError, match=r"pools\[0\]: sglang would keep 848 GB free of .* set gpu_memory"
    ):
        sharing(tmp_path, ", chunked_prefill_size: 524288")
    given = sharing(tmp_path, ", chunked_prefill_size: 524288", ", gpu_memory_utilization: 0.85").pools[0]
    assert given.engine.options["chunked_prefill_size"] == 65_536

"""Child process of the DynoSim peer: runs under that peer's interpreter, so only it and the standard library.

The replay call also reads its trace. A second call that stops at once (`max_sim_time_ms`) measures that part,
which is taken off. The engine is the peer's default (vLLM-like, polynomial step times, 64-token blocks), with
the capture of planner details off.
"""

import json
import resource
import sys

from dynamo import _core  # pyright: ignore


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _replay(job: dict, **options):
    before_s = _cpu_s()
    result = _core.run_mocker_trace_replay(
        [job["trace"]],
        extra_engine_args={"engine": {"enable_prefix_caching": job["prefix_caching"]}},
        num_workers=job["workers"],
        replay_concurrency=job["concurrency"],
        router_mode="round_robin",
        trace_block_size=job["block_tokens"],
        capture_planner_details=False,
        **options,
    )
    return _cpu_s() - before_s, result.summary


def _main() -> None:
    job = json.load(sys.stdin)
    started_s = _cpu_s()
    reading_s, _ = _replay(job, max_sim_time_ms=0.001)
    total_s, summary = _replay(job)
    sample = {
        "cpu_s": total_s - reading_s,
        "apart_s": started_s + reading_s,
        "completed": summary["completed_requests"],
        "output_tokens": summary["total_output_tokens"],
        "tpot_ms": summary["mean_tpot_ms"],
    }
    print(json.dumps(sample))


_main()

"""A small serving engine that runs for real on a CPU: paged KV cache, continuous batching, chunked prefill.

Written for `benchmarks.closed_loop_cpu`; its kernels are those of `simserve.profiler.torch_kernels`, its
scheduler follows vLLM's rules (running requests first, then the queue in order, one token budget) without
knowing simserve's.
"""

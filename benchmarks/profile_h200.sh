#!/usr/bin/env bash
# The core operations of one H200 in ten minutes, what no public table has first: prompts on cached prefixes, mixed
# and unequal batches, experts by counts, MLA; then what the shipped tables have too, to compare with.
# Measurements go to FOLDER/h200_sxm and survive being killed: call it again to go on.
#
#   benchmarks/profile_h200.sh [FOLDER]           profiles/ by default
#   DEVICE=cpu benchmarks/profile_h200.sh         the same steps on this CPU in two minutes, to try the script
set -euo pipefail

out=${1:-profiles}
device=${DEVICE:-cuda}
simserve=${SIMSERVE:-simserve}
experts=""
if [ "$device" = cpu ]; then
  gpu=cpu dense=tiny sparse=tiny-mla-moe tp=1 unit=${UNIT:-15}
  export OMP_NUM_THREADS=1  # timed by its own CPU time, which other programs do not prolong
else
  gpu=h200_sxm dense=llama-3.1-70b sparse=deepseek-v3 tp=4,8 unit=${UNIT:-55}
  experts="--weights-dtype fp8_block"
fi

measure() {  # share of the time, models, operations, further options
  local seconds=$(($1 * unit)) models=$2 ops=$3
  shift 3
  local status=0
  "$simserve" profile run --gpu-name "$gpu" --device "$device" --budget "${seconds}s" --models "$models" \
    --ops "$ops" --out "$out" --resume "$@" || status=$?
  # 3: some shapes did not fit or are not supported, which the journal says; the others are measured.
  [ "$status" = 0 ] || [ "$status" = 3 ] || exit "$status"
}

[ "$device" = cpu ] || nvidia-smi --query-gpu=name,driver_version,clocks.max.sm --format=csv,noheader
measure 2 "$dense" attn_prefill,attn_mixed,attn_decode_uneven --tp "$tp"
measure 2 "$sparse" moe,moe_counts $experts
measure 2 "$sparse" mla_prefill,mla_decode,mla_bmm --tp "$tp"
measure 1 "$dense,$sparse" elementwise,launch,host_copy --tp "$tp"
measure 1 "$dense" attn_decode --tp "$tp"
measure 1 "$dense" gemm --tp "$tp"
"$simserve" profile check "$out" --gpu "$gpu" --models "$dense" --tp "${tp%%,*}" --html "$out/$gpu/check.html" --force

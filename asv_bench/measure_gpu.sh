#!/usr/bin/env bash
# The history of a machine with an NVIDIA GPU: the newest commit, then those that changed the engines' performance.
#
#   bash asv_bench/measure_gpu.sh MACHINE [COMMIT]
#
# What matters most comes first, and what an interrupted run has is kept. Some 15 s a commit.
set -eu
machine=$1 newest=${2:-HEAD} failed=0
cd "$(dirname "$0")/.."
small="SmallNetworks\.time_training\('(mlp|platforms|kernels|stride2)', "
run() { # commit, regular expressions
  local commit=$1 chosen=()
  shift
  for pattern in "$@"; do chosen+=(--bench "$pattern"); done
  python3 asv_bench/history.py run --machine "$machine" --attribute rounds=1 "${chosen[@]}" "$commit" || failed=1
}

run "$newest" "$small'cupy'\)" "Import\."
run e6164dc "$small'cupy'\)" # the cupy backend
run 6d8fa2e "$small'cupy'\)" # convolutions on tensor cores
run 2503ffb "$small'cupy'\)" # chains of rows
run 9e9cb1c "$small'cupy'\)" # strided gradients by phases, sums beside convolutions
run 3bf1933 "$small'cupy'\)" # neighbours stored together, times of tiles fitted again
run 3bd32b3 "$small'cupy'\)" # two scaled float16
run 2f449bf "$small'cupy'\)" # launches overlap
run 7d39d64 "$small'cupy'\)" # short operations join launches
run fef1bfb "$small'cupy'\)" # bytes on integer tensor cores
run 68e6285 "$small'cupy'\)" # a batch that a list has many times
run "$newest" "FirstStep\.track_first_step\('platforms', '(cupy|torch:cuda)'\)" "$small'torch:cuda'\)"
run "$newest" "Primitives\.time_call\('(conv2d|conv2d_input_gradient|conv2d_weight_gradient|max_pool2d|matmul)', '(cupy|torch:cuda)'\)"
run "$newest" "DeepNetworks\.time_training\('(resnet18|mobilenet_v2)', '(cupy|torch:cuda)'\)" \
  "FirstStep\.track_first_step\('resnet18', 'cupy'\)" "Memory\.peakmem_training\('(mlp|platforms|kernels)', '(cupy|torch:cuda)'\)"
run "$newest" "$small'numba_cuda'\)"
run 320e147 "$small'numba_cuda'\)" # the numba_cuda backend
run dafff44 "$small'numba_cuda'\)" # chains of rows in Python
exit "$failed" # benchmarks have failed, which are named above; what the others have is stored

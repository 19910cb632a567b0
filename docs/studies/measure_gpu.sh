#!/usr/bin/env bash
# Measures all studies on a machine with an NVIDIA GPU, for the pages in docs/studies/h200:
#
#   bash docs/studies/measure_gpu.sh h200 [STUDY ...]     results go to h200/results; finished measurements are kept
#   python docs/results.py                                writes the pages, once the results are in docs/studies/h200
#
# Sizes are smaller than the full form's where a candidate on the CPU, or kernels that are compiled for one more shape,
# would take most of the time. All candidates of a study are measured interleaved.
set -u
out=$1
shift
[ "$#" -gt 0 ] || set -- platforms mlp kernels convolution roofline
cpu=numpy,numba,torch.nn:cpu gpu=cupy,numba_cuda,torch:cuda,jax:gpu # with their peers: torch.nn:cuda, jax.lax:gpu

code=0
for study in "$@"; do
  case $study in
  platforms) backends=$cpu,$gpu sizes="epochs=10" ;;
  mlp) backends=$cpu,$gpu sizes="per_round=100 repeats=10" ;;
  kernels) backends=cupy,numba_cuda,torch.nn:cuda,jax.lax:gpu
    sizes="epochs=5 sweep_epochs=4 sweep_samples=6400" ;;
  convolution) backends=numpy,numba,$gpu # at one point; in sweeps cupy and PyTorch's arrays, in layers cupy and its modules
    sizes="kernels=1,3,5,7,11 channel_counts=16,64,256 images=8,16,32,64 batches=1,8,32,64,256 rounds=5 budget_s=3
      iterations=5 not_in_sweeps=numpy,numba,numba_cuda,jax not_in_layers=numpy,numba,numba_cuda,jax,torch" ;;
  roofline) backends=numba,$gpu # ceilings; cupy and PyTorch train
    sizes="batches=32,128,256 swept=resnet18 budget_s=12 samples=3840 tests=512 account_batch=8 repeats=5
      copies=8192,32768,131072,524288,2097152,8388608,33554432,134217728,536870912 left_out=numpy,numba,numba_cuda,jax" ;;
  *)
    echo "The studies are platforms, mlp, kernels, convolution, roofline. Received: $study." >&2
    exit 2
    ;;
  esac
  options=()
  for size in $sizes; do options+=(--set "$size"); done
  start=$SECONDS
  python3 -m minicnn study "$study" --backends "$backends" "${options[@]}" --measure-only --out "$out" || code=$?
  echo "$study: $((SECONDS - start)) s"
done
exit "$code"

#!/usr/bin/env bash
# Measures the studies on a machine with an NVIDIA GPU, for the pages in docs/studies/h200:
#
#   bash docs/studies/measure_gpu.sh h200                       all of it, into h200/results
#   bash docs/studies/measure_gpu.sh h200 mlp kernels:loaders-*,training-mnist     a study, and parts of another
#   python docs/results.py                                      writes the pages, once the results are in docs/studies/h200
#
# Finished measurements are kept, so it may be interrupted; AGAIN=1 takes them again. Sizes are smaller than the full form's
# where a candidate on the CPU, or kernels that are compiled for one more shape, would take most of the time. All candidates
# of a study are measured interleaved. With nvidia-ml-py (extra `bench`) the study `roofline` tells how busy the GPU is; the
# folder of Tiny-ImageNet, if there is one, is TINY_IMAGENET. To try it without a GPU: BACKENDS="numpy,numba"
# SIZES="samples=130 epochs=1" bash docs/studies/measure_gpu.sh /tmp/trial platforms.
set -uf
out=$1
shift
[ "$#" -gt 0 ] || set -- platforms mlp kernels convolution roofline
cpu=numpy,numba,torch.nn:cpu gpu=cupy,numba_cuda,torch:cuda,jax:gpu # with their peers: torch.nn:cuda, jax.lax:gpu

code=0
for chosen in "$@"; do
  study=${chosen%%:*} data=()
  case $study in
  platforms) backends=$cpu,torch.nn-loader:cpu,$gpu,numba_cuda+numba,cupy+numba sizes="epochs=10" ;;
  mlp) backends=$cpu,$gpu sizes="per_round=100 repeats=10" ;;
  kernels) backends=cupy,numba_cuda,torch.nn:cuda,jax.lax:gpu
    sizes="epochs=5 sweep_epochs=4 sweep_samples=6400" ;;
  convolution) # all at one point; in sweeps cupy, numba and PyTorch's arrays, in layers cupy and PyTorch's modules
    backends=numpy,numba,$gpu
    sizes="kernels=1,3,5,7,11 channel_counts=16,64,256 images=8,16,32,64,128 batches=1,32,64,128,256,512 rounds=5
      budget_s=3 network_batch=128 not_in_sweeps=numpy,numba_cuda,jax not_in_layers=numpy,numba,numba_cuda,jax,torch" ;;
  roofline) backends=numba,$gpu # ceilings; cupy and PyTorch train
    sizes="budget_s=12 samples=51200 tests=2048 account_batch=8 repeats=5
      copies=8192,32768,131072,524288,2097152,8388608,33554432,134217728,536870912 left_out=numpy,numba,numba_cuda,jax"
    [ -z "${TINY_IMAGENET:-}" ] || data=(--data-dir "$TINY_IMAGENET") ;;
  *)
    echo "The studies are platforms, mlp, kernels, convolution, roofline. Received: $study." >&2
    exit 2
    ;;
  esac
  options=(${AGAIN:+--again})
  for size in $sizes ${SIZES:-}; do options+=(--set "$size"); done
  [ "$study" = "$chosen" ] || for part in $(echo "${chosen#*:}" | tr , ' '); do options+=(--part "$part"); done
  start=$SECONDS
  python3 -m minicnn study "$study" --backends "${BACKENDS:-$backends}" "${options[@]}" "${data[@]}" --measure-only --out "$out" || code=$?
  echo "$chosen: $((SECONDS - start)) s"
done
exit "$code"

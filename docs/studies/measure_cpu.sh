#!/usr/bin/env bash
# Measures the studies in their full form on a machine without a GPU, for the pages in docs/studies:
#
#   bash docs/studies/measure_cpu.sh docs/studies                     all of it, into docs/studies/results: under 2 hours on 2 cores
#   bash docs/studies/measure_cpu.sh docs/studies platforms mlp:sweep-*,training-mnist      a study, and parts of another
#   python docs/results.py                                            writes the pages
#
# Finished measurements are kept, so it may be interrupted; AGAIN=1 takes them again. QUICK=1 takes the quick form, minutes
# a study: into a folder of its own, as a folder holds one form. The folder of Tiny-ImageNet, if there is one, is
# TINY_IMAGENET. Candidates that would take days are left out: of whole networks NumPy, and PyTorch's and JAX's arrays.
set -uf
out=$1
shift
[ "$#" -gt 0 ] || set -- platforms mlp kernels convolution roofline

code=0
for chosen in "$@"; do
  study=${chosen%%:*}
  options=(${QUICK:+--quick} ${AGAIN:+--again})
  if [ -z "${QUICK:-}" ]; then
    case $study in
    convolution) options+=(--set rounds=7 --set budget_s=8 --set not_in_sweeps=jax --set not_in_layers=torch,jax) ;;
    roofline) options+=(--set left_out=numpy,torch,jax) ;;
    esac
  fi
  [ "$study" != roofline ] || [ -z "${TINY_IMAGENET:-}" ] || options+=(--data-dir "$TINY_IMAGENET")
  [ "$study" = "$chosen" ] || for part in $(echo "${chosen#*:}" | tr , ' '); do options+=(--part "$part"); done
  start=$SECONDS
  python3 -m minicnn study "$study" "${options[@]}" --measure-only --out "$out" || code=$?
  echo "$chosen: $((SECONDS - start)) s"
done
exit "$code"

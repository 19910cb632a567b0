#!/usr/bin/env bash
# Measures all studies in their full form on a machine without a GPU, for the pages in docs/studies:
#
#   bash docs/studies/measure_cpu.sh docs/studies [STUDY ...]     results go to docs/studies/results; hours on two cores
#   python docs/results.py                                        writes the pages
#
# Finished measurements are kept, so it may be interrupted. QUICK=1 takes the quick form, some minutes a study. The folder
# of Tiny-ImageNet, if there is one, is TINY_IMAGENET.
set -u
out=$1
shift
[ "$#" -gt 0 ] || set -- platforms mlp kernels convolution roofline

code=0
for study in "$@"; do
  options=(${QUICK:+--quick})
  [ "$study" != roofline ] || [ -z "${TINY_IMAGENET:-}" ] || options+=(--data-dir "$TINY_IMAGENET")
  start=$SECONDS
  python3 -m minicnn study "$study" "${options[@]}" --measure-only --out "$out" || code=$?
  echo "$study: $((SECONDS - start)) s"
done
exit "$code"

#!/bin/sh
# What is to be measured of deep networks on a GPU, in calls of at most ten minutes each:
#
#     sh benchmarks/deep.sh steps FOLDER    # each kernel beside its roof, whole steps, the host's work, by precision; in 16
#                                           # bits with pipelined convolutions and without, one right after the other
#     sh benchmarks/deep.sh peers FOLDER    # beside PyTorch and JAX, losses compared first
#     sh benchmarks/deep.sh tiles FOLDER    # convolutions alone: today's tile beside pipelined ones
#     sh benchmarks/deep.sh recipe FOLDER   # CIFAR-10 by examples/cifar10_94.py
#
# Results are written as they come, so that nothing is lost of a call that is ended; a further call goes on where the last
# one ended. More arguments go to the Python script: --dry, sizes.
set -u
what=$1 out=$2
shift 2
here=$(dirname "$0")
mkdir -p "$out"
export PYTHONPATH="$here/../src:$here${PYTHONPATH:+:$PYTHONPATH}"
networks=${NETWORKS:-"resnet18 resnet50 mobilenet_v2 squeezenet1_1 vgg11"}
if [ "$what" = tiles ]; then
  "${PYTHON:-python}" "$here/pipelined_tiles.py" --out "$out/pipelined-tiles.json" "$@" 2>&1 | tee "$out/pipelined-tiles.txt"
  exit
fi
if [ "$what" = recipe ]; then
  "${PYTHON:-python}" "$here/../examples/cifar10_94.py" --backend cupy --precision mixed_bfloat16 --runs 5 "$@" 2>&1 |
    tee "$out/cifar10.txt"
  exit
fi
if [ "$what" = steps ]; then
  for precision in ${PRECISIONS:-mixed_bfloat16 mixed_float16 float32}; do
    ablated="--ablate pipelined"
    [ "$precision" = float32 ] && ablated=""
    for network in $networks; do
      to=$out/steps-$network-$precision
      if [ -s "$to.json" ]; then
        echo "$network in $precision is measured already"
        continue
      fi
      # shellcheck disable=SC2086  # two words, or none
      timeout 150 "${PYTHON:-python}" "$here/gpu_steps.py" "$network" --precision "$precision" $ablated \
        --json "$to.json" "$@" 2>&1 | tee "$to.txt" | grep -A 5 " on "
    done
  done
  exit
fi
for network in $networks; do
  if [ -s "$out/peers-$network.json" ]; then
    echo "$network is measured already"
  else
    "${PYTHON:-python}" "$here/gpu_peers.py" "$network" --rounds 5 --patience 150 --logs "$out/logs" \
      --json "$out/peers-$network.json" "$@" 2>&1 | tee "$out/peers-$network.txt"
  fi
done

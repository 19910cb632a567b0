#!/bin/sh
# What is to be measured of deep networks on a GPU, in two calls of at most ten minutes each:
#
#     sh benchmarks/deep.sh steps FOLDER    # each kernel beside its roof, whole steps, the host's work, by precision
#     sh benchmarks/deep.sh peers FOLDER    # beside PyTorch and JAX, losses compared first
#
# Results are written as they come, so that nothing is lost of a call that is ended; a further call of `peers` goes on
# where the last one ended. More arguments go to the Python script: --dry, sizes.
set -u
what=$1 out=$2
shift 2
here=$(dirname "$0")
mkdir -p "$out"
export PYTHONPATH="$here/../src:$here${PYTHONPATH:+:$PYTHONPATH}"
networks=${NETWORKS:-"resnet18 resnet50 mobilenet_v2 squeezenet1_1 vgg11"}
for network in $networks; do
  if [ "$what" = steps ]; then
    for precision in float32 mixed_bfloat16 mixed_float16; do
      ablated="--ablate pipelined"
      [ "$precision" = float32 ] && ablated=""
      # shellcheck disable=SC2086  # several words, or none
      timeout 150 "${PYTHON:-python}" "$here/gpu_steps.py" "$network" --precision "$precision" $ablated \
        --json "$out/steps-$network-$precision.json" "$@" 2>&1 | tee "$out/steps-$network-$precision.txt" | head -n 6
    done
  elif [ -s "$out/peers-$network.json" ]; then
    echo "$network is measured already"
  else
    "${PYTHON:-python}" "$here/gpu_peers.py" "$network" --rounds 5 --patience 150 --logs "$out/logs" \
      --json "$out/peers-$network.json" "$@" 2>&1 | tee "$out/peers-$network.txt"
  fi
done

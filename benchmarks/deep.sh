#!/bin/sh
# What is to be measured of deep networks on a GPU, in calls of at most ten minutes each:
#
#     sh benchmarks/deep.sh steps FOLDER    # each kernel beside its roof, whole steps, the host's work, by precision; in 16
#                                           # bits with pipelined convolutions and without, one right after the other
#     sh benchmarks/deep.sh peers FOLDER    # beside PyTorch and JAX, losses compared first
#     sh benchmarks/deep.sh tiles FOLDER    # convolutions alone: today's tile beside pipelined ones
#     sh benchmarks/deep.sh recipe FOLDER   # CIFAR-10 by examples/cifar10_94.py
#     sh benchmarks/deep.sh rest FOLDER     # in five minutes, the most important first: accuracy by precision, memory, first
#                                           # step on four cores, MNIST and CIFAR-10, whole steps, augmentation, libraries
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
measured() {  # NAME SECONDS COMMAND...: into FOLDER/NAME.txt, in at most so long, unless it is there already
  to=$out/$1.txt limit=$2 start=$(date +%s)
  shift 2
  if [ -s "$to" ]; then
    echo "$to is measured already"
    return
  fi
  echo "== $*"
  timeout "$limit" "$@" >"$to.part" 2>&1 && mv "$to.part" "$to" || echo "ended by an error, or after $limit s"
  for file in "$to" "$to.part"; do [ ! -s "$file" ] || tail -n 60 "$file"; done
  echo "-- $(($(date +%s) - start)) s"
}
if [ "$what" = rest ]; then
  python=${PYTHON:-python} examples=$here/../examples on="--backend ${BACKEND:-cupy}"
  export PYTHONUNBUFFERED=1
  four=$($python -c 'import os; print(*sorted(os.sched_getaffinity(0))[:4], sep=",")')  # cores
  # shellcheck disable=SC2086  # several words
  {
    measured precisions 150 $python "$here/precisions.py" resnet18 $on --json "$out/precisions.json"
    measured memory 60 $python "$here/gpu_memory.py" resnet50 --candidates "minicnn,torch eager" --json "$out/memory.json"
    measured first-step 90 taskset -c "$four" $python "$here/gpu_fit.py" --first resnet50 $on --precision mixed_bfloat16 \
      --json "$out/first-step.json"
    for precision in float32 mixed_bfloat16; do
      measured "mnist-$precision" 40 $python "$examples/mnist_99.py" $on --precision $precision --runs 20
    done
    measured cifar10 60 $python "$examples/cifar10_94.py" $on --precision mixed_bfloat16 --runs 5 --made 50000
    for network in resnet18 resnet50 mobilenet_v2 squeezenet1_1; do
      measured "whole-$network" 40 $python "$here/gpu_steps.py" $network --precision mixed_bfloat16 --whole \
        --json "$out/whole-$network.json"
    done
    measured augmentation 60 $python "$here/augmentation.py" $on --images 59904 --rounds 5
    measured libraries 90 $python "$here/library_shapes.py" --out "$out/libraries.json"
    measured memory-compiled 90 $python "$here/gpu_memory.py" resnet50 --candidates "torch compile" \
      --json "$out/memory-compiled.json"
  }
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
    "${PYTHON:-python}" "$here/gpu_peers.py" "$network" --rounds 5 --patience 150 \
      --json "$out/peers-$network.json" "$@" 2>&1 | tee "$out/peers-$network.txt"
  fi
done

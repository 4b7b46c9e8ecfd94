#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# From a fresh checkout to a first result in one command: installs, builds, makes a small corpus from
# the King James Bible, trains a small GPT-2 on the Old Testament and fine-tunes it on the New over
# two pipeline stages and an emulated slow link: uncompressed, directly quantised, and with AQ-SGD.
# Ends with a table, a plot and the HDF5 files of the runs. Skips the steps that are done already.
#   text        trains a classifier instead: the sections of Debian's archive from the descriptions of
#               its packages, uncompressed, directly quantised, and with AQ-SGD in two settings
#   images      trains a classifier of images instead: the clothes of Fashion-MNIST over four stages,
#               uncompressed, with TopK, and with AQ-SGD
#   --no-setup  install nothing
#   --fresh     make corpus and runs from scratch
set -euo pipefail
cd "$(dirname "$0")/.."

kind=language setup=1 fresh=0
for option in "$@"; do
  case $option in
    text | images) kind=$option ;;
    --no-setup) setup=0 ;;
    --fresh) fresh=1 ;;
    *) echo "usage: scripts/quickstart.sh [text | images] [--no-setup] [--fresh]" >&2; exit 2 ;;
  esac
done
suffix=${kind#language}
suffix=${suffix:+-$suffix}
corpus=data/quickstart$suffix runs=runs/quickstart$suffix
((!fresh)) || rm -rf "$corpus" "$runs"

say() { printf 'quickstart: %s\n' "$*"; }

install_packages() {
  local sets=(quickstart)
  [[ $kind != images ]] || sets+=(images)
  ((!setup)) || scripts/setup.sh "${sets[@]}"
}

build() {
  say "building build/release"
  # The program only: the tests need more packages. A build with tests stays one.
  local tests=()
  [[ -e build/release/CMakeCache.txt ]] || tests=(-DBUILD_TESTING=OFF)
  cmake --preset release "${tests[@]}" >/dev/null
  cmake --build --preset release --target deltapipe
}

make_corpus() {
  say "corpus in $corpus: the Old Testament to pretrain on, the New to fine-tune on"
  scripts/make_corpus.sh "$corpus"
}

program=build/release/bin/deltapipe

# pipeline COMMAND ARGUMENTS...: deltapipe on as many ranks as the deck has stages.
pipeline() {
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 \
    DELTAPIPE_PROGRESS=$progress mpirun --oversubscribe --bind-to none -n "$ranks" "$program" "$@"
}

# train_once NAME DECK OVERRIDES...: a finished run is not run again.
train_once() {
  local name=$1 deck=$2
  shift 2
  if scripts/run_table.py "$runs/$name/run.h5" --finished >/dev/null 2>&1; then
    say "$name: finished before, in $runs/$name"
    return
  fi
  say "$name: $deck $*"
  # Replaces an interrupted run.
  pipeline train "$deck" "$@" output.directory="$runs/$name" output.overwrite=true
}

pretrain() { train_once pretrain inputs/quickstart_pretrain.toml; }

fine_tune() {
  train_once none inputs/quickstart.toml \
    boundary.forward.codec=none boundary.backward.codec=none
  train_once directq inputs/quickstart.toml boundary.forward.codec=directq
  train_once aqsgd inputs/quickstart.toml
}

evaluate_and_sample() {
  say "the model tuned over the compressed boundary, evaluated from its saved files"
  pipeline evaluate inputs/quickstart.toml model.path="$runs/aqsgd/model"
  say "what it writes"
  pipeline generate inputs/quickstart.toml model.path="$runs/aqsgd/model"
}

compare() {
  local results=("$runs/none/run.h5" "$runs/directq/run.h5" "$runs/aqsgd/run.h5")
  say "forward 3 bits, backward 6 bits over an emulated 100 Mbit/s link"
  scripts/compare_runs.py "${results[@]}" --csv "$runs/summary.csv"
  scripts/plot_run.py -x epoch "${results[@]}" -o "$runs/comparison.png"
  say "table: $runs/summary.csv   plot: $runs/comparison.png   run files: ${results[*]}"
}

make_package_texts() {
  [[ -e $corpus/train.tsv && -e $corpus/validation.tsv ]] || scripts/make_package_texts.sh "$corpus"
}

# The four settings of the text classifier, none first.
classify_texts() {
  local deck=inputs/quickstart_text.toml
  train_once none "$deck" boundary.forward.codec=none boundary.backward.codec=none
  train_once directq36 "$deck" boundary.forward.codec=directq
  train_once aqsgd36 "$deck"
  train_once aqsgd24 "$deck" boundary.forward.bits=2 boundary.backward.bits=4
}

# The three settings of the classifier of images, none first.
classify_images() {
  local deck=inputs/quickstart_images.toml
  train_once none "$deck" boundary.forward.codec=none boundary.backward.codec=none
  train_once topk10 "$deck" boundary.forward.codec=topk boundary.forward.topk=0.1 \
    boundary.backward.codec=topk boundary.backward.topk=0.1
  train_once aqsgd36 "$deck"
}

predict() {
  say "predictions of the model tuned over the compressed boundary, from its saved files"
  pipeline predict "inputs/quickstart_$kind.toml" model.path="$runs/aqsgd36/model" \
    output.directory="$runs/predictions"
}

# compare_classifiers NAME...: of the runs
compare_classifiers() {
  local results=()
  for name in "$@"; do results+=("$runs/$name/run.h5"); done
  say "bits forward and backward, or percent, in the names"
  scripts/compare_runs.py "${results[@]}" --csv "$runs/summary.csv"
  scripts/plot_run.py -x epoch "${results[@]}" -o "$runs/comparison.png"
  say "table: $runs/summary.csv   plot: $runs/comparison.png   predictions: $runs/predictions"
}

progress=lines
[[ ! -t 1 ]] || progress=bar
export OPENBLAS_NUM_THREADS=1
ranks=2
install_packages
build
case $kind in
  language)
    make_corpus
    pretrain
    fine_tune
    evaluate_and_sample
    compare
    ;;
  text)
    make_package_texts
    classify_texts
    predict
    compare_classifiers none directq36 aqsgd36 aqsgd24
    ;;
  images)
    ranks=4
    classify_images
    predict
    compare_classifiers none topk10 aqsgd36
    ;;
esac

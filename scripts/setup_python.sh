#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Makes the Python environments of the tests that compare deltapipe with transformers:
#   build/venv          the oldest transformers that is promised, on Debian's python3-torch
#   build/venv-newest   the newest transformers, tokenizers and PyTorch of PyPI (600 MB to load)
# Where one cannot be made, for example without a network, its tests are skipped; exit status 77
# says so.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup_python: $*"; }

# Debian's own interpreter: python3-torch is built for no other.
python=/usr/bin/python3
install=(-m pip install --quiet --disable-pip-version-check --no-compile --retries 1 --timeout 30)

has_oldest() {
  "$1/bin/python" -c '
import google.protobuf, h5py, safetensors, sentencepiece, tokenizers, torch, transformers
assert transformers.__version__ == "4.46.3" and sentencepiece.__version__ == "0.1.99"'
}

make_oldest() {
  "$python" -m venv --system-site-packages "$1"
  "$1/bin/python" "${install[@]}" \
    transformers==4.46.3 "tokenizers>=0.20,<0.21" "safetensors>=0.4.1" regex \
    sentencepiece==0.1.99 "protobuf<3.21"  # tokenizers of DeBERTa
}

has_newest() {
  "$1/bin/python" -c '
import h5py, safetensors, tokenizers, torch, transformers
transformers.GPT2LMHeadModel'
}

# The version of CUDA that the installed PyTorch requires, if any.
cuda_of() {
  "$1/bin/python" -c '
import importlib.metadata, re
for line in importlib.metadata.requires("torch") or []:
    if found := re.match(r"cuda-toolkit\b.*?==\s*([0-9.]+)", line):
        print(found[1])'
}

# PyTorch without the CUDA libraries that only GPUs need.
make_newest() {
  local cuda
  "$python" -m venv "$1"
  "$1/bin/python" "${install[@]}" --no-deps torch
  "$1/bin/python" "${install[@]}" transformers h5py \
    filelock typing-extensions setuptools sympy networkx jinja2 fsspec
  cuda=$(cuda_of "$1")
  [[ -z $cuda ]] || "$1/bin/python" "${install[@]}" "cuda-toolkit[cudart,cupti]==$cuda"
  "$1/bin/python" scripts/stand_in_libraries.py
}

# make WHICH VENV
make() {
  if [[ -x $2/bin/python ]] && "has_$1" "$2" 2>/dev/null; then
    say "$2 is complete"
    return
  fi
  say "making $2 with the $1 transformers"
  mkdir -p build
  rm -rf "$2"
  # A shell of its own: inside a condition, bash ignores a failed command. pip warns of what
  # is left out on purpose.
  if ! bash -c "set -euo pipefail; $(declare -p python install); $(declare -f "make_$1" cuda_of)
      make_$1 $2" >build/setup_python.log 2>&1 || ! "has_$1" "$2"; then
    tail -n 3 build/setup_python.log
    rm -rf "$2"
    say "the $1 transformers could not be installed; comparisons with it are skipped"
    return 77
  fi
  say "$2 is complete"
}

if ! "$python" -c 'import h5py, torch, venv' 2>/dev/null; then
  say "python3-torch, python3-h5py or python3-venv is missing (scripts/setup.sh tests);" \
    "comparisons with transformers are skipped"
  exit 77
fi
status=0
make oldest build/venv || status=$?
make newest build/venv-newest || status=$?
exit $status

#!/usr/bin/env bash
# Makes build/venv: Debian's python3-torch with transformers beside it, for the tests that compare
# deltapipe with transformers. Without a network those tests are skipped; exit status 77 says so.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=(transformers==4.46.3 "tokenizers>=0.20,<0.21" "safetensors>=0.4.1" regex)
venv=build/venv
say() { echo "setup_python: $*"; }

has_all() {
  "$venv/bin/python" -c '
import h5py, safetensors, tokenizers, torch, transformers
assert transformers.__version__ == "4.46.3"' 2>/dev/null
}

if [[ -x $venv/bin/python ]] && has_all; then
  say "$venv is complete"
  exit 0
fi
# Debian's own interpreter: python3-torch is built for no other.
python=/usr/bin/python3
if ! "$python" -c 'import h5py, torch, venv' 2>/dev/null; then
  say "python3-torch, python3-h5py or python3-venv is missing (scripts/setup.sh);" \
    "comparisons with transformers are skipped"
  exit 77
fi
say "making $venv with ${wanted[*]}"
mkdir -p build
rm -rf "$venv"
"$python" -m venv --system-site-packages "$venv"
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 30 \
    "${wanted[@]}" || ! has_all; then
  rm -rf "$venv"
  say "transformers could not be installed; comparisons with it are skipped"
  exit 77
fi
say "$venv is complete"

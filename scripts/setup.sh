#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs what deltapipe is built, tested and used with, from Debian 12's own packages.
# Quick when all is there. --check only says what is missing (exit status 1 if anything is).
set -euo pipefail

packages=(
  build-essential               # compiler
  cmake                         # build system
  ninja-build                   # what it drives
  git                           # the revision that every output names
  libtrilinos-kokkos-dev        # Kokkos: kernels on any device
  libtrilinos-kokkos-kernels-dev  # Kokkos Kernels: matrix products
  libopenblas-pthread-dev       # the BLAS behind them
  libdnnl-dev                   # oneDNN: products in bf16 (and in fp32 where asked for)
  libopenmpi-dev                # messages between stages
  openmpi-bin                   # mpirun
  libhdf5-dev                   # outputs, checkpoints, caches, data sets
  hdf5-tools                    # h5ls, h5dump: to look at them
  libtomlplusplus-dev           # decks
  nlohmann-json3-dev            # config.json, tokenizer.json, safetensors' headers
  libcli11-dev                  # command line
  librandom123-dev              # counter-based random numbers
  libxxhash-dev                 # checksums
  catch2                        # unit and MPI tests
  clang-format                  # the style check
  clang-tidy-14                 # checks of changed files (8 MB to load)
  clang-14                      # fuzz targets
  libclang-rt-14-dev            # ... libFuzzer and the sanitizers behind them
  python3                       # analysis and style checks
  python3-venv                  # a place for transformers, see setup_python.sh
  python3-h5py                  # reads outputs
  python3-numpy                 # numbers
  python3-matplotlib            # plots of runs
  python3-torch                 # what golden values are compared with
  iproute2                      # tc and namespaces: real slow links on one machine
  slurmctld                     # a batch system of one machine for the tests of job scripts:
  slurmd                        # ... its daemons,
  slurm-client                  # ... sbatch and srun,
  munge                         # ... and what they trust each other by
  bible-kjv                     # the quick start's text: the program that prints it
  bible-kjv-text                # ... and the text itself
)

say() { echo "setup: $*"; }

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  say "this is not Debian; docs/systems.md says what to bring by modules or Spack" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [[ $status == *" ok installed" ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  say "all ${#packages[@]} packages are installed"
  exit 0
fi
if [[ ${1:-} == --check ]]; then
  say "missing: ${missing[*]}" >&2
  exit 1
fi

root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    say "needs root; have an administrator run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  root=(sudo)
fi
say "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
install=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends)
"${root[@]}" apt-get update
if ! "${install[@]}" "${missing[@]}"; then
  . /etc/os-release
  say "apt-get could not install these on ${PRETTY_NAME:-this system}; the list is Debian 12's." \
    "docs/systems.md says what to bring by modules or Spack" >&2
  exit 1
fi

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs the Debian 12 packages that deltapipe uses. Returns at once when nothing is missing.
#
#   scripts/setup.sh [--check | --list] [SET ...]
#
#   run         libraries and mpirun, for a program that was built elsewhere
#   build       compiler and libraries, to build the program
#   analysis    Python packages of the scripts, and the text of the quick start
#   quickstart  build and analysis (the default)
#   images      the data of the quick start of images
#   tests       quickstart, and all that scripts/test.sh needs
#
#   --check     install nothing; name the missing packages; exit status 1 if there are any
#   --list      print the packages of the sets, one per line
set -euo pipefail

# set, package, use
packages='
run       openmpi-bin                     mpirun
run       libopenmpi3                     messages between stages
run       libtrilinos-kokkos-13.2         Kokkos
run       libopenblas0-pthread            matrix products
run       libdnnl2                        oneDNN: matrix products in bf16
run       libhdf5-103-1                   outputs, checkpoints, caches, data sets
run       libtomlplusplus3                decks
run       libfmt9                         messages
run       libxxhash0                      checksums
run       zlib1g                          compressed files of images
run       libpng16-16                     PNG images
run       libjpeg62-turbo                 JPEG images
run       libsentencepiece0               tokenizers of DeBERTa
run       libutf8proc2                    the same
build     g++                             compiler
build     cmake                           build system
build     ninja-build                     the tool that it drives
build     git                             the revision that every output names
build     libtrilinos-kokkos-dev          Kokkos: kernels on any device
build     libtrilinos-kokkos-kernels-dev  Kokkos Kernels: matrix products
build     libopenblas-pthread-dev         the BLAS that these call
build     libdnnl-dev                     oneDNN: matrix products in bf16
build     libopenmpi-dev                  messages between stages
build     openmpi-bin                     mpirun
build     libhdf5-dev                     outputs, checkpoints, caches, data sets
build     libtomlplusplus-dev             decks
build     nlohmann-json3-dev              config.json, tokenizer.json, headers of safetensors
build     libcli11-dev                    command line
build     libfmt-dev                      messages
build     libxxhash-dev                   checksums
build     zlib1g-dev                      compressed files of images
build     libpng-dev                      PNG images
build     libjpeg-dev                     JPEG images
build     libsentencepiece-dev            tokenizers of DeBERTa
build     libutf8proc-dev                 the same
analysis  python3-h5py                    reads outputs
analysis  python3-matplotlib              plots of runs
analysis  python3-munkres                 spares matplotlib SciPy, Pythran and Boost, 250 MB
analysis  bible-kjv                       prints the text of the quick start
images    dataset-fashion-mnist           images of the quick start of images
tests     catch2                          unit and MPI tests
tests     librandom123-dev                the random numbers that ours are compared with
tests     clang-format                    style of the sources
tests     clang-tidy-14                   checks of changed files
tests     clang-14                        the build with sanitizers, and fuzz targets
tests     libclang-rt-14-dev              its sanitizers and libFuzzer
tests     python3-venv                    environments of scripts/setup_python.sh
tests     python3-pil                     golden values of images are compared with it
tests     python3-torch                   golden values are compared with it
tests     iproute2                        network namespaces with slow links
tests     slurmctld                       a batch system for the tests of job scripts
tests     slurmd                          its daemon on the nodes
tests     slurm-client                    sbatch and srun
tests     munge                           authentication between them
'
# The tests start daemons of their own. As services these stay off.
services=(munge slurmctld slurmd)

say() { echo "setup: $*"; }
usage() { sed -n '/^#   scripts/,/^#   --list/s/^# \{0,3\}//p' "$0"; }

mode=install chosen=()
for argument in "$@"; do
  case $argument in
    --check | --list) mode=${argument#--} ;;
    run | build | analysis | images) chosen+=("$argument") ;;
    quickstart) chosen+=(build analysis) ;;
    tests) chosen+=(build analysis tests) ;;
    -h | --help) usage; exit 0 ;;
    *) say "unknown set or option '$argument'"; usage; exit 2 ;;
  esac >&2
done
((${#chosen[@]})) || chosen=(build analysis)

wanted=()
while read -r set package _; do
  [[ -z $set || " ${chosen[*]} " != *" $set "* || " ${wanted[*]} " == *" $package "* ]] ||
    wanted+=("$package")
done <<<"$packages"
if [[ $mode == list ]]; then
  printf '%s\n' "${wanted[@]}"
  exit 0
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  say "this is not Debian; docs/systems.md says what to bring by modules or Spack" >&2
  exit 1
fi
missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [[ $status == *" ok installed" ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  say "all ${#wanted[@]} packages are installed"
  exit 0
fi
if [[ $mode == check ]]; then
  say "missing: ${missing[*]}" >&2
  exit 1
fi

root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    say "needs root; have an administrator run:" \
      "apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  root=(sudo)
fi

# Debian starts and enables a service when its package is installed, unless a policy says no.
new_services=()
for service in "${services[@]}"; do
  [[ " ${missing[*]} " != *" $service "* ]] || new_services+=("$service")
done
policy=/usr/sbin/policy-rc.d
if ((${#new_services[@]})) && [[ ! -e $policy ]]; then
  trap '"${root[@]}" rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${root[@]}" install -m 755 /dev/stdin "$policy"
fi

say "installing ${missing[*]}"
"${root[@]}" apt-get update
if ! "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y --no-install-recommends "${missing[@]}"; then
  . /etc/os-release
  say "apt-get could not install these on ${PRETTY_NAME:-this system}; the list is for Debian 12." \
    "docs/systems.md says what to bring by modules or Spack" >&2
  exit 1
fi
for service in "${new_services[@]}"; do
  "${root[@]}" env DPKG_MAINTSCRIPT_PACKAGE="$service" deb-systemd-helper disable "$service.service"
  "${root[@]}" update-rc.d "$service" disable
done

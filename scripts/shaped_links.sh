#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck disable=SC2034  # arrays that are reached through a local -n
# Trains over really shaped links instead of emulated ones: a network namespace a rank and veth
# pairs, shaped by tc: one between every two ranks, or with network.wire = "rank" one from each rank
# to a switch, shaped in both directions. [network.replicas] shapes the links between two replicas.
# Three or more share one link of each rank, which only wire = "rank" has. Requires root, iproute2
# and Open MPI, and leaves nothing behind.
#
#   scripts/shaped_links.sh [options] DECK [section.key=value ...]
#
#   -n N              stages (default: the deck's pipeline.stages)
#   --rate RATE       of all links, as tc writes it: 100mbit, 1gbit (default: the deck's [network])
#   --latency TIME    of all links, as tc writes it: 10ms (default: the deck's [network]); needs
#                     netem in the kernel, 0 does not
#   --program FILE    default: build/release/bin/deltapipe, or the installed one
#   --command NAME    train (default) or evaluate
#   -h, --help
#
# Emulation is off in the run; everything else of the deck holds. The rate counts Ethernet frames:
# messages get 96-97 % of it. Compare with the emulated run by scripts/compare_runs.py.
set -euo pipefail

fail() {
  printf 'shaped_links: %s\n' "$*" >&2
  exit 1
}

usage() {
  sed -n '/^# *scripts\/shaped_links/,/--help/s/^# \{0,3\}//p' "$0"
}

here=$(dirname "$0")
stages='' given_rate='' given_latency='' program='' command=train
while (($#)); do
  case $1 in
    -n | --rate | --latency | --program | --command)
      (($# > 1)) || fail "$1 needs a value; see --help"
      case $1 in
        -n) stages=$2 ;;
        --rate) given_rate=$2 ;;
        --latency) given_latency=$2 ;;
        --program) program=$2 ;;
        --command) command=$2 ;;
      esac
      shift 2
      ;;
    -h | --help) usage; exit 0 ;;
    -*) fail "unknown option $1; see --help" ;;
    *) break ;;
  esac
done
(($#)) || fail "which deck? See --help"
[[ $command == train || $command == evaluate ]] || fail "--command $command: train or evaluate"

((EUID == 0)) || fail "network namespaces need root: run it with sudo"
for tool in ip tc; do
  command -v "$tool" >/dev/null || fail "there is no $tool here: install the package iproute2"
done
command -v mpirun >/dev/null || fail "there is no mpirun here: install Open MPI (openmpi-bin)"
mpirun --version 2>/dev/null | grep -q 'Open MPI' || fail "mpirun is not Open MPI's"
if [[ -z $program ]]; then
  program=$here/../build/release/bin/deltapipe
  [[ -x $program ]] || program=$here/../../../bin/deltapipe
  [[ -x $program ]] || program=$(command -v deltapipe) ||
    fail "build/release/bin/deltapipe is not built; or give --program FILE"
fi
[[ -x $program ]] || fail "--program $program: not a program"
program=$(realpath "$program")

deck=$1
shift
overrides=("$@")
[[ -z $stages ]] || overrides+=("pipeline.stages=$stages")
effective=$("$program" check --deck "$deck" "${overrides[@]}") || exit

# value SECTION KEY: as the effective deck has it, a list as words without quotes and blanks.
value() {
  awk -v section="[$1]" -v key="$2" '
    /^\[/ { inside = $0 == section }
    inside && $1 == key {
      sub(/^[^=]*= */, "")
      gsub(/[][" ]/, "")
      gsub(/,/, " ")
      print
    }' <<<"$effective"
}

stages=$(value pipeline stages)
replicas=$(value pipeline replicas)
((stages * replicas >= 2)) ||
  fail "$deck has one stage and one replica: a link needs two; give -n or pipeline.replicas=2"
pipeline_ranks=$((stages / $(value pipeline stages_per_rank)))
ranks=$((pipeline_ranks * replicas))
is_ring=$((pipeline_ranks < stages))

# from_deck NAME KEY: array NAME = entries of KEY in [network.NAME], else in [network].
from_deck() {
  local -n entries=$1
  local text
  text=$(value "network.$1" "$2")
  [[ -n $text ]] || text=$(value network "$2")
  read -ra entries <<<"$text"
}

# entry NAME I: the I-th of array NAME; one entry is for all.
entry() {
  local -n list=$1
  local index=$2
  ((${#list[@]} > 1)) || index=0
  printf '%s' "${list[index]:-0}"
}

wire=$(value network wire)
wire=${wire:-boundary}
[[ $wire == rank ]] || ((replicas <= 2)) ||
  fail "$replicas replicas share one link of each rank: use network.wire=rank, or pipeline.replicas=2"

# link_entry KEY I J: rate or latency from rank I to rank J. Between ranks with several stages the
# last one comes before the first; else only tied token rows go there, like a gradient of the last
# boundary, and their gradients, like an activation. Ranks of other stages and replicas exchange
# no messages but those that begin and end a run.
link_entry() {
  local key=$1 forward=() backward=() wires=() replica=$(($2 / pipeline_ranks))
  local i=$(($2 % pipeline_ranks)) j=$(($3 % pipeline_ranks))
  if [[ $wire == rank ]]; then
    from_deck wires "$key"
    entry wires "$i"
    return
  fi
  if ((replica != $3 / pipeline_ranks)); then
    local between=0
    ((i != j)) || between=$(value network.replicas "$key")
    printf '%s' "${between:-0}"
    return
  fi
  from_deck forward "$key"
  from_deck backward "$key"
  if ((j == i + 1)); then
    entry forward "$i"
  elif ((j + 1 == i)); then
    entry backward "$j"
  elif ((is_ring && j > i)); then
    entry backward "$j"
  elif ((is_ring)); then
    entry forward "$i"
  elif ((j > i)); then
    entry forward 0
  else
    entry backward $((pipeline_ranks - 2))
  fi
}

# tc's spelling: "100 Mbit/s", "2.5e8" and "1e-3" are the deck's.
rate_of() {
  local text=${given_rate:-$(link_entry bandwidth "$1" "$2")}
  text=${text%/s}
  text=${text,,}
  [[ ! $text =~ ^[0-9.e+-]+$ ]] || text=$(awk -v x="$text" 'BEGIN { printf "%.0fbit", x }')
  printf '%s' "$text"
}
latency_of() {
  local text=${given_latency:-$(link_entry latency "$1" "$2")}
  [[ ! $text =~ ^[0-9.e+-]+$ ]] || text=$(awk -v x="$text" 'BEGIN { printf "%.0fus", x * 1e6 }')
  printf '%s' "$text"
}
is_zero() { [[ $1 =~ ^0+(\.0*)?[a-z]*$ ]]; }

bits_of() {
  awk -v text="$1" 'BEGIN {
    factor["bit"] = 1; factor["kbit"] = 1e3; factor["mbit"] = 1e6
    factor["gbit"] = 1e9; factor["tbit"] = 1e12
    unit = text
    sub(/^[0-9.]+/, "", unit)
    if (!(unit in factor) || text + 0 <= 0) exit 1
    printf "%.0f", text * factor[unit]
  }' || fail "rate $1: write it as 100mbit or 1gbit"
}

# The bucket passes at once after a rest, so it is small against a message: 32 KiB at 100
# Mbit/s and less below. Above, tbf loses part of the rate with less than this.
burst_of() {
  if (($1 < 100000000)); then
    echo $(($1 / 3052 > 3200 ? $1 / 3052 : 3200))
  elif (($1 < 300000000)); then
    echo 32kb
  elif (($1 < 1000000000)); then
    echo 64kb
  elif (($1 < 3000000000)); then
    echo 128kb
  else
    echo 1mb
  fi
}

# Queue before the bucket, beyond which packets are lost: 20 ms, and at low rates as much as TCP needs.
queue_of() { echo $(($1 / 400 > 250000 ? $1 / 400 : 250000)); }

name=deltapipe$$ # of namespaces: name-STAGE
work=$(mktemp -d)
mpirun_pid=''
made=()

# Ends the processes in the namespaces, which this script started, and removes them.
cleanup() {
  local status=$? namespace pids
  trap - EXIT
  trap '' INT TERM HUP
  if [[ -n $mpirun_pid ]] && kill -TERM "$mpirun_pid" 2>/dev/null; then
    for ((tries = 0; tries < 50; ++tries)); do
      kill -0 "$mpirun_pid" 2>/dev/null || break
      sleep 0.1
    done
  fi
  for namespace in "${made[@]}"; do
    mapfile -t pids < <(ip netns pids "$namespace" 2>/dev/null)
    ((!${#pids[@]})) || kill -KILL "${pids[@]}" 2>/dev/null || true
    ip netns delete "$namespace" || true
  done
  rm -rf "$work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

address() { echo "10.77.0.$(($1 + 1))"; }

((ranks <= 250)) || fail "$ranks ranks: at most 250"
for ((i = 0; i < ranks; ++i)); do
  ip netns add "$name-$i" || fail "cannot make network namespaces"
  made+=("$name-$i")
  ip -n "$name-$i" link set lo up
  # BBR, the default of some, overfills the short queue until a third of the packets are lost;
  # cubic may be closed to namespaces where it is not the default.
  # shellcheck disable=SC2016
  ip netns exec "$name-$i" sh -c 'for control in cubic reno; do
    (echo "$control" >/proc/sys/net/ipv4/tcp_congestion_control) 2>/dev/null && exit
  done' || fail "neither TCP congestion control cubic nor reno can be chosen in a namespace"
  [[ $wire != rank ]] || continue
  # Holds the stage's one address, by which MPI knows it whatever link a message takes. MPI leaves
  # addresses of loopback interfaces out.
  ip -n "$name-$i" link add stage type veth peer name stage-peer
  ip -n "$name-$i" address add "$(address "$i")/32" dev stage
  ip -n "$name-$i" link set stage-peer up
  ip -n "$name-$i" link set stage up
done

needs_netem=0

# shape NAMESPACE DEVICE RATE LATENCY: for what the device sends.
shape() {
  local namespace=$1 device=$2 rate=$3 latency=$4 bits
  if is_zero "$latency"; then
    ! is_zero "$rate" || return 0
    bits=$(bits_of "$rate")
    tc -n "$namespace" qdisc replace dev "$device" root \
      tbf rate "$rate" burst "$(burst_of "$bits")" limit "$(queue_of "$bits")" ||
      fail "tc took no rate $rate"
    return
  fi
  needs_netem=1
  modprobe -q sch_netem 2>/dev/null || true
  # netem shapes too. It queues what is under way and, as above, 20 ms more; at least 1000 packets.
  local options=(delay "$latency" limit 100000)
  is_zero "$rate" || options+=(rate "$rate")
  tc -n "$namespace" qdisc replace dev "$device" root netem "${options[@]}" 2>"$work/netem" ||
    fail "latency $latency cannot be shaped: $(tail -n 1 "$work/netem")
  It needs netem in the kernel (module sch_netem). Without it: --latency 0, or the emulated links
  of [network] latency."
}

if [[ $wire == rank ]]; then
  ip netns add "$name-switch" || fail "cannot make network namespaces"
  made+=("$name-switch")
  ip -n "$name-switch" link add switch type bridge || fail "there is no bridge in this kernel"
  ip -n "$name-switch" link set switch up
fi
for ((i = 0; i < ranks; ++i)); do
  if [[ $wire == rank ]]; then
    ip link add wire netns "$name-$i" type veth peer name "port$i" netns "$name-switch"
    ip -n "$name-switch" link set "port$i" master switch
    ip -n "$name-switch" link set "port$i" up
    ip -n "$name-$i" address add "$(address "$i")/24" dev wire
    ip -n "$name-$i" link set wire up
    # The latency is that of the way to the switch.
    shape "$name-$i" wire "$(rate_of "$i" "$i")" "$(latency_of "$i" "$i")"
    shape "$name-switch" "port$i" "$(rate_of "$i" "$i")" 0
    continue
  fi
  for ((j = i + 1; j < ranks; ++j)); do
    ip link add "to$j" netns "$name-$i" type veth peer name "to$i" netns "$name-$j"
    for ends in "$i $j" "$j $i"; do
      read -r a b <<<"$ends"
      ip -n "$name-$a" link set "to$b" up
      ip -n "$name-$a" route add "$(address "$b")" dev "to$b" src "$(address "$a")"
      shape "$name-$a" "to$b" "$(rate_of "$a" "$b")" "$(latency_of "$a" "$b")"
    done
  done
done

# Program that mpirun calls in place of ssh: agent HOST COMMAND. Every daemon has a session directory of its
# own: in a common one, which other jobs of the machine make and remove, a daemon may end at its start, without a
# word, and mpirun waits for it forever.
cat >"$work/agent" <<AGENT
#!/bin/sh
host=\$1
shift
mkdir -p "$work/\$host"
export TMPDIR="$work/\$host"
exec ip netns exec $name-\$((\${host##*.} - 1)) sh -c "\$*"
AGENT
chmod +x "$work/agent"

hosts=''
for ((i = 0; i < ranks; ++i)); do hosts+=,$(address "$i"):1; done
no_emulation=(network.wire=boundary network.bandwidth=0 network.latency=0 'network.forward.bandwidth=[]'
  'network.forward.latency=[]' 'network.backward.bandwidth=[]' 'network.backward.latency=[]'
  network.replicas.bandwidth=0 network.replicas.latency=0)
network=10.77.0.0/24

echo "shaped_links: $ranks ranks, $(rate_of 0 1) from rank 0 to 1 and $(rate_of 1 0) back," \
  "latency $(latency_of 0 1) $( ((needs_netem)) && echo 'by netem' || echo 'not shaped')"
# In the background, because bash runs traps only between commands in the foreground.
# Open MPI's daemons give up after two attempts to reach mpirun, which then waits for them forever.
# Over links that are just up, on a busy machine, they may need more.
# btl_tcp_flags 1: large messages as plain sends; else two-way traffic often takes turns.
TMPDIR=$work ip netns exec "$name-0" mpirun --allow-run-as-root -n "$ranks" --host "${hosts#,}" \
  --bind-to none --mca plm rsh --mca plm_rsh_agent "$work/agent" --mca plm_rsh_no_tree_spawn 1 \
  --mca ras ^slurm --mca oob_tcp_if_include $network \
  --mca oob_tcp_peer_retries 20 --mca oob_tcp_retry_delay 1 \
  --mca pml ob1 --mca btl tcp,self --mca btl_tcp_flags 1 --mca btl_tcp_if_include $network \
  "$program" "$command" "$deck" "${overrides[@]}" "${no_emulation[@]}" &
mpirun_pid=$!
wait "$mpirun_pid"

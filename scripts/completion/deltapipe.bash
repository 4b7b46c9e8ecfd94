# SPDX-License-Identifier: BSD-3-Clause
# Completion of deltapipe's commands, options and keys for bash: source this file, or copy it to
# /usr/share/bash-completion/completions/deltapipe. Keys come from the program itself.

_deltapipe_keys() {
    "$1" check --reference 2>/dev/null | awk '
        /^### / { gsub(/[^a-z._]/, "", $2); section = $2 }
        /^\| `/ { gsub(/`/, "", $2); print section "." $2 "=" }'
}

_deltapipe() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]}
    local commands="train evaluate predict generate check tokenize export"
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$commands --help --version" -- "$word")
    elif [[ $word == -* ]]; then
        local options="--help"
        case $command in
            check) options+=" --schedule --plan --bandwidth --json --deck --schema --reference" ;;
            generate) options+=" --prompt" ;;
            export) options+=" --step --to" ;;
        esac
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    elif [[ $word == *.* && $word != */* && $word != *.toml ]]; then
        : "${_deltapipe_known:=$(_deltapipe_keys "${COMP_WORDS[0]}")}"
        mapfile -t COMPREPLY < <(compgen -W "$_deltapipe_known" -- "$word")
        compopt -o nospace
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        compopt -o filenames
    fi
}

complete -F _deltapipe deltapipe

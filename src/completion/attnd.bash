# SPDX-License-Identifier: Apache-2.0
# Completes the command line of attnd in bash, by what attnd --help prints.
_attnd() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
    local line value='' flags='' commands='' words
    # bash makes a word of '=', in --option=value as in NAME=FILE.
    if [[ $cur == = ]]; then
        cur=
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi

    while IFS= read -r line; do
        case $line in
        '  attnd '*)
            line=${line#  attnd }
            line=${line%% *}
            commands+=" ${line//[][]/}" ;; # [serve] may be left out
        '  --'*) # --name, --name VALUE, or --name, -n; two blanks end it
            line=${line#  }
            line=${line%%  *}
            if [[ $line == "$prev "[!-]* ]]; then
                value=${line#* }
            elif [[ $line == *', -'* ]]; then
                flags+=" ${line/,/}"
            else
                flags+=" ${line%% *}"
            fi ;;
        esac
    done < <(command "${COMP_WORDS[0]}" --help 2>/dev/null)

    # Where bash gets no words, it completes the names of files, or those of folders, or nothing.
    case $value in
    '')
        words=$flags
        if [[ $cur != -* ]]; then
            ((COMP_CWORD == 1)) || return
            words=$commands
        fi ;;
    DIR) compopt -o dirnames +o default; return ;;
    *FILE*) return ;;
    *[[:upper:]]*) compopt +o default; return ;;
    *) words=${value//|/ } ;;
    esac
    compopt +o default
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -o default -F _attnd attnd

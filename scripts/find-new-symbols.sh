#!/usr/bin/env bash
# What does a driver export that nobody has looked at yet? See usage below.
set -euo pipefail
export LC_ALL=C

usage() {
    cat <<'END'
Usage: scripts/find-new-symbols.sh [LIBCUDA] [LIBNVML]
       scripts/find-new-symbols.sh --lacking LIBCUDA LIBNVML
       scripts/find-new-symbols.sh --check-lists

Compares what libcuda.so.1 and libnvidia-ml.so.1 export (by default those that ldconfig knows) with
three lists, and prints each cu* and nvml* symbol that is in none of them, one per line:
  docs/hooks.md        patched by Sluice
  docs/unhandled.txt   allocates device memory, gives the GPU work, or reports memory, utilisation or
                       processes, and is not patched: symbol, TAB, allocates|launches|reports, TAB, reason
  docs/irrelevant.txt  does none of these: symbol
The two text files are sorted by symbol (LC_ALL=C). --lacking prints the symbols of the
lists that an older driver lacks: examples/fake-gpu/node/drivers has them. --check-lists only checks the lists: their form,
and that no symbol is in two of them. It needs no library.

Exit status: 0 nothing new; 1 new symbols, or lists that are wrong; 2 wrong usage, or no such library.
END
}

wrong() {
    printf '%s\n' "$*" >&2
    exit 2
}

docs=$(dirname "$0")/../docs
hooks=$docs/hooks.md
unhandled=$docs/unhandled.txt
irrelevant=$docs/irrelevant.txt
for list in "$hooks" "$unhandled" "$irrelevant"; do
    [ -r "$list" ] || wrong "$list is missing."
done

# Every symbol of the three lists, after its list's name: "patched cuInit".
known() {
    awk -F'`' '/^\| `lib/ { print "patched", $4 }' "$hooks"
    awk '{ print "unhandled", $1 }' "$unhandled"
    awk '{ print "irrelevant", $1 }' "$irrelevant"
}

# Names each line that is not as it should be.
check_lists() {
    awk -F'\t' -v hooks="$hooks" -v unhandled="$unhandled" '
        function wrong(what) {
            file = FILENAME
            sub(/.*\//, "docs/", file)
            printf "%s:%d: %s\n", file, FNR, what
            status = 1
        }
        FNR == 1 { last = "" }
        FILENAME == hooks {
            if ($0 ~ /^\| `lib/) {
                split($0, part, "`")
                listed[part[4]] = "patched (docs/hooks.md); this line can go"
                patched++
            }
            next
        }
        $1 !~ /^(cu|nvml)[A-Za-z0-9_]+$/ { wrong("not a symbol of the driver: \"" $1 "\""); next }
        $1 in listed && $1 != last { wrong($1 " is " listed[$1]) }
        $1 == last { wrong($1 " is there twice") }
        $1 < last { wrong($1 " comes after " last "; the order is that of LC_ALL=C sort") }
        { last = $1 }
        FILENAME == unhandled {
            listed[$1] = "in docs/unhandled.txt too"
            if (NF != 3) wrong($1 ": symbol, TAB, kind, TAB, reason are expected")
            else if ($2 !~ /^(allocates|launches|reports)$/)
                wrong($1 ": \"" $2 "\" is none of allocates, launches, reports")
            else if ($3 !~ /[^ ]/) wrong($1 ": the reason is missing")
            others[1]++
            next
        }
        NF != 1 { wrong($1 ": only the symbol is expected") }
        { others[2]++ }
        END {
            if (!patched) {
                print "docs/hooks.md: no patched symbol found; has its form changed?"
                status = 1
            }
            if (!status)
                printf "%d symbols patched, %d unhandled, %d irrelevant, none in two lists.\n",
                    patched, others[1], others[2]
            exit status
        }' "$hooks" "$unhandled" "$irrelevant"
}

# Path of a library that the loader would find: SONAME.
installed() {
    local list path
    # Not in every user's PATH.
    list=$(PATH="$PATH:/sbin:/usr/sbin" ldconfig -p) || wrong "ldconfig cannot be asked for $1; give its path."
    path=$(awk -v name="$1" '
        $1 == name && /x86-64/ && !found++ { sub(/^.* => /, ""); print }' <<<"$list")
    [ -n "$path" ] || wrong "$1 is not installed (ldconfig -p does not list it); give its path."
    printf '%s\n' "$path"
}

# What a library exports under a prefix: PATH PREFIX.
exported() {
    local symbols
    [ -f "$1" ] || wrong "$1: no such library."
    symbols=$(nm -D --defined-only -- "$1") || wrong "$1: nm cannot read it as a library."
    # Behind "@" stands a symbol's version.
    symbols=$(awk -v prefix="$2" '
        { sub(/@.*/, "", $NF) }
        index($NF, prefix) == 1 && !seen[$NF]++ { print $NF }' <<<"$symbols")
    [ -n "$symbols" ] || wrong "$1 exports no $2* symbol: is it the right library?"
    printf '%s\n' "$symbols"
}

# Prints what is new in a library and says on stderr how many: PATH PREFIX. Fails if anything is.
compare() {
    local names
    names=$(exported "$1" "$2") || exit 2
    awk -v library="$1" '
        NR == FNR { list[$2] = $1; next }
        { count[$1 in list ? list[$1] : "new"]++ }
        !($1 in list) { print | "sort" }
        END {
            close("sort")
            printf "%s: %d patched, %d unhandled, %d irrelevant, %d new\n", library,
                count["patched"], count["unhandled"], count["irrelevant"], count["new"] > "/dev/stderr"
            exit count["new"] > 0
        }' <(known) - <<<"$names"
}

lacking=''
case "${1:-}" in
-h | --help)
    usage
    exit 0
    ;;
--check-lists)
    [ $# -eq 1 ] || wrong "--check-lists takes no argument. See --help."
    check_lists
    exit
    ;;
--lacking)
    [ $# -eq 3 ] || wrong "--lacking takes LIBCUDA and LIBNVML. See --help."
    lacking=yes
    shift
    ;;
-*) wrong "$1 is not an option; --check-lists, --lacking and --help are." ;;
esac
[ $# -le 2 ] || wrong "At most two libraries are expected, LIBCUDA and LIBNVML. See --help."
command -v nm >/dev/null ||
    wrong "nm is missing. Install it with: apt-get install binutils (as root)"

cuda=${1:-}
nvml=${2:-}
[ -n "$cuda" ] || cuda=$(installed libcuda.so.1)
[ -n "$nvml" ] || nvml=$(installed libnvidia-ml.so.1)
check_lists >&2
if [ -n "$lacking" ]; then
    has=$({ exported "$cuda" cu && exported "$nvml" nvml; }) || exit 2
    known | awk '{ print $2 }' | sort -u | comm -23 - <(sort -u <<<"$has")
    exit
fi
status=0
compare "$cuda" cu || status=$?
compare "$nvml" nvml || status=$?
exit "$status"

# Sourced by the scripts that run in namespaces of their own. They set $who, as they call themselves, and $log, a folder.
# shellcheck shell=bash disable=SC2154 # variables of those

die() {
    printf '%s: %s\n' "$who" "$*" >&2
    exit 1
}

# start NAME COMMAND...
start() {
    local name=$1
    shift
    "$@" >"$log/$name" 2>&1 </dev/null &
}

# until_so SECONDS WHAT COMMAND...
until_so() {
    local most=$1 end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || die "not within $most s: $what"
        sleep 0.2
    done
}

#!/usr/bin/env bash
# Every check there is. Ends with one line, "N passed, N failed": tests, and each other check as one.
# What cannot be checked here says SKIPPED and why, and counts as neither.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/prerequisites.sh
. scripts/prerequisites.sh
exec </dev/null

require_build_tools
target="${CARGO_TARGET_DIR:-target}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0
failed=0
failures=()

bold='' green='' red='' yellow='' plain=''
if [ -t 1 ]; then
    bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' yellow=$'\e[33m' plain=$'\e[0m'
fi

# run NAME COMMAND...: runs it, keeps its output in $log, tells how it went and how long it took.
run() {
    local name=$1 start=$SECONDS status=0 follower
    shift
    printf '%s== %s%s\n' "$bold" "$name" "$plain"
    # Through a file: a process that a failed test leaves behind would keep a pipe open for ever.
    : >"$log"
    tail -n +1 -f --pid=$$ -s 0.2 "$log" &
    follower=$!
    "$@" >>"$log" 2>&1 || status=$?
    sleep 0.5 # until the last lines are shown
    kill "$follower"
    wait "$follower" 2>/dev/null || true
    if [ "$status" -eq 0 ]; then
        printf '%sok%s      %s (%d s)\n' "$green" "$plain" "$name" "$((SECONDS - start))"
    else
        printf '%sFAILED%s  %s (%d s)\n' "$red" "$plain" "$name" "$((SECONDS - start))"
        failures+=("$name")
    fi
    return "$status"
}

# A check counts as one.
check() {
    if run "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

# A test run counts as its tests; one that fails without a failed test (it did not compile) as one.
tests() {
    local status=0 now_passed now_failed
    run "$@" || status=$?
    now_passed=$(sum passed)
    now_failed=$(sum failed)
    if [ "$status" -ne 0 ] && [ "$now_failed" -eq 0 ]; then now_failed=1; fi
    passed=$((passed + now_passed))
    failed=$((failed + now_failed))
}

# Adds up "test result: ok. 3 passed; 0 failed; ..." over the lines of $log.
sum() {
    awk -v word="$1" '/^test result:/ {
        for (i = 2; i <= NF; i++) if ($i ~ "^" word) total += $(i - 1)
    } END { print total + 0 }' "$log"
}

skip() {
    printf '%sSKIPPED%s %s: %s\n' "$yellow" "$plain" "$1" "$2"
}

have_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] ||
        compgen -G '/usr/lib/llvm-*/lib/libclang.so*' >/dev/null ||
        compgen -G '/usr/lib/llvm-*/lib/libclang-[0-9]*.so*' >/dev/null ||
        compgen -G '/usr/lib*/libclang.so*' >/dev/null ||
        compgen -G '/usr/lib/*-linux-gnu/libclang.so*' >/dev/null
}

# apt_get PACKAGE...: installs them where that is possible without a question.
apt_get() {
    command -v apt-get >/dev/null || return 1
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    printf '%s== installing %s%s\n' "$bold" "$*" "$plain"
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq)
    if [ -z "${apt_updated:-}" ]; then
        "${apt[@]}" update || true
        apt_updated=1
    fi
    "${apt[@]}" install -y --no-install-recommends "$@" >/dev/null
}

# The type check of the second engine reads C headers with libclang.
get_libclang() {
    have_libclang || apt_get libclang-14-dev || apt_get libclang-dev || return 1
    have_libclang
}

get_shellcheck() {
    command -v shellcheck >/dev/null || apt_get shellcheck
}

# The limiter must not stand in for any function by name: that would catch lookups that are not its
# own. It patches the driver instead.
exports_nothing_of_the_driver() {
    local exported
    exported=$(nm -D --defined-only "$target/debug/libcuda_limiter.so" | awk '{ print $NF }') ||
        return 1
    if printf '%s\n' "$exported" | grep -E '^(cu[A-Z]|nvml|_?dl)'; then
        echo 'libcuda_limiter.so exports the names above; they belong to the driver or the loader.'
        return 1
    fi
    echo "libcuda_limiter.so exports $(printf '%s' "$exported" | grep -c .) names, none of them cu*, nvml* or dl*."
}

check 'format' cargo fmt --all --check
check 'clippy' cargo clippy --locked --workspace --all-targets -- -D warnings
# Before the tests: they run the libraries and programs that other packages build.
check 'build' cargo build --locked --workspace
tests 'tests' cargo test --locked --workspace --all-targets --no-fail-fast
tests 'documentation tests' cargo test --locked --workspace --doc --no-fail-fast
check 'exported names' exports_nothing_of_the_driver
check 'symbol lists' scripts/find-new-symbols.sh --check-lists
if get_libclang; then
    check 'frida engine: hook' env DOCS_RS=1 \
        cargo clippy --locked -p hook --features frida -- -D warnings
    check 'frida engine: limiter' env DOCS_RS=1 \
        cargo clippy --locked -p cuda-limiter --features frida -- -D warnings
else
    skip 'frida engine' 'libclang is missing; install it with: apt-get install libclang-dev (as root)'
fi
if get_shellcheck; then
    check 'shell scripts' shellcheck --external-sources scripts/*.sh .ci/run
else
    skip 'shell scripts' 'shellcheck is missing; install it with: apt-get install shellcheck (as root)'
fi

for name in "${failures[@]}"; do
    printf 'FAILED: %s\n' "$name" >&2
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]

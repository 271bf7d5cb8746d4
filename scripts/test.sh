#!/usr/bin/env bash
# Checks the project. See usage below.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/prerequisites.sh
. scripts/prerequisites.sh
exec </dev/null

usage() {
    cat <<'END'
Usage: scripts/test.sh [--quick | --all | --tier TIER...] [--within SECONDS] [NAME...]

  --quick   what to run after each change: lints, and the tests that measure no time
  (nothing) every check and every test
  --all     the same with more random cases, and the suites that take long
  --tier TIER  only this tier of --all; may be given several times: lints, tests, timed, other, threads, gum, reach,
            packages, cluster, engines
  --within SECONDS  begins no further check after that time; each that is left out is skipped, by name
  NAME      only the tests whose names contain one of these words, however long they take:
                scripts/test.sh timed::compute one_of_two_devices

The checks are in tiers. Each has a budget in seconds for a machine with two cores and a warm build;
a tier that takes longer is marked, and fails nothing. The last line is "N passed, N failed": tests,
and each other check as one. ", N skipped" follows for checks and tests that need what this machine lacks.
END
}

mode=default
names=()
tiers=()
within=''
while [ $# -gt 0 ]; do
    argument=$1
    shift
    case $argument in
    --quick) mode=quick ;;
    --all) mode=all ;;
    --tier)
        case ${1:-} in
        lints | tests | timed | other | threads | gum | reach | packages | cluster | engines) tiers+=("$1") ;;
        *)
            usage >&2
            exit 2
            ;;
        esac
        mode=all
        shift
        ;;
    --within)
        within=${1:-}
        [[ $within =~ ^[1-9][0-9]*$ ]] || {
            usage >&2
            exit 2
        }
        shift
        ;;
    -h | --help)
        usage
        exit
        ;;
    -*)
        usage >&2
        exit 2
        ;;
    *) names+=("$argument") ;;
    esac
done

require_build_tools
target="${CARGO_TARGET_DIR:-target}"
# Builds of the limiter over the second engine: apart, since a library has one name whatever its engine.
engine_builds=$(realpath -m "$target/engine-builds")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0
failed=0
skipped=0
failures=()
flaky=()
times=()

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

# too_late NAME: says that it is left out, where the time is over.
too_late() {
    [ -n "$within" ] && [ "$SECONDS" -ge "$within" ] || return 1
    skip "$1" "the $within s that this run was given are over"
}

# A check counts as one.
check() {
    too_late "$1" && return
    check_at_any_time "$@"
}

check_at_any_time() {
    if run "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

# A test run counts as its tests; one that fails without a failed test (it did not compile), or in which
# no test ran, counts as one that failed.
tests() {
    too_late "$1" && return
    tests_at_any_time "$@"
}

tests_at_any_time() {
    local status=0 now_passed now_failed name
    rm -f "$unable"
    run "$@" || status=$?
    now_passed=$(sum passed)
    now_failed=$(($(sum failed) + $(sum 'timed out') + $(sum 'exec failed')))
    if [ "$now_failed" -eq 0 ] && { [ "$status" -ne 0 ] || [ "$now_passed" -eq 0 ]; }; then now_failed=1; fi
    passed=$((passed + now_passed))
    failed=$((failed + now_failed))
    unable_to_run
    while read -r name; do
        flaky+=("$name")
    done < <(after_summary | awk '$1 == "FLAKY" { print $NF }')
}

# Tests that could not run here have passed for the runner. They say so in a file.
unable="${CARGO_TARGET_DIR:-target}/tmp/skipped"
unable_to_run() {
    local line
    [ -s "$unable" ] || return 0
    while read -r line; do
        skip "${line%%: *}" "${line#*: }"
        passed=$((passed - 1))
    done < <(awk -F': ' '!seen[$1]++' "$unable")
}

# What the closing list of nextest says.
after_summary() {
    awk 'after { print } /^ *Summary \[/ { after = 1 }' "$log"
}

# The tests that failed, each behind its program.
failing() {
    after_summary | awk '/\[ *[0-9.]+s\] *\(/ && $1 != "FLAKY" { print $(NF - 1), $NF }' | sort -u
}

# The same as `tests`, by nextest. What failed runs once more, one at a time: on a slow or shared machine tests
# disturb each other. A fault does not go away, and more failures than a few are no accident.
most_alone=10
tests_and_again() {
    local name=$1 failed_before=$failed expression='' program test
    local -a first=()
    too_late "$name" && return
    tests_at_any_time "$@"
    mapfile -t first < <(failing)
    if [ "${#first[@]}" -eq 0 ] || [ "${#first[@]}" -gt "$most_alone" ] ||
        [ "$((failed - failed_before))" -ne "${#first[@]}" ]; then
        return
    fi
    # They stay failed then.
    too_late "$name: those that failed, one at a time" && return
    failed=$failed_before
    unset 'failures[-1]'
    for test in "${first[@]}"; do
        read -r program test <<<"$test"
        expression+="${expression:+ + }(binary_id(=$program) & test(=$test))"
    done
    tests_at_any_time "$name: those that failed, one at a time" nextest -E "$expression" --test-threads 1
    while read -r test; do
        flaky+=("${test#* }")
    done < <(printf '%s\n' "${first[@]}" | grep -vxFf <(failing))
}

# sum WORD: adds up "N WORD" over the closing lines of test runs in $log.
sum() {
    awk -v word="$1" '/^test result:/ || /^ *Summary \[/ {
        rest = $0
        while (match(rest, /[0-9]+ [a-z]+( out| failed)?/)) {
            found = substr(rest, RSTART, RLENGTH)
            rest = substr(rest, RSTART + RLENGTH)
            number = found + 0
            sub(/^[0-9]+ /, "", found)
            if (found == word) total += number
        }
    } END { print total + 0 }' "$log"
}

skip() {
    printf '%sSKIPPED%s %s: %s\n' "$yellow" "$plain" "$1" "$2"
    skipped=$((skipped + 1))
}

# wanted TIER: whether it is to run.
wanted() {
    [ "${#tiers[@]}" -eq 0 ] || [[ " ${tiers[*]} " == *" $1 "* ]]
}

# tier NAME SECONDS FUNCTION: runs the checks of a tier and notes its time beside its budget.
tier() {
    local start=$SECONDS
    wanted "$1" || return 0
    too_late "the tier '$1'" && return
    "$3"
    times+=("$1 $((SECONDS - start)) $2")
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

# The checker of Prometheus' formats. Its package is unpacked, not installed: that would start a server.
get_promtool() {
    command -v promtool >/dev/null && return
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    local tools="$target/tools"
    mkdir -p "$tools/bin" "$tools/unpacked"
    printf '%s== getting promtool%s\n' "$bold" "$plain"
    (
        cd "$tools/unpacked"
        apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }
        dpkg-deb -x prometheus_*.deb .
    ) >/dev/null 2>&1 && mv "$tools/unpacked/usr/bin/promtool" "$tools/bin/"
    rm -rf "$tools/unpacked"
    command -v promtool >/dev/null
}

# The container runtime itself. Its package is unpacked, not installed.
get_runc() {
    local tools="$target/tools/runc"
    [ ! -x /usr/sbin/runc ] && [ ! -x /usr/bin/runc ] && [ ! -x "$tools/usr/sbin/runc" ] || return 0
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    printf '%s== getting runc%s\n' "$bold" "$plain"
    mkdir -p "$tools"
    (
        cd "$tools"
        apt-get -qq download runc || { apt-get -qq update && apt-get -qq download runc; } || exit 1
        dpkg-deb -x runc_*.deb .
    ) >/dev/null 2>&1
}

# Allocators that people preload. Their packages are unpacked, not installed.
get_allocators() {
    local tools="$target/tools/allocators"
    compgen -G '/usr/lib/x86_64-linux-gnu/libjemalloc.so.2' >/dev/null &&
        compgen -G '/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4' >/dev/null && return
    [ -e "$tools/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4" ] && return
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    local packages=(libjemalloc2 libtcmalloc-minimal4)
    printf '%s== getting %s%s\n' "$bold" "${packages[*]}" "$plain"
    mkdir -p "$tools"
    (
        cd "$tools"
        apt-get -qq download "${packages[@]}" || { apt-get -qq update && apt-get -qq download "${packages[@]}"; } || exit 1
        for package in "${packages[@]}"; do dpkg-deb -x "$package"_*.deb . || exit 1; done
    ) >/dev/null 2>&1
}

# Programs that people watch GPUs with, in a folder of their own. pyte reads what nvtop writes to its terminal.
monitors="$target/tools/monitors"
get_monitors() {
    command -v python3 >/dev/null || return 1
    [ -x "$monitors/bin/nvitop" ] && [ -x "$monitors/bin/gpustat" ] && [ -x "$monitors/bin/py3smi" ] && return
    printf '%s== getting programs that watch GPUs%s\n' "$bold" "$plain"
    python3 -m venv "$monitors" >/dev/null 2>&1 &&
        "$monitors/bin/pip" -q install 'nvitop==1.7.2' 'gpustat==1.1.1' 'py3nvml==0.2.7' 'pyte==0.8.2' >/dev/null 2>&1
}

# debian_source FOLDER deb|deb-src SUITE COMPONENT COMMAND...: apt-get with a list of that alone, which it keeps in the folder.
debian_source() {
    local folder=$1 kind=$2 suite=$3 component=$4 mirror
    shift 4
    mkdir -p "$folder"/{lists/partial,parts}
    # shellcheck disable=SC2016 # apt-get expands it
    mirror=$(apt-get indextargets --format '$(SITE)' 2>/dev/null | grep -m 1 '/debian/\?$') || return 1
    printf '%s [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s %s\n' \
        "$kind" "$mirror" "$suite" "$component" >"$folder/parts/source.list"
    apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$folder/parts" \
        -o Dir::State::Lists="$folder/lists" "$@"
}

# Debian keeps nvtop apart from its main packages, in contrib. Unpacked, not installed.
get_nvtop() {
    command -v nvtop >/dev/null && return
    [ -x "$monitors/bin/nvtop" ] && return
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    local from suite
    # From the root, since a step changes to it.
    from=$(realpath -m "$target/tools/contrib")
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    mkdir -p "$from/unpacked" "$monitors/bin"
    printf '%s== getting nvtop%s\n' "$bold" "$plain"
    (
        cd "$from"
        apt-get -qq download nvtop || {
            debian_source "$from" deb "$suite" contrib update || true
            debian_source "$from" deb "$suite" contrib download nvtop
        }
        dpkg-deb -x nvtop_*.deb unpacked
    ) >/dev/null 2>&1
    # Its own libraries may be missing here.
    if "$from/unpacked/usr/bin/nvtop" --version >/dev/null 2>&1; then
        mv "$from/unpacked/usr/bin/nvtop" "$monitors/bin/"
    fi
    rm -rf "$from"
}

# Each shows the limit as the device's memory, and what a program in the session uses of it.
monitor() {
    local node status=0
    node=$(mktemp -d)
    # shellcheck disable=SC2016 # the shell in the session expands it
    PATH="$monitors/bin:$PATH" SLUICE_FAKE_NODE="$node/node" \
        "$target/debug/sluice" run --fake-gpu --device 0 --mem 1GiB --daemon none -- sh -c '
            "$0" mem --api alloc --chunk 256MiB --cap 256MiB --hold 60 >/dev/null &
            until nvidia-smi --query-compute-apps=used_memory --format=csv | grep -q "^768"; do sleep 0.1; done
            "$@"
            kill $!' "$target/debug/tenant" "$@" >"$node/shown" 2>&1 || status=1
    cat "$node/shown"
    grep -Eq '768(\.0)?(MiB)? */ *1024|805306368|0\.750Gi/1\.000Gi' "$node/shown" || {
        echo "$1 does not show 768 of 1024 MiB"
        status=1
    }
    rm -rf "$node"
    return "$status"
}

# A devkit without its functions: the linker has to refuse it, or every program that the library is preloaded into would end.
incomplete_devkit() {
    local folder status=0
    folder=$(mktemp -d)
    ar rc "$folder/libfrida-gum.a"
    if DOCS_RS=1 FRIDA_GUM_DEVKIT="$folder" CARGO_TARGET_DIR="$engine_builds" \
        cargo build --locked -p cuda-limiter --features frida >"$folder/said" 2>&1; then
        echo 'libcuda_limiter.so was linked with a devkit that has no functions'
        status=1
    elif ! grep -q 'undefined .*gum_' "$folder/said"; then
        tail -20 "$folder/said"
        status=1
    fi
    rm -rf "$folder"
    return "$status"
}

# The devkit as the build fetches it, from a server of our own: a header, and a library without its functions. The build has to
# find the one and to be refused by the linker for the other.
fetched_devkit() {
    local folder status=0 version crate name server port=''
    version=$(awk '/^name = "frida-gum-sys"$/ { getline; gsub(/[^0-9.]/, ""); print }' Cargo.lock)
    crate=$(compgen -G "${CARGO_HOME:-$HOME/.cargo}/registry/src/*/frida-gum-sys-$version" | head -1) || return 1
    version=$(tr -d '[:space:]' <"$crate/FRIDA_VERSION")
    name=frida-gum-devkit-$version-linux-x86_64
    folder=$(mktemp -d)
    mkdir -p "$folder/served/$version" "$folder/devkit"
    cp "$crate/include/frida-gumjs.h" "$folder/devkit/frida-gum.h"
    ar rc "$folder/devkit/libfrida-gum.a"
    tar -cJf "$folder/served/$version/$name.tar.xz" -C "$folder/devkit" frida-gum.h libfrida-gum.a
    python3 -u -m http.server --bind 127.0.0.1 --directory "$folder/served" 0 >"$folder/server" 2>&1 &
    server=$!
    for _ in {1..50}; do
        port=$(grep -om 1 'port [0-9]*' "$folder/server") && break
        sleep 0.1
    done
    # Fetched each time.
    CARGO_TARGET_DIR="$engine_builds" cargo clean -q -p frida-gum-sys 2>/dev/null || true
    if FRIDA_DOWNLOAD_CDN="http://127.0.0.1:${port#port }" CARGO_TARGET_DIR="$engine_builds" \
        cargo build --locked -p cuda-limiter --features frida-download >"$folder/said" 2>&1; then
        echo 'libcuda_limiter.so was linked with a devkit that has no functions'
        status=1
    fi
    kill "$server"
    if ! grep -q "GET /$version/$name.tar.xz HTTP/1.1\" 200" "$folder/server" || ! grep -q 'undefined .*gum_' "$folder/said"; then
        tail -20 "$folder/said" "$folder/server"
        status=1
    fi
    rm -rf "$folder"
    return "$status"
}

# The second engine itself: the suite of every engine, and the limiter's tests over it.
frida_tests() {
    local header="-I$FRIDA_GUM_DEVKIT"
    tests 'frida engine: suite of every engine' env BINDGEN_EXTRA_CLANG_ARGS="$header" CARGO_TARGET_DIR="$engine_builds" \
        cargo nextest run --color never --locked --no-fail-fast -p hook --features frida
    check 'frida engine: build' env BINDGEN_EXTRA_CLANG_ARGS="$header" CARGO_TARGET_DIR="$engine_builds" \
        cargo build --locked --workspace --features cuda-limiter/frida
    tests 'frida engine: limiter' env BINDGEN_EXTRA_CLANG_ARGS="$header" CARGO_TARGET_DIR="$engine_builds" \
        cargo nextest run --color never --locked --no-fail-fast -p cuda-limiter --features cuda-limiter/frida \
        -E 'not test(/(^|::)timed::/)'
    tests 'frida engine: limiter, tests that measure time' env BINDGEN_EXTRA_CLANG_ARGS="$header" \
        CARGO_TARGET_DIR="$engine_builds" \
        cargo nextest run --color never --locked --no-fail-fast -p cuda-limiter --features cuda-limiter/frida \
        -E 'test(/(^|::)timed::/)' --test-threads 4
}

# The runner of the tests, built once into the folder of the build where the machine has none.
get_nextest() {
    PATH="$PATH:$PWD/$target/tools/bin"
    [[ $target != /* ]] || PATH="$PATH:$target/tools/bin"
    cargo nextest --version >/dev/null 2>&1 ||
        run 'cargo-nextest, which takes some minutes once' env -u CARGO_TARGET_DIR \
            cargo install --locked --root "$target/tools" --no-default-features \
            --features default-no-update "cargo-nextest@$nextest" ||
        fail "cargo-nextest is missing. Install it with:
    cargo install --locked cargo-nextest@$nextest"
}
nextest=0.9.143

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

# shellcheck source=scripts/reach.sh
. scripts/reach.sh
# shellcheck source=scripts/packages.sh
. scripts/packages.sh
# shellcheck source=scripts/namespaces.sh
. scripts/namespaces.sh
# shellcheck source=scripts/cluster.sh
. scripts/cluster.sh
# shellcheck source=scripts/engines.sh
. scripts/engines.sh

# What /metrics tells, as a test has written it, and the rules that go by it.
prometheus_files() {
    promtool check metrics <hypervisor/tests/golden/metrics.txt &&
        promtool check rules deploy/prometheus/sluice.rules.yml &&
        promtool test rules deploy/prometheus/sluice.rules.test.yml
}

# The figure is in docs/operations.md. Versions of systemd differ by a few tenths.
most_exposed=2.5
systemd_units() {
    local folder status=0
    folder=$(mktemp -d)
    cp deploy/systemd/* "$folder"
    # It is not installed here.
    sed -i "s|^ExecStart=/usr/bin/hypervisor|ExecStart=$(realpath "$target/debug/hypervisor")|" "$folder/sluice.service"
    systemd-analyze verify "$folder/sluice.service" "$folder/sluice.socket" &&
        systemd-analyze security --no-pager --offline=true \
            --threshold="$(awk -v most="$most_exposed" 'BEGIN { print most * 10 }')" "$folder/sluice.service" | tail -1 ||
        status=1
    rm -rf "$folder"
    return "$status"
}

# Benchmarks are built and not run. The libraries and programs that tests of other packages run are
# among all targets.
build() {
    check 'build' cargo build --locked --workspace --all-targets
}

# Many tests wait for something most of the time: twice as many at once as there are cores. Those that measure time are
# run by a number of their own.
nextest() {
    NEXTEST_TEST_THREADS=$((2 * $(nproc))) cargo nextest run --color never --locked --workspace --no-fail-fast "$@"
}

lint_tier() {
    check 'format' cargo fmt --all --check
    check 'clippy' cargo clippy --locked --workspace --all-targets -- -D warnings
}

test_tier() {
    build
    # Its test says where it is missing.
    get_runc || true
    get_allocators || skip 'allocators beside the limiter' 'they are not to be had here; they are libjemalloc2 and libtcmalloc-minimal4 of Debian'
    tests_and_again 'tests' nextest -E 'not test(/(^|::)timed::/)'
}

# They sleep nearly always and take turns by .config/nextest.toml; nothing else runs meanwhile.
timed_tier() {
    tests_and_again 'tests that measure time' nextest -E 'test(/(^|::)timed::/)' --test-threads 4
}

# The limiter's behaviour, the other way: work waits on its thread instead of in its stream. Of the tests that take longest,
# those of several devices and of programs that end, some.
threads_tier() {
    local all='compute|copies|daemon|grids|kills|live|odd_launches|held|liars|threads'
    local some='gangs::(ranks|so_has|jobs_on|a_job|a_rank)|deaths::(forked|fifty|under)'
    SLUICE_GATES=thread tests_and_again 'tests with gates on threads' nextest -E \
        "package(cuda-limiter) & test(/timed::(($all)::|$some)/)" --test-threads 4
}

other_tier() {
    tests 'documentation tests' cargo test --locked --workspace --doc --no-fail-fast
    check 'exported names' exports_nothing_of_the_driver
    check 'symbol lists' cargo xtask find-new-symbols --check-lists
    check 'private tables are told' scripts/export-tables.sh --check
    if get_libclang; then
        check 'frida engine: hook' env DOCS_RS=1 \
            cargo clippy --locked -p hook --features frida -- -D warnings
        check 'frida engine: limiter' env DOCS_RS=1 \
            cargo clippy --locked -p cuda-limiter --features frida -- -D warnings
        check 'frida engine: an incomplete devkit' incomplete_devkit
        if [ -n "${FRIDA_GUM_DEVKIT:-}" ]; then
            frida_tests
        else
            skip 'frida engine over gum itself' 'no devkit; name the folder that has it: FRIDA_GUM_DEVKIT=DIR (docs/engines.md)'
        fi
    else
        skip 'frida engine' 'libclang is missing; install it with: apt-get install libclang-dev (as root)'
    fi
    if command -v python3 >/dev/null; then
        check 'what the proof computes' python3 -m unittest discover -s scripts/gpu-proof
    else
        skip 'what the proof computes' 'python3 is missing; install it with: apt-get install python3 (as root)'
    fi
    if command -v python3 >/dev/null && python3 -c 'import yaml, jsonschema' 2>/dev/null; then
        check 'deploy/kubernetes' python3 scripts/kubernetes/check.py
        # Parts of it need more than Python.
        local tool
        for tool in kubectl go; do
            command -v "$tool" >/dev/null || skip "deploy/kubernetes by $tool" "$tool is missing"
        done
    else
        skip 'deploy/kubernetes' 'it needs apt-get install python3-yaml python3-jsonschema (as root)'
    fi
    if get_promtool; then
        check 'metrics and rules' prometheus_files
    else
        skip 'metrics and rules' 'promtool is missing; it comes with Prometheus: apt-get install prometheus (as root)'
    fi
    get_monitors || true
    get_nvtop || true
    local program
    for program in nvitop gpustat py3smi nvtop; do
        local command=("$program")
        [ "$program" != nvitop ] || command+=(-1)
        [ "$program" != nvtop ] || command=("$monitors/bin/python" scripts/terminal.py 4 nvtop)
        if PATH="$monitors/bin:$PATH" command -v "$program" >/dev/null && [ -x "$monitors/bin/python" ]; then
            check "$program on the simulated GPU" monitor "${command[@]}"
        else
            skip "$program on the simulated GPU" 'it is not to be had here; it comes from pip, nvtop from apt'
        fi
    done
    if command -v systemd-analyze >/dev/null; then
        check 'systemd units' systemd_units
    else
        skip 'systemd units' 'systemd-analyze is missing; it comes with systemd'
    fi
    if get_shellcheck; then
        check 'shell scripts' shellcheck --external-sources scripts/*.sh scripts/{packages,cluster,engines}/*.sh \
            scripts/engines/nvidia-container-runtime-hook \
            deploy/packages/{before-removal,postinst,prerm,postrm} .ci/run
    else
        skip 'shell scripts' 'shellcheck is missing; install it with: apt-get install shellcheck (as root)'
    fi
}

# What is shipped, on other C libraries and on another processor.
reach_tier() {
    if ! get_release_tools; then
        skip 'what is shipped' 'its build needs python3 and PyPI; see cargo xtask build-release'
        return
    fi
    local one before=$failed
    check 'build of what is shipped' cargo xtask build-release
    [ "$failed" -eq "$before" ] || return 0
    if [ -d "$target/tools/std/library" ] || [ -d "$(rustc --print sysroot)/lib/rustlib/src/rust/library" ]; then
        check 'size of the shipped limiter' limiter_is_small
    else
        skip 'size of the shipped limiter' "Rust's own library was not built with it: rustup component add rust-src"
    fi
    get_allocators || skip 'allocators beside what is shipped' 'they are not to be had here; they are libjemalloc2 and libtcmalloc-minimal4 of Debian'
    for one in "${glibcs[@]}"; do
        # shellcheck disable=SC2086 # suite, version and tests
        on_glibc $one
    done
    on_drivers
    if get_musl; then
        check 'programs on musl' on_musl
    else
        skip 'programs on musl' 'musl-gcc is missing; install it with: apt-get install musl-tools (as root)'
    fi
    on_aarch64
}

# Tests of time that fail are tried again. That must not hide a program that failed or hung: tests note each.
faults="$target/tmp/faults"
nothing_but_time_failed() {
    [ ! -s "$faults" ] || {
        echo 'In these tests a program failed or hung:'
        cat "$faults"
        return 1
    }
}

# Random cases of each property, and hours that the scheduler is simulated for: see hours.rs.
export PROPTEST_CASES=256 SLUICE_TEST_HOURS=all
case $mode in
quick) PROPTEST_CASES=64 SLUICE_TEST_HOURS=first ;;
all) PROPTEST_CASES=512 ;;
esac

get_nextest
rm -f "$faults"
if [ "${#names[@]}" -gt 0 ]; then
    build
    tests 'tests' nextest "${names[@]}"
else
    # What the tier of tests builds, others use.
    [ "${#tiers[@]}" -eq 0 ] || wanted tests || build
    tier lints 60 lint_tier
    tier tests 200 test_tier
    if [ "$mode" != quick ]; then
        tier timed 540 timed_tier
        tier other 120 other_tier
    fi
    if [ "$mode" = all ]; then
        tier threads 330 threads_tier
        tier gum 300 on_simulated_gum
        tier reach 480 reach_tier
        tier packages 200 packages_tier
        if [ -n "${SLUICE_TEST_CLUSTER:-}" ]; then
            tier cluster 160 cluster_tier
        elif wanted cluster; then
            skip 'a real cluster' 'its programs take 7 to 10 minutes to build once; SLUICE_TEST_CLUSTER=1 builds and runs it'
        fi
        if [ -n "${SLUICE_TEST_ENGINES:-}" ]; then
            tier engines 150 engines_tier
        elif wanted engines; then
            skip 'Docker, Podman and systemd' 'they are started for it, as root; SLUICE_TEST_ENGINES=1 gets and runs them'
        fi
    fi
fi
check_at_any_time 'no program failed in a test that was tried again' nothing_but_time_failed

for line in ${times[@]+"${times[@]}"}; do
    read -r name took budget <<<"$line"
    over=''
    if [ "$took" -gt "$budget" ]; then over="${yellow}more than its budget$plain"; fi
    printf '%-8s %4d s of %4d s %s\n' "$name" "$took" "$budget" "$over"
done
printf '%-8s %4d s\n' total "$SECONDS"
printf '%s\n' ${flaky[@]+"${flaky[@]}"} | sort -u | while read -r name; do
    [ -z "$name" ] || printf '%sFLAKY%s: %s passed when it was tried again\n' "$yellow" "$plain" "$name"
done
for name in ${failures[@]+"${failures[@]}"}; do
    printf 'FAILED: %s\n' "$name" >&2
done
if [ "$skipped" -gt 0 ]; then
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
else
    printf '%d passed, %d failed\n' "$passed" "$failed"
fi
[ "$failed" -eq 0 ]

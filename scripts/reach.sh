# Sourced by test.sh: checks of what is shipped, on other C libraries.
# shellcheck shell=bash disable=SC2154 # variables of test.sh

# Versions of glibc: Debian's suite that has it, and tests that cannot hold there. Before 2.35 the loader does not tell
# of what another namespace (dlmopen) has: see docs/processes.md. A sanitizer is this machine's compiler's, for its glibc.
# shellcheck disable=SC2034
glibcs=('bullseye 2.31 a_driver_in_a_namespace|a_second_copy_of_the_driver_is_not|an_address_sanitizer' 'here 2.36 ^$' 'trixie 2.41 an_address_sanitizer')

shipped="$target/shipped"

# Drivers that Debian has: its suite, the version, and the packages of libcuda and libnvidia-ml.
drivers=('bookworm 470.256.02 libnvidia-tesla-470-cuda1 libnvidia-tesla-470-ml1' 'bookworm 535.261.03 libcuda1 libnvidia-ml1'
    'trixie 550.163.01 libcuda1 libnvidia-ml1')

# get_driver FOLDER SUITE VERSION PACKAGE...: its two libraries. Nothing is installed.
get_driver() {
    local folder=$1 suite=$2 version=$3 name
    shift 3
    [ ! -e "$folder/done" ] || return 0
    printf '%s== getting the driver %s%s\n' "$bold" "$version" "$plain"
    cargo xtask debian-package --component non-free "$suite" amd64 "$folder" "$@" >/dev/null 2>&1 || return 1
    for name in libcuda libnvidia-ml; do
        find "$folder/root" -type f -name "$name.so.$version" -exec mv {} "$folder/$name.so.1" \;
        [ -e "$folder/$name.so.1" ] || return 1
    done
    rm -r "$folder/root"
    touch "$folder/done"
}

# No function of it is in no list, it lacks what the simulated driver of that version lacks, the rest is patched by what is
# shipped, its own code runs, and docs/compatibility.md says so.
driver_is_patched() {
    local folder=$1 version=$2 has lacks work status=0
    local lacking="examples/fake-gpu/node/drivers/${version%%.*}.txt"
    cargo xtask find-new-symbols "$folder"/lib{cuda,nvidia-ml}.so.1 || status=1
    cargo xtask find-new-symbols --lacking "$folder"/lib{cuda,nvidia-ml}.so.1 | diff - "$lacking" || status=1
    work=$(mktemp -d)
    cat >"$work/loads.c" <<'END'
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!cuda || !nvml) return puts(dlerror()), 1;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    int (*nvml_init)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
    printf("cuInit %d nvmlInit_v2 %d\n", init(0), nvml_init());
    return 0;
}
END
    cc -o "$work/loads" "$work/loads.c" -ldl || status=1
    # A machine with a GPU has another driver in its kernel: any answer will do.
    LD_LIBRARY_PATH=$folder LD_PRELOAD=$(realpath "$shipped/libcuda_limiter.so") SLUICE_HOOK_REPORT=$work/report \
        SLUICE_SESSION_DIR=$work TENSOR_FUSION_CUDA_MEM_LIMIT='{"0": 1073741824}' "$work/loads" || status=1
    has=$(grep -c $'\tpatched$' "$work/report") || status=1
    lacks=$(grep -c $'\tabsent$' "$work/report") || status=1
    printf '%s functions patched, %s absent\n' "$has" "$lacks"
    ! grep -v -e $'\tpatched$' -e $'\tabsent$' -e $'\tengine:' "$work/report" || status=1
    [ "$((has + lacks))" -eq "$(grep -c '^| `lib' docs/hooks.md)" ] || status=1
    grep -q "^| $version |.*| $has | $lacks | 0 |$" docs/compatibility.md || {
        echo "docs/compatibility.md does not say so of $version"
        status=1
    }
    rm -rf "$work"
    return "$status"
}

on_drivers() {
    local one suite version folder
    local -a packages
    for one in "${drivers[@]}"; do
        read -r suite version one <<<"$one"
        read -ra packages <<<"$one"
        folder="$target/drivers/$version"
        if get_driver "$folder" "$suite" "$version" "${packages[@]}"; then
            check "driver $version" driver_is_patched "$(realpath "$folder")" "$version"
        else
            skip "driver $version" "it is not to be had here; it is in Debian's $suite, non-free: ${packages[*]}"
        fi
    done
}

# The linker comes from PyPI.
get_release_tools() {
    command -v python3 >/dev/null || return 1
    printf '%s== getting the tools of a release%s\n' "$bold" "$plain"
    cargo xtask build-release --tools >/dev/null 2>&1
}

# The size that docs/specification.md promises. The linker of a release leaves out the table of symbols.
limiter_is_small() {
    local size
    size=$(stat -c %s "$shipped/libcuda_limiter.so")
    printf 'libcuda_limiter.so: %s bytes\n' "$size"
    [ "$size" -le $((2 << 20)) ]
}

# get_old_allocators SUITE FOLDER: those of an older Debian, with the C++ library that they need.
get_old_allocators() {
    local folder="$2/allocators" name
    [ ! -e "$folder/done" ] || return 0
    cargo xtask debian-package "$1" amd64 "$folder" libjemalloc2 libtcmalloc-minimal4 libstdc++6 libgcc-s1 >/dev/null 2>&1 || return 1
    cp -P "$folder"/root/lib/x86_64-linux-gnu/* "$folder/root/usr/lib/x86_64-linux-gnu/" || return 1
    for name in libjemalloc.so.2 libtcmalloc_minimal.so.4 libstdc++.so.6; do
        "$target/tools/release/bin/patchelf" --force-rpath --set-rpath "$folder/root/usr/lib/x86_64-linux-gnu" \
            "$(realpath "$folder/root/usr/lib/x86_64-linux-gnu/$name")" || return 1
    done
    touch "$folder/done"
}

# How the limiter is loaded, what callers see of the loader, and memory. Where the simulated driver of the debug build can be loaded, what happens to
# threads and signals, too: a driver made by the linker of a release brings an unwinder of its own, so a thread that is
# cancelled in it ends the process. NVIDIA's is not made by it.
on_glibc() {
    local suite=$1 version=$2 cannot=$3 folder="$PWD/$target/old-glibc/$2" modules='callers|loader|memory|processes|quiet|bus_errors|bad_input|preloads' own allocators=''
    [[ $target != /* ]] || folder="$target/old-glibc/$2"
    if ! cargo xtask old-glibc "$suite" "$version" "$shipped" "$folder"; then
        skip "glibc $version" "it is not to be had here; it is the package libc6 of Debian's $suite"
        return
    fi
    own=$(getconf GNU_LIBC_VERSION)
    if printf '%s\n' "${own#* }" "$version" | sort -CV; then
        cp "$target/debug"/libfake_{cuda,nvml}.so "$folder/parts"
        modules+='|cancel'
    else
        # This machine's need a newer one.
        allocators="$folder/allocators/root"
        get_old_allocators "$suite" "$folder" || skip "allocators on glibc $version" "they are not to be had here; they are of Debian's $suite"
    fi
    [ -z "$allocators" ] || export SLUICE_TEST_ALLOCATORS="$allocators"
    SLUICE_TEST_PARTS="$folder/parts" SLUICE_TEST_CC="$folder/cc" tests_and_again "limiter on glibc $version" nextest -E \
        "package(cuda-limiter) & binary(suite) & test(/^($modules)::/) - test(/$cannot/)"
    unset SLUICE_TEST_ALLOCATORS
    SLUICE_TEST_PARTS="$folder/parts" SLUICE_TEST_CC="$folder/cc" tests_and_again "sluice on glibc $version" nextest -E \
        "package(sluice) & test(/::($processes_of_sluice)$/)"
    check "programs on glibc $version" start_on "$folder/parts"
}

# Kinds of processes that the tests of `sluice` have.
processes_of_sluice='a_child_that_clears_its_environment_keeps_its_limits|a_program_that_gives_up_root_keeps_its_session'
processes_of_sluice+='|a_process_that_gives_up_root_after_its_first_call_goes_on|a_program_that_becomes_another_user_has_the_limiter'

# The limiter's tests of programs. Those of the source's rules need no engine.
through_the_engine='(package(cuda-limiter) & (binary(suite) + binary(hostile)) - test(/^house::/))'

# Of those that measure time: every function that launches or copies, and gates on the thread and in the stream. What a
# gate does when is the same over each engine.
timed_through_the_engine='test(/(^|::)timed::(compute|copies|in_stream|odd_launches)::/)'

# They run over the second engine, with a gum that is simulated. They take a limiter with it for the one that is built,
# and the other parts as they are.
on_simulated_gum() {
    local parts="$engine_builds/simulated-gum" before=$failed part
    check 'limiter with a simulated gum: build' env CARGO_TARGET_DIR="$engine_builds" \
        cargo build --locked -p cuda-limiter --features simulated-gum
    [ "$failed" -eq "$before" ] || return 0
    mkdir -p "$parts"
    for part in sluice hypervisor tenant fake-nvidia-smi libfake_cuda.so libfake_nvml.so; do
        # Not links: `sluice` looks for the others beside itself.
        cp -f "$target/debug/$part" "$parts"
    done
    cp -f "$engine_builds/debug/libcuda_limiter.so" "$parts"
    SLUICE_TEST_PARTS="$parts" tests_and_again 'limiter with a simulated gum' nextest -E \
        "$through_the_engine - test(/(^|::)timed::/) + (package(sluice) & test(/::($processes_of_sluice)$/))"
    SLUICE_TEST_PARTS="$parts" tests_and_again 'limiter with a simulated gum, tests that measure time' nextest -E \
        "$through_the_engine & $timed_through_the_engine" --test-threads 4
    if get_libclang && command -v python3 >/dev/null && cargo fetch --locked >/dev/null 2>&1; then
        check 'frida engine: a devkit that the build fetches' fetched_devkit
    else
        skip 'frida engine: a devkit that the build fetches' 'it needs libclang, python3 and the registry'
    fi
}

# Each program starts and tells its version.
start_on() {
    local program
    for program in sluice hypervisor; do
        "$1/$program" --version || return 1
    done
}

get_musl() {
    command -v musl-gcc >/dev/null || apt_get musl-tools
}

musl=/lib/x86_64-linux-musl/libc.so

# Programs on musl start with each library preloaded, and see nothing of it; so does what they start.
on_musl() {
    local folder status=0 library shown
    cargo xtask symbol-versions --musl "$musl" 2.17 "$shipped"/lib{cuda_limiter,add_path}.so || return 1
    folder=$(mktemp -d)
    cat >"$folder/program.c" <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void *thread(void *unused) { return unused; }
#include <pthread.h>
int main(int argc, char **argv) {
    pthread_t one;
    int status = 1;
    if (pthread_create(&one, NULL, thread, NULL) || pthread_join(one, NULL)) return 1;
    if (fork() == 0) { if (argc > 1) execv(argv[1], argv + 1); _exit(0); }
    wait(&status);
    printf("%s: %d\n", argc > 1 ? "parent" : "child", status);
    return 0;
}
END
    musl-gcc -O1 -o "$folder/program" "$folder/program.c" || return 1
    for library in cuda_limiter add_path; do
        library=$(realpath "$shipped/lib$library.so")
        shown=$(TENSOR_FUSION_CUDA_MEM_LIMIT='{"0": 1073741824}' LD_PRELOAD=$library "$folder/program" "$folder/program" 2>&1) || status=1
        [ "$shown" = $'child: 0\nparent: 0' ] || {
            printf 'with %s: %s\n' "$library" "$shown"
            status=1
        }
    done
    # A program on glibc that starts one on musl, and the other way round: both get what the environment says.
    # shellcheck disable=SC2016 # the shell that is started expands it
    shown=$(TF_PATH=/added LD_PRELOAD="$(realpath "$shipped/libadd_path.so")" PATH=/usr/bin:/bin "$folder/program" /bin/sh -c 'echo $PATH') || status=1
    [[ $shown == *'/usr/bin:/bin:/added'* ]] || {
        printf 'a program on glibc that one on musl starts: %s\n' "$shown"
        status=1
    }
    rm -rf "$folder"
    return "$status"
}

# What the emulator cannot do: filters of system calls, and programs that execute themselves. To `sluice run` each program is
# its starter, which is linked statically, and it says so.
not_emulated='a_program_that_may_have_no_writable_code|exec_keeps_the_limiter|sessions_do_not_share_their_limits'

# The hook engine and the limiter of aarch64, in an emulator: of the limiter's suite how it is loaded, and memory
# (docs/adr/0071-aarch64.md says what the other tests do there).
on_aarch64() {
    local folder="$PWD/$target/emulated" log
    [[ $target != /* ]] || folder="$target/emulated"
    too_late 'aarch64' && return
    log=$(mktemp)
    if ! cargo xtask build-release --arch aarch64 --profile emulated >"$log" 2>&1; then
        tail -5 "$log"
        rm -f "$log"
        skip 'aarch64' "Rust's own library for it is not to be had here: rustup target add aarch64-unknown-linux-gnu"
        return
    fi
    rm -f "$log"
    if ! cargo xtask emulate "$target/shipped-aarch64" "$folder"; then
        skip 'aarch64' "its emulator is not to be had here; it is Debian's package qemu-user"
        return
    fi
    check 'hook engine on aarch64' hooks_on_aarch64 "$folder"
    check 'memory limits on aarch64' limits_on_aarch64 "$folder/parts"
    SLUICE_TEST_PARTS="$folder/parts" SLUICE_TEST_CC="$folder/cc" tests_and_again 'limiter on aarch64' nextest -E \
        "package(cuda-limiter) & binary(suite) & test(/^(callers|lists|loader|memory|memory_ceiling|oversubscribe)::/) - test(/$not_emulated/)"
    check 'demo on aarch64' demo_on_aarch64 "$folder/parts"
    check 'programs on aarch64' start_on "$folder/parts"
}

hooks_on_aarch64() {
    local status=0 program
    cargo xtask build-release --arch aarch64 --profile emulated --tests hook >"$target/tmp/hook-tests"
    while read -r program; do
        cp "$program" "$1/hook-tests"
        "$1/emulated" "$1/hook-tests"
        SLUICE_TEST_CC=$1/cc "$1/hook-tests" || status=1
    done < <(grep '^test program: ' "$target/tmp/hook-tests" | cut -d ' ' -f 3-)
    return "$status"
}

# Both programs of the demo run at once under the daemon, and their memory stops where it has to. Shares of time are not
# judged: turns are handed over late in the emulator, so status 1 is right, too.
demo_on_aarch64() {
    local folder status=0
    folder=$(mktemp -d)
    XDG_RUNTIME_DIR=$folder timeout 120 "$1/sluice" demo --fake-gpu --seconds 5 >"$folder/shown" 2>&1 || status=$?
    cat "$folder/shown"
    [ "$(grep -Ec '(2048 MiB +1536|4096 MiB +3584) MiB +CUDA_ERROR_OUT_OF_MEMORY ok' "$folder/shown")" -eq 2 ] || status=2
    rm -rf "$folder"
    [ "$status" -le 1 ]
}

# Memory of every kind stops at a limit of 1200 MiB, of which a context takes 512.
limits_on_aarch64() {
    local parts=$1 folder api shown granted status=0
    folder=$(mktemp -d)
    ln -s "$parts/libfake_cuda.so" "$folder/libcuda.so.1"
    ln -s "$parts/libfake_nvml.so" "$folder/libnvidia-ml.so.1"
    for api in alloc pitch managed async pool vmm array array3d mipmap graph; do
        rm -f "$folder/node"
        shown=$(LD_LIBRARY_PATH=$folder SLUICE_FAKE_NODE=$folder/node XDG_RUNTIME_DIR=$folder \
            TENSOR_FUSION_CUDA_MEM_LIMIT='{"0": 1258291200}' LD_PRELOAD=$parts/libcuda_limiter.so \
            "$parts/tenant" mem --api "$api" --chunk 32MiB --cap 8GiB 2>&1) || status=1
        granted=0
        [[ $shown =~ \"granted_bytes\":([0-9]+) ]] && granted=${BASH_REMATCH[1]}
        [[ $shown == *'"stop":"CUDA_ERROR_OUT_OF_MEMORY"'* && $shown == *'"meminfo_total":1258291200,'* &&
            $granted -gt $((656 << 20)) && $granted -le $((688 << 20)) ]] || {
            printf '%s: %s\n' "$api" "$shown"
            status=1
        }
    done
    rm -rf "$folder"
    return "$status"
}

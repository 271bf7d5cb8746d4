//! The table of checks.

use super::job::{Job, Outcome, wrong};
use super::{Check, Need, Tier, When, engines, packages, reach, tools};
use crate::process::command;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// What nearly all tests need: they run libraries and programs of other packages.
pub(super) const BUILD: &str = "build and lints";
/// Tests that measure no time.
pub(super) const UNTIMED: &str = "not test(/(^|::)timed::/)";

const LIBCLANG: Need = Need::Tool(
    tools::has_libclang,
    "libclang is missing; install it with: apt-get install libclang-dev (as root)",
);
pub(super) const PYTHON: Need = Need::Tool(
    tools::has_python,
    "python3 is missing; install it with: apt-get install python3 (as root)",
);
const MANIFEST_READERS: Need = Need::Tool(
    tools::has_manifest_readers,
    "it needs packages of PyPI, and Go: apt-get install golang-go (as root)",
);
const PROMTOOL: Need = Need::Tool(
    tools::has_promtool,
    "promtool is missing; it comes with Prometheus: apt-get install prometheus (as root)",
);
const MONITORS: Need =
    Need::Tool(tools::has_monitors, "it is not to be had here; it comes from PyPI");
const NVTOP: Need =
    Need::Tool(tools::has_nvtop, "nvtop is not to be had here; it comes from Debian's contrib");
const SYSTEMD: Need =
    Need::Tool(tools::has_systemd_analyze, "systemd-analyze is missing; it comes with systemd");
const SHELLCHECK: Need = Need::Tool(
    tools::has_shellcheck,
    "shellcheck is missing; install it with: apt-get install shellcheck (as root)",
);
pub(super) const ALLOCATORS: Need = Need::Tool(
    tools::has_allocators,
    "allocators are not to be had here; they are libjemalloc2 and libtcmalloc-minimal4 of Debian",
);

/// All checks, in the order in which they run.
pub(super) fn table() -> Vec<Check> {
    let build = Need::Check(BUILD);
    let check = |tier, name: &str, work: fn(&Job) -> Outcome| Check::single(tier, name, work);
    let line = |tier, name, line: &'static str| {
        Check::single(tier, name, move |job| job.run(&mut cargo(job, line)))
    };
    let mut table = vec![
        line(Tier::Lints, "format", "fmt --all --check"),
        // Benchmarks are built, and do not run.
        line(Tier::Lints, BUILD, "build --locked --workspace --all-targets"),
        Check::tests(Tier::Tests, "tests", |job| {
            // Tests say where these are missing.
            tools::has_runc(job);
            tools::has_allocators(job);
            let mut command = nextest(job);
            command.args(["-E", UNTIMED]);
            command
        })
        .needs(build),
        Check::timed(Tier::Timed, "tests that measure time", "test(/(^|::)timed::/)", nextest)
            .needs(build),
        Check::tests(Tier::Other, "documentation tests", |job| {
            cargo(job, "test --locked --workspace --doc --no-fail-fast")
        }),
        check(Tier::Other, "exported names", exports_nothing_of_the_driver).needs(build),
        check(Tier::Other, "symbol lists", |job| job.run(tools::tool("find-new-symbols").arg("--check-lists"))),
        check(Tier::Other, "the proof's statistics", |job| {
            job.line("python3 -m unittest discover -s scripts/gpu-proof")
        })
        .needs(PYTHON),
        check(Tier::Other, "deploy/kubernetes", |job| {
            let python = job.built("tools/manifests/bin/python");
            let mut check = Command::new(python);
            job.run(check.arg("scripts/kubernetes/check.py").arg(job.built("debug/hypervisor")))
        })
        .needs(MANIFEST_READERS)
        .needs(build),
        check(Tier::Other, "metrics and rules", metrics_and_rules).needs(PROMTOOL),
        check(Tier::Other, "systemd units", systemd_units).needs(SYSTEMD).needs(build),
        check(Tier::Other, "shell scripts", |job| {
            let script = "git ls-files 'scripts/*.sh' .ci/run scripts/lint-and-compile scripts/engines/nvidia-container-runtime-hook deploy/packages/{before-removal,postinst,prerm,postrm} |
                xargs shellcheck --external-sources";
            job.bash(script, &[])
        })
        .needs(SHELLCHECK),
    ];
    for (program, rest) in [("nvitop", "nvitop -1"), ("gpustat", "gpustat"), ("py3smi", "py3smi")] {
        let name = format!("{program} on the simulated GPU");
        table.push(
            Check::single(Tier::Other, name, |job| monitor(job, rest)).needs(MONITORS).needs(build),
        );
    }
    let nvtop = check(Tier::Other, "nvtop on the simulated GPU", |job| {
        monitor(job, "python scripts/terminal.py 4 nvtop")
    });
    table.push(nvtop.needs(MONITORS).needs(NVTOP).needs(build));
    // The other way of gates: work waits on its thread instead of in its stream.
    table.push(
        Check::timed(Tier::Threads, "tests with gates on threads", GATES_ON_THREADS, |job| {
            let mut command = nextest(job);
            command.env("SLUICE_GATES", "thread");
            command
        })
        .needs(build),
    );
    second_engine(&mut table);
    reach::table(&mut table);
    packages::table(&mut table);
    engines::table(&mut table);
    table
}

/// A command of cargo that builds or runs tests.
pub(super) fn cargo(job: &Job, line: &str) -> Command {
    let mut cargo = command(&format!("cargo {line}"));
    if let Ok(wrapper) = fs::canonicalize("scripts/lint-and-compile") {
        cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    }
    cargo.env("PROPTEST_CASES", job.cases.to_string()).env("SLUICE_TEST_HOURS", job.hours);
    cargo
}

/// Tests of the workspace. Many wait for something most of the time: twice as many run at once as there are cores.
/// Those that measure time run by a number of their own.
pub(super) fn nextest(job: &Job) -> Command {
    let mut nextest = cargo(job, "nextest run --color never --locked --workspace --no-fail-fast");
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    nextest.env("NEXTEST_TEST_THREADS", (2 * cores).to_string());
    nextest
}

/// The limiter must not stand in for any function by name: that would catch lookups that are not its
/// own. It patches the driver instead.
fn exports_nothing_of_the_driver(job: &Job) -> Outcome {
    let library = job.built("debug/libcuda_limiter.so");
    let exported = job.output(Command::new("nm").args(["-D", "--defined-only"]).arg(library))?;
    let names: Vec<&str> =
        exported.lines().filter_map(|line| line.split(' ').next_back()).collect();
    let is_foreign = |name: &&&str| {
        let of_cuda = |rest: &str| rest.starts_with(|c: char| c.is_ascii_uppercase());
        name.strip_prefix("cu").is_some_and(of_cuda)
            || ["nvml", "dl", "_dl"].iter().any(|prefix| name.starts_with(prefix))
    };
    let foreign: Vec<_> = names.iter().filter(is_foreign).collect();
    if !foreign.is_empty() {
        return wrong(format_args!(
            "of {} exported names these belong to the driver or the loader: {foreign:?}",
            names.len()
        ));
    }
    job.say(format_args!("{} exported names, none of them cu*, nvml* or dl*", names.len()));
    Ok(())
}

/// What /metrics tells, as a test has written it, and the rules that go by it.
fn metrics_and_rules(job: &Job) -> Outcome {
    let metrics = fs::File::open("hypervisor/tests/golden/metrics.txt")?;
    let mut check = command("promtool check metrics");
    let shown = check.stdin(metrics).stdout(job.log.try_clone()?).stderr(job.log.try_clone()?);
    crate::process::run(shown)?;
    for rules in ["sluice", "compatibility"] {
        job.line(&format!("promtool check rules deploy/prometheus/{rules}.rules.yml"))?;
        job.line(&format!("promtool test rules deploy/prometheus/{rules}.rules.test.yml"))?;
    }
    Ok(())
}

/// The exposure that docs/operations.md tells, in tenths. Versions of systemd differ by a few.
const MOST_EXPOSED: u32 = 25;

fn systemd_units(job: &Job) -> Outcome {
    let folder = tempfile::tempdir()?;
    let hypervisor = job.built("debug/hypervisor").display().to_string();
    for unit in crate::process::files_in(Path::new("deploy/systemd")) {
        // It is not installed here.
        let text = fs::read_to_string(&unit)?
            .replace("ExecStart=/usr/bin/hypervisor", &format!("ExecStart={hypervisor}"));
        fs::write(folder.path().join(unit.file_name().unwrap_or_default()), text)?;
    }
    let service = folder.path().join("sluice.service");
    let socket = folder.path().join("sluice.socket");
    job.run(command("systemd-analyze verify").arg(&service).arg(socket))?;
    let mut security = command("systemd-analyze security --no-pager --offline=true");
    security.arg(format!("--threshold={MOST_EXPOSED}")).arg(service);
    let shown = job.output(&mut security)?;
    job.say(shown.lines().next_back().unwrap_or_default());
    Ok(())
}

/// A program that watches GPUs shows the limit as the device's memory, and what a program in the session uses of it.
fn monitor(job: &Job, line: &str) -> Outcome {
    let node = tempfile::tempdir()?;
    let script = r#"
        "$0" mem --api alloc --chunk 256MiB --cap 256MiB --hold 60 >/dev/null &
        until nvidia-smi --query-compute-apps=used_memory --format=csv | grep -q "^768"; do sleep 0.1; done
        "$@"
        kill $!"#;
    let mut session = Command::new(job.built("debug/sluice"));
    session
        .args("run --fake-gpu --device 0 --mem 1GiB --daemon none -- sh -c".split(' '))
        .arg(script)
        .arg(job.built("debug/tenant"))
        .args(line.split(' '))
        .env("SLUICE_FAKE_NODE", node.path().join("node"))
        .env(
            "PATH",
            format!(
                "{}:{}",
                job.built("tools/monitors/bin").display(),
                std::env::var("PATH").unwrap_or_default()
            ),
        );
    let output = session.stdin(Stdio::null()).output()?;
    let shown = [output.stdout, output.stderr].concat();
    let shown = String::from_utf8_lossy(&shown);
    job.say(&shown);
    let plain: String = shown.split(' ').collect();
    let is_shown = ["768MiB/1024", "768.0MiB/1024", "768/1024", "805306368", "0.750Gi/1.000Gi"];
    if !output.status.success() || !is_shown.iter().any(|form| plain.contains(form)) {
        return wrong(format_args!("{line} does not show 768 of 1024 MiB"));
    }
    Ok(())
}

/// Each way to launch, copy and wait, threads that share a stream, neighbours, a change of limits, the daemon, and programs
/// that end.
const GATES_ON_THREADS: &str = r"package(cuda-limiter) & (test(/timed::(held|liars|threads)::/)
    + test(/timed::compute::(half_for|a_quarter|a_capture|a_program_ends|contexts|launches_that|processes|two_devices|short_queues|work_that)/)
    + test(/timed::copies::(copies_of_rows|copies_over|copies_that_reach|fills)/)
    + test(/timed::odd_launches::(a_pipeline_over|green_contexts_made|streams_that_wait_for_words_get|the_host|waits_before_each_kernel_cost)/)
    + test(/timed::grids::(a_neighbour|dense_work_gets_its_share$)/)
    + test(/timed::live::(a_share_comes_and_goes_while|a_daemon)/)
    + test(/timed::daemon::(two_sessions|a_daemon_that_is_stopped)/)
    + test(/timed::(kills::a_daemon_that_is_killed|deaths::under_a_daemon|gangs::a_rank)/))";

/// The folder of builds with the second engine, which are apart: a library has one name whatever its engine.
pub(super) const ENGINE_BUILDS: &str = "engine-builds";

/// Every hooked function, how the limiter is loaded and what callers see of it, code that cannot be patched, processes,
/// and threads that end in a hook. What the limiter does with a call is the same over each engine.
const THROUGH_THE_ENGINE: &str = r"package(cuda-limiter) & (
    (binary(suite) & test(/^(callers|cancel|lists|loader|memory|older_drivers|preloads|processes|quiet)::/))
    + (binary(hostile) & test(/^(first_contexts|patching|refusals)::/)))";
/// Every function that launches or copies, and gates on the thread and in the stream.
const TIMED_THROUGH_THE_ENGINE: &str = r"package(cuda-limiter) & (test(/timed::in_stream::/)
    + test(/timed::compute::(half_for|launches_that|a_capture)/)
    + test(/timed::copies::(every_function|copies_that_reach|copies_over|fills)/)
    + test(/timed::odd_launches::(green_contexts|a_stream_of_a_context)/))";

fn with_engine(job: &Job, line: &str) -> Command {
    let mut command = cargo(job, line);
    command.env("CARGO_TARGET_DIR", job.built(ENGINE_BUILDS)).env_remove("RUSTC_WORKSPACE_WRAPPER");
    command
}

/// The limiter over the second engine: over a gum that is simulated, and over gum itself where its devkit is.
fn second_engine(table: &mut Vec<Check>) {
    const SIMULATED: &str = "limiter with a simulated gum: build";
    let inputs = || {
        When::Changed(vec![
            "Cargo.lock",
            "rust-toolchain.toml",
            "utils/hook",
            "limiter/Cargo.toml",
            "limiter/src/build.rs",
            "scripts/xtask/src/test/checks.rs",
        ])
    };
    let check = |name: &str, work: fn(&Job) -> Outcome| Check::single(Tier::Gum, name, work);
    let types = |package: &'static str| {
        Check::single(Tier::Gum, format!("frida engine: types of {package}"), move |job| {
            let line = format!("clippy --locked -p {package} --features frida -- -D warnings");
            job.run(with_engine(job, &line).env("DOCS_RS", "1"))
        })
        .needs(LIBCLANG)
    };
    table.extend([
        check(SIMULATED, build_with_simulated_gum).needs(Need::Check(BUILD)).when(When::Needed),
        Check::tests(Tier::Gum, "limiter with a simulated gum", |job| {
            let mut command = nextest_with_gum(job);
            command.args([
                "-E",
                &format!(
                    "({THROUGH_THE_ENGINE}) + (package(sluice) & {})",
                    reach::PROCESSES_OF_SLUICE
                ),
            ]);
            command
        })
        .needs(Need::Check(SIMULATED)),
        Check::timed(
            Tier::Gum,
            "limiter with a simulated gum, tests that measure time",
            TIMED_THROUGH_THE_ENGINE,
            nextest_with_gum,
        )
        .needs(Need::Check(SIMULATED)),
        types("hook"),
        types("cuda-limiter"),
        check("frida engine: an incomplete devkit", incomplete_devkit)
            .needs(LIBCLANG)
            .when(inputs()),
        check("frida engine: a devkit that the build fetches", fetched_devkit)
            .needs(LIBCLANG)
            .needs(PYTHON)
            .needs(Need::Tool(tools::has_all_crates, "crates of other systems cannot be fetched"))
            .when(inputs()),
    ]);
    let devkit = Need::Tool(
        |_| std::env::var_os("FRIDA_GUM_DEVKIT").is_some(),
        "no devkit; name the folder that has it: FRIDA_GUM_DEVKIT=DIR (docs/engines.md)",
    );
    for (name, line, filter) in [
        ("suite of every engine", "-p hook --features frida", "all()"),
        ("limiter", "-p cuda-limiter --features frida", UNTIMED),
        (
            "limiter, tests that measure time",
            "-p cuda-limiter --features frida --test-threads 4",
            "test(/(^|::)timed::/)",
        ),
    ] {
        let over_gum =
            Check::tests(Tier::Gum, format!("frida engine over gum itself: {name}"), move |job| {
                let mut command =
                    with_engine(job, "nextest run --color never --locked --no-fail-fast");
                let devkit = std::env::var("FRIDA_GUM_DEVKIT").unwrap_or_default();
                command
                    .args(line.split(' '))
                    .args(["-E", filter])
                    .env("BINDGEN_EXTRA_CLANG_ARGS", format!("-I{devkit}"));
                command
            });
        table.push(over_gum.needs(LIBCLANG).needs(devkit));
    }
}

/// They take a limiter with the second engine for the one that is built, and the other parts as they are.
fn build_with_simulated_gum(job: &Job) -> Outcome {
    let (built, parts) = (job.built(ENGINE_BUILDS), job.built(ENGINE_BUILDS).join("simulated-gum"));
    job.run(&mut with_engine(job, "build --locked -p cuda-limiter --features simulated-gum"))?;
    fs::create_dir_all(&parts)?;
    for part in
        ["sluice", "hypervisor", "tenant", "fake-nvidia-smi", "libfake_cuda.so", "libfake_nvml.so"]
    {
        // Not links: `sluice` looks for the others beside itself.
        replace(&job.built("debug").join(part), &parts.join(part))?;
    }
    replace(&built.join("debug/libcuda_limiter.so"), &parts.join("libcuda_limiter.so"))
}

/// Copies a file. One that is in use stays as it is.
pub(super) fn replace(from: &Path, to: &Path) -> Outcome {
    let _ = fs::remove_file(to);
    fs::copy(from, to)?;
    Ok(())
}

fn nextest_with_gum(job: &Job) -> Command {
    let mut command = nextest(job);
    command.env("SLUICE_TEST_PARTS", job.built(ENGINE_BUILDS).join("simulated-gum"));
    command
}

/// A devkit without its functions: the linker has to refuse it, or every program that the library is preloaded into would
/// end.
fn incomplete_devkit(job: &Job) -> Outcome {
    let folder = tempfile::tempdir()?;
    job.run(Command::new("ar").arg("rc").arg(folder.path().join("libfrida-gum.a")))?;
    let mut build = with_engine(job, "build --locked -p cuda-limiter --features frida");
    job.refused(
        build.env("DOCS_RS", "1").env("FRIDA_GUM_DEVKIT", folder.path()),
        "undefined symbol: gum_",
    )
}

/// The devkit as the build fetches it, from a server of our own: a header, and a library without its functions. The build
/// has to find the one and to be refused by the linker for the other.
fn fetched_devkit(job: &Job) -> Outcome {
    let script = r#"
        version=$(awk '/^name = "frida-gum-sys"$/ { getline; gsub(/[^0-9.]/, ""); print }' Cargo.lock)
        crate=$(compgen -G "${CARGO_HOME:-$HOME/.cargo}/registry/src/*/frida-gum-sys-$version" | head -1)
        version=$(tr -d '[:space:]' <"$crate/FRIDA_VERSION")
        mkdir -p "$1/served/$version" "$1/devkit"
        cp "$crate/include/frida-gumjs.h" "$1/devkit/frida-gum.h"
        ar rc "$1/devkit/libfrida-gum.a"
        tar -cJf "$1/served/$version/frida-gum-devkit-$version-linux-x86_64.tar.xz" -C "$1/devkit" frida-gum.h libfrida-gum.a"#;
    let folder = tempfile::tempdir()?;
    job.bash(script, &[folder.path()])?;
    let log = folder.path().join("log");
    let mut server = command("python3 -u -m http.server --bind 127.0.0.1 0 --directory");
    let mut server = server
        .arg(folder.path().join("served"))
        .stdin(Stdio::null())
        .stdout(fs::File::create(&log)?)
        .stderr(fs::File::options().append(true).open(&log)?)
        .spawn()?;
    let port = || {
        let said = fs::read_to_string(&log).unwrap_or_default();
        said.split_once("port ").and_then(|(_, rest)| rest.split(' ').next()).map(str::to_owned)
    };
    let found = (0..100).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        port()
    });
    // It is fetched each time.
    tools::succeeds(&mut with_engine(job, "clean -q -p frida-gum-sys"));
    let mut build = with_engine(job, "build --locked -p cuda-limiter --features frida-download");
    build.env("FRIDA_DOWNLOAD_CDN", format!("http://127.0.0.1:{}", found.unwrap_or_default()));
    let refused = job.refused(&mut build, "undefined symbol: gum_");
    let _ = server.kill();
    let _ = server.wait();
    refused?;
    let said = fs::read_to_string(&log)?;
    match said.contains(".tar.xz HTTP/1.1\" 200") {
        true => Ok(()),
        false => wrong(format_args!("the build did not fetch the devkit:\n{said}")),
    }
}

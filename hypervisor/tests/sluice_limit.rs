//! `sluice status` and `sluice limit` on running programs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]

mod sluice_support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use sluice_support::{Sluice, eventually, outcome, text};

const DEVICE: &str = "GPU-5a1ce000-0000-4000-8000-000000000000";
const OTHER: &str = "GPU-5a1ce000-0000-4000-8000-000000000001";
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// What a context takes on the simulated device.
const CONTEXT: u64 = 512 * MIB;
/// `CUDA_ERROR_OUT_OF_MEMORY`
const REFUSED: &str = "2";
const DONE: &str = "0";

/// `tests/programs/on_demand.c`, which does what it is told.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The session's directory.
    session: PathBuf,
    /// The program itself.
    pid: u32,
}

impl Program {
    fn compile(sluice: &Sluice) -> PathBuf {
        let path = sluice.folder().join("on_demand");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/on_demand.c");
        let compiled = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&path, &source])
            .arg("-ldl")
            .output()
            .unwrap_or_else(|error| panic!("cc: {error}: a C compiler is needed"));
        assert!(compiled.status.success(), "{}", text(&compiled.stderr));
        path
    }

    /// Under `sluice run` with these options.
    fn run(sluice: &Sluice, options: &[&str]) -> Self {
        let program = Self::compile(sluice);
        let mut command = sluice.run(&["--fake-gpu", "--device", "0", "--daemon", "none"]);
        let script = r#"echo "$$ $SLUICE_SESSION_DIR"; exec "$0""#;
        command.args(options).args(["--", "sh", "-c", script]).arg(program);
        Self::start(&mut command)
    }

    /// With the library preloaded and nothing else, in the session that follows from `variables`.
    fn preloaded(sluice: &Sluice, variables: &[(&str, &str)]) -> Self {
        let nvml = ("libfake_nvml.so", "fake-nvml", "libnvidia-ml.so.1");
        Self::preloaded_beside(sluice, &[nvml], variables)
    }

    /// The same, with these libraries beside the driver's.
    fn preloaded_beside(
        sluice: &Sluice,
        libraries: &[(&str, &str, &str)],
        variables: &[(&str, &str)],
    ) -> Self {
        let program = Self::compile(sluice);
        let driver = sluice.folder().join("driver");
        fs::create_dir_all(&driver).unwrap();
        let cuda = ("libfake_cuda.so", "fake-cuda", "libcuda.so.1");
        for (file, package, name) in libraries.iter().copied().chain([cuda]) {
            let _ = symlink(sluice.built(file, package), driver.join(name));
        }
        let mut command = sluice.command_of("sh");
        command
            .args(["-c", r#"echo "$$ none"; exec "$0""#])
            .arg(program)
            .env("LD_LIBRARY_PATH", driver)
            .env("LD_PRELOAD", sluice.built("libcuda_limiter.so", "cuda-limiter"))
            .envs(variables.iter().copied());
        Self::start(&mut command)
    }

    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let (pid, session) = line.trim_end().split_once(' ').unwrap();
        let (pid, session) = (pid.parse().unwrap(), PathBuf::from(session));
        let mut program = Self { child, input, output, session, pid };
        assert_eq!(program.line(), "ready 0");
        program
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Tells it something and gives its answer.
    fn tell(&mut self, what: &str) -> String {
        writeln!(self.input.as_ref().unwrap(), "{what}").unwrap();
        self.line()
    }

    fn name(&self) -> String {
        self.session.file_name().unwrap().to_string_lossy().into_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The end of its input is its end.
        self.input = None;
        let _ = self.child.wait();
    }
}

fn status(sluice: &Sluice) -> Value {
    let (code, stdout, stderr) = outcome(sluice.command().args(["status", "--json"]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).unwrap()
}

/// The session with that process.
fn session_of(status: &Value, pid: u32) -> Value {
    let has = |session: &&Value| {
        let devices = session["devices"].as_array().unwrap();
        let mut processes =
            devices.iter().flat_map(|device| device["processes"].as_array().unwrap());
        processes.any(|process| process["pid"] == pid)
    };
    status["sessions"].as_array().unwrap().iter().find(has).unwrap().clone()
}

fn device_of(sluice: &Sluice, program: &Program) -> Value {
    let session = session_of(&status(sluice), program.pid);
    assert_eq!(session["devices"].as_array().unwrap().len(), 1, "{session}");
    session["devices"][0].clone()
}

/// The lines of `sluice status` about one session.
fn lines_of(sluice: &Sluice, program: &Program) -> String {
    let (code, stdout, _) = outcome(sluice.command().arg("status"));
    assert_eq!(code, 0);
    let mut lines = stdout.lines().skip_while(|line| !line.starts_with(&program.name()));
    let first = lines.next().unwrap_or_else(|| panic!("{} is not in {stdout}", program.name()));
    let rest = lines.take_while(|line| line.starts_with(' '));
    std::iter::once(first).chain(rest).map(|line| format!("{line}\n")).collect()
}

fn limit(sluice: &Sluice, session: &str, options: &[&str]) -> (i32, String, String) {
    outcome(sluice.command().args(["limit", session]).args(options))
}

#[test]
fn a_running_program_is_given_more_and_less() {
    let sluice = Sluice::new();
    let mut program = Program::run(&sluice, &["--mem", "2GiB"]);
    assert_eq!(program.tell("take 1024"), DONE);
    assert_eq!(program.tell("take 1024"), REFUSED);
    assert_eq!(program.tell("info"), "2048 512");

    let (code, stdout, stderr) = limit(&sluice, &program.name(), &["--mem", "4GiB"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(
        stdout,
        format!("{}: memory was 2GiB, is now 4GiB\n", DEVICE.to_lowercase().replace("gpu", "GPU"))
    );
    assert_eq!(program.tell("take 1024"), DONE, "the next allocation sees it");
    assert_eq!(program.tell("info"), "4096 1536");

    // By the program's own id, below what it uses.
    let (code, stdout, _) = limit(&sluice, &program.pid.to_string(), &["--mem", "1GiB"]);
    assert_eq!(code, 0);
    assert!(
        stdout.contains("2560MiB is in use: growth is refused until 1536MiB of it"),
        "{stdout}"
    );
    assert_eq!(program.tell("take 1"), REFUSED);
    let memory = &device_of(&sluice, &program)["memory"];
    assert_eq!(memory["limit"], GIB);
    assert_eq!(memory["used"], 2 * GIB + CONTEXT);
    assert_eq!((&memory["over"], &memory["left"]), (&Value::from(GIB + CONTEXT), &Value::from(0)));
    assert_eq!(memory["growth_refused"], true);
    let lines = lines_of(&sluice, &program);
    assert!(lines.contains("OVER by 1536MiB: growth refused"), "{lines}");

    // What it had, it still has; what it gives back, it may have again.
    assert_eq!(program.tell("give"), DONE);
    assert_eq!(program.tell("take 1"), REFUSED);
    assert_eq!(program.tell("give"), DONE);
    assert_eq!(program.tell("take 512"), DONE);
    assert_eq!(program.tell("take 1"), REFUSED);
    assert_eq!(device_of(&sluice, &program)["memory"]["growth_refused"], false);
}

#[test]
fn percentages_are_of_the_device() {
    let sluice = Sluice::new();
    let mut program = Program::run(&sluice, &["--mem", "12.5%"]);
    assert_eq!(device_of(&sluice, &program)["memory"]["limit"], 2 * GIB);
    assert_eq!(program.tell("info"), "2048 1536");
    let sluice_pid = program.child.id().to_string();
    let (code, _, stderr) = limit(&sluice, &sluice_pid, &["--mem", "25%", "--device", "0"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(program.tell("info"), "4096 3584");
}

/// What `tenant dense` tells of its progress: seconds, kernels.
fn progress(output: &mut impl BufRead) -> Option<(f64, f64)> {
    loop {
        let mut line = String::new();
        if output.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        let line: Value = serde_json::from_str(&line).unwrap();
        if let (Some(elapsed), Some(kernels)) = (line["elapsed"].as_f64(), line["kernels"].as_f64())
        {
            return Some((elapsed, kernels));
        }
    }
}

#[test]
fn a_share_changes_while_the_program_runs() {
    let sluice = Sluice::new();
    let mut child = sluice
        .run(&["--fake-gpu", "--device", "0", "--daemon", "none", "--"])
        .arg(sluice.built("tenant", "tenant"))
        .args(["dense", "--kernel-us", "1000", "--seconds", "7", "--progress"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    // Kernels a second, from the first line after now on.
    let mut rate = || {
        let first = progress(&mut output).unwrap();
        let mut last = first;
        while last.0 < first.0 + 1.0 {
            last = progress(&mut output).unwrap();
        }
        (last.1 - first.1) / (last.0 - first.0)
    };
    let session = child.id().to_string();
    let change = |options: &[&str], was: &str, is: &str| {
        let (code, stdout, stderr) = limit(&sluice, &session, options);
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(stdout.contains(&format!("compute was {was}, is now {is}\n")), "{stdout}");
    };
    let free = rate();
    let (_, status, _) = outcome(sluice.command().arg("status"));
    assert!(status.contains("memory  no limit, 512"), "{status}");
    assert!(status.contains("compute no limit\n"), "{status}");
    change(&["--compute", "15"], "no limit", "15% fixed");
    let slow = rate();
    change(&["--compute", "75%"], "15% fixed", "75% fixed");
    let fast = rate();
    change(&["--policy", "none"], "75% fixed", "no limit");
    let lifted = rate();
    drop(output);
    let _ = child.wait().unwrap();
    // On a machine that has other things to do, the figures are not near to the shares.
    let rates = format!("{free} kernels a second, then {slow}, {fast}, {lifted}");
    assert!(slow < 0.4 * free && fast > 2.5 * slow, "{rates}");
    assert!(lifted > 1.1 * fast && lifted > 0.8 * free, "{rates}");
}

#[test]
fn a_memory_limit_comes_and_goes_while_the_program_runs() {
    for options in [&["--compute", "50"][..], &[]] {
        let sluice = Sluice::new();
        let mut program = Program::run(&sluice, options);
        assert_eq!(program.tell("take 1024"), DONE);
        assert_eq!(program.tell("info"), format!("16384 {}", 16384 - 1536));
        let memory = &device_of(&sluice, &program)["memory"];
        assert_eq!((&memory["limit"], &memory["left"]), (&Value::Null, &Value::Null));
        assert_eq!(memory["used"], GIB + CONTEXT);
        assert_eq!(memory["growth_refused"], false);

        let (code, stdout, stderr) = limit(&sluice, &program.name(), &["--mem", "2GiB"]);
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(stdout.ends_with(": memory was no limit, is now 2GiB\n"), "{stdout}");
        assert_eq!(program.tell("info"), "2048 512");
        assert_eq!(program.tell("take 512"), DONE);
        assert_eq!(program.tell("take 2"), REFUSED);

        assert_eq!(limit(&sluice, &program.name(), &["--no-mem"]).0, 0);
        assert_eq!(program.tell("take 4096"), DONE);
        // Below what is in use.
        let (code, stdout, _) = limit(&sluice, &program.name(), &["--mem", "5GiB"]);
        assert_eq!(code, 0);
        assert!(stdout.contains("6GiB is in use: growth is refused until 1GiB"), "{stdout}");
        assert_eq!(program.tell("take 2"), REFUSED);
        let lines = lines_of(&sluice, &program);
        assert!(lines.contains("OVER by 1GiB: growth refused"), "{lines}");
        // Everything it took before the limit is known, and can be given back.
        for _ in 0..3 {
            assert_eq!(program.tell("give"), DONE);
        }
        assert_eq!(device_of(&sluice, &program)["memory"]["used"], CONTEXT);

        let (code, stdout, stderr) = limit(&sluice, &program.name(), &["--no-mem"]);
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(stdout.ends_with(": memory was 5GiB, is now no limit\n"), "{stdout}");
        assert_eq!(program.tell("take 8192"), DONE);
    }
}

#[test]
fn a_part_on_the_host_comes_and_goes_with_the_limit() {
    let sluice = Sluice::new();
    let mut program = Program::run(&sluice, &[]);
    let name = program.name();
    let (code, stdout, _) = limit(&sluice, &name, &["--mem", "24GiB", "--mem-real", "2GiB"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("no limit, is now 24GiB (2GiB on the device)"), "{stdout}");
    assert_eq!(program.tell("take 4096"), DONE);
    let kinds = &device_of(&sluice, &program)["memory"]["by_kind"];
    assert_eq!((&kinds["oversubscribed"], &kinds["data"]), (&(4 * GIB).into(), &0.into()));
    assert_eq!(limit(&sluice, &name, &["--no-mem"]).0, 0);
    assert_eq!(program.tell("take 4096"), DONE);
    let memory = &device_of(&sluice, &program)["memory"];
    assert_eq!((&memory["by_kind"]["data"], &memory["real"]), (&(4 * GIB).into(), &Value::Null));
}

/// A limit of one device, and a program that uses another; then one more program of the session.
#[test]
fn a_session_with_a_limit_elsewhere_is_given_one_here() {
    let sluice = Sluice::new();
    let unique = format!("test-{}", sluice.folder().display());
    let elsewhere = format!(r#"{{"{OTHER}": "1GiB"}}"#);
    let variables =
        [("VGPU_POD_UID", unique.as_str()), ("TENSOR_FUSION_CUDA_MEM_LIMIT", &elsewhere)];
    let mut first = Program::preloaded(&sluice, &variables);
    let mut second = Program::preloaded(&sluice, &variables);
    assert_eq!((first.tell("take 1024"), second.tell("take 1024")), (DONE.into(), DONE.into()));
    let session = session_of(&status(&sluice), first.pid)["session"].clone();
    let session = session.as_str().unwrap();
    let (code, _, stderr) = limit(&sluice, session, &["--mem", "4GiB"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!((first.tell("info"), second.tell("info")), ("4096 1024".into(), "4096 1024".into()));
    let mut third = Program::preloaded(&sluice, &variables);
    assert_eq!(third.tell("info"), "4096 512");
    assert_eq!(first.tell("take 512"), DONE);
    for program in [&mut first, &mut second, &mut third] {
        assert_eq!(program.tell("take 2"), REFUSED);
    }
    drop((first, second));
    remove(&sluice, third);
}

#[test]
fn the_settings_of_a_run_are_in_its_status() {
    let sluice = Sluice::new();
    let options = [
        "--mem",
        "24GiB",
        "--mem-real",
        "50%",
        "--compute",
        "30",
        "--soft",
        "60",
        "--weight",
        "7",
        "--priority",
        "low",
    ];
    let program = Program::run(&sluice, &options);
    let device = device_of(&sluice, &program);
    assert_eq!(device["memory"]["limit"], 24 * GIB);
    assert_eq!(device["memory"]["real"], 8 * GIB);
    let compute = serde_json::json!({
        "policy": "balance", "share_ppm": 300_000, "soft_ppm": 600_000, "weight": 7,
        "priority": "low", "density_ppm": null,
    });
    assert_eq!(device["compute"], compute);
    let lines = lines_of(&sluice, &program);
    assert!(lines.contains("memory  24GiB (8GiB on the device), 512MiB used"), "{lines}");
    assert!(lines.contains("30% guaranteed, at most 60%, weight 7, priority low"), "{lines}");
    assert!(lines.contains("on_demand"), "{lines}");

    let (code, stdout, stderr) = limit(
        &sluice,
        &program.name(),
        &["--compute", "40", "--policy", "fixed", "--priority", "high", "--mem", "8GiB"],
    );
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.contains("memory was 24GiB (8GiB on the device), is now 8GiB"), "{stdout}");
    assert!(stdout.contains("priority low, is now 40% fixed"), "{stdout}");
    let compute = &device_of(&sluice, &program)["compute"];
    assert_eq!((&compute["policy"], &compute["share_ppm"]), (&"fixed".into(), &400_000.into()));
    assert_eq!(compute["soft_ppm"], Value::Null);
}

#[test]
fn the_json_has_one_shape() {
    let sluice = Sluice::new();
    let mut program = Program::run(&sluice, &["--mem", "2GiB"]);
    assert_eq!(program.tell("take 64"), DONE);
    let status = status(&sluice);
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&status), ["damaged", "sessions"]);
    let session = session_of(&status, program.pid);
    assert_eq!(keys(&session), ["devices", "directory", "session", "uid"]);
    assert_eq!(session["directory"], program.session.to_str().unwrap());
    assert_eq!(session["uid"], rustix::process::getuid().as_raw());
    let device = &session["devices"][0];
    assert_eq!(keys(device), ["compute", "memory", "processes", "uuid"]);
    assert_eq!(device["uuid"], DEVICE);
    let settings = ["density_ppm", "policy", "priority", "share_ppm", "soft_ppm", "weight"];
    assert_eq!(keys(&device["compute"]), settings);
    assert_eq!(device["compute"]["policy"], "none");
    let kinds =
        ["array", "context", "data", "driver", "graph", "headroom", "oversubscribed", "pool"];
    let memory = &device["memory"];
    let figures =
        ["by_kind", "growth_refused", "left", "limit", "on_device", "over", "real", "used"];
    assert_eq!(keys(memory), figures);
    assert_eq!(keys(&memory["by_kind"]), kinds);
    assert_eq!(memory["by_kind"]["data"], 64 * MIB);
    assert_eq!(memory["by_kind"]["context"], CONTEXT);
    assert_eq!((&memory["real"], &memory["over"]), (&Value::Null, &Value::from(0)));
    assert_eq!(memory["left"], 2 * GIB - CONTEXT - 64 * MIB);
    assert_eq!(device["processes"].as_array().unwrap().len(), 1);
    let process = &device["processes"][0];
    let fields = [
        "by_kind",
        "bytes",
        "charged_us",
        "density_ppm",
        "holding",
        "host_pid",
        "name",
        "pid",
        "waiting",
    ];
    assert_eq!(keys(process), fields);
    assert_eq!(process["name"], "on_demand");
    assert_eq!((&process["bytes"], &process["holding"]), (&memory["used"], &Value::from(false)));
    assert_eq!(process["by_kind"], memory["by_kind"]);
}

#[test]
fn a_session_without_sluice_run_is_listed_and_changed() {
    let sluice = Sluice::new();
    let unique = format!("test-{}", sluice.folder().display());
    let mut program = Program::preloaded(
        &sluice,
        &[("VGPU_POD_UID", &unique), ("TENSOR_FUSION_CUDA_MEM_LIMIT", r#"{"0": "12.5%"}"#)],
    );
    assert_eq!(program.tell("info"), "2048 1536");
    let session = session_of(&status(&sluice), program.pid);
    let name = session["session"].as_str().unwrap().to_owned();
    assert!(name.starts_with("env-"), "{name}");
    let (code, _, stderr) = limit(&sluice, &program.pid.to_string(), &["--mem", "3GiB"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(program.tell("info"), "3072 2560");
    let directory = session["directory"].as_str().unwrap().to_owned();
    drop(program);
    // Nobody is in it now; its limits are still there for the next program.
    let lists = |arguments: &[&str]| outcome(sluice.command().arg("status").args(arguments)).1;
    assert!(!lists(&[]).contains(&name) && lists(&["--all"]).contains(&name));
    fs::remove_dir_all(directory).unwrap();
}

/// Removes the session of a program that was started without `sluice run`.
fn remove(sluice: &Sluice, program: Program) {
    let session = session_of(&status(sluice), program.pid);
    drop(program);
    fs::remove_dir_all(session["directory"].as_str().unwrap()).unwrap();
}

#[test]
fn without_nvml_the_driver_tells_the_size() {
    if Path::new("/proc/driver/nvidia/version").exists() {
        return; // There is an NVML.
    }
    let sluice = Sluice::new();
    let unique = format!("test-{}", sluice.folder().display());
    let half = format!(r#"{{"{DEVICE}": "50%"}}"#);
    let variables = [("VGPU_POD_UID", unique.as_str()), ("TENSOR_FUSION_CUDA_MEM_LIMIT", &half)];
    let mut program = Program::preloaded_beside(&sluice, &[], &variables);
    assert!(program.tell("info").starts_with("8192 "));
    remove(&sluice, program);
}

#[test]
fn variables_of_other_systems_oversubscribe_and_balance() {
    let sluice = Sluice::new();
    for (number, (name, value, real)) in [
        ("CUDA_MEM_RATIO_0", "2", 10 * GIB),
        ("CUDA_MEM_OVERSOLD", "true", 16 * GIB),
        ("CUDA_OVERSUBSCRIBE", "1", 16 * GIB),
    ]
    .into_iter()
    .enumerate()
    {
        let unique = format!("test-{number}-{}", sluice.folder().display());
        let variables = [
            ("VGPU_POD_UID", unique.as_str()),
            ("CUDA_MEM_LIMIT_0", "20g"),
            (name, value),
            ("CUDA_CORE_LIMIT", "30"),
            ("CUDA_CORE_SOFT_LIMIT_0", "60"),
            ("CUDA_TASK_PRIORITY", "1"),
        ];
        let program = Program::preloaded(&sluice, &variables);
        let device = device_of(&sluice, &program);
        let memory = &device["memory"];
        assert_eq!(
            (&memory["limit"], &memory["real"]),
            (&(20 * GIB).into(), &real.into()),
            "{name}"
        );
        assert_eq!(device["compute"]["policy"], "balance");
        assert_eq!(device["compute"]["soft_ppm"], 600_000);
        assert_eq!(device["compute"]["priority"], "low");
        remove(&sluice, program);
    }
}

#[test]
fn a_damaged_page_is_named_and_stops_nothing_else() {
    let sluice = Sluice::new();
    let mut program = Program::run(&sluice, &["--mem", "2GiB"]);
    let good = program.session.join(format!("{DEVICE}.page"));
    let bad = program.session.join(format!("{OTHER}.page"));
    let size = fs::metadata(&good).unwrap().len();
    for content in [b"not a page".to_vec(), vec![0x5a; usize::try_from(size).unwrap()]] {
        fs::write(&bad, content).unwrap();
        let status = status(&sluice);
        let damaged = status["damaged"].as_array().unwrap();
        let named = damaged.iter().find(|damaged| damaged["page"] == bad.to_str().unwrap());
        let named = named.unwrap_or_else(|| panic!("{bad:?} is not in {damaged:?}"));
        assert_eq!(named["session"], program.name());
        assert!(named["problem"].as_str().unwrap().contains(OTHER), "{named}");
        assert_eq!(session_of(&status, program.pid)["devices"][0]["memory"]["limit"], 2 * GIB);
        let (_, stdout, _) = outcome(sluice.command().arg("status"));
        assert!(stdout.contains(&format!("DAMAGED {}", program.name())), "{stdout}");
        // Nothing is changed where not everything can be.
        let (code, stdout, stderr) = limit(&sluice, &program.name(), &["--mem", "1GiB"]);
        assert_eq!((code, stdout.as_str()), (70, ""), "{stderr}");
        assert!(stderr.contains(bad.to_str().unwrap()), "{stderr}");
        assert_eq!(program.tell("info"), "2048 1536");
    }
    let (code, _, stderr) = limit(&sluice, &program.name(), &["--mem", "1GiB", "--device", DEVICE]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(program.tell("info"), "1024 512");
}

#[test]
fn what_cannot_be_changed_is_refused_and_named() {
    let sluice = Sluice::new();
    let program = Program::run(&sluice, &["--mem", "2GiB"]);
    let name = program.name();
    let cases: [(&[&str], i32, &str); 13] = [
        (&[], 2, "nothing to change"),
        (&["--mem", "0"], 2, "--mem"),
        (&["--mem", "101%"], 2, "--mem"),
        (&["--mem", "17GiB"], 2, "--mem-real"),
        (&["--mem", "24GiB", "--mem-real", "17GiB"], 2, "--mem-real"),
        (&["--mem-real", "3GiB"], 2, "is more than --mem"),
        (&["--soft", "30"], 2, "has no compute limit: --compute says"),
        (&["--policy", "none", "--compute", "3"], 2, "--policy none"),
        (&["--no-mem", "--mem", "1GiB"], 2, "--no-mem"),
        (&["--weight", "0"], 2, "--weight"),
        (&["--device", "1", "--mem", "1GiB"], 2, OTHER_UNUSED),
        (&["--device", "9", "--mem", "1GiB"], 2, "is no device here"),
        (&["--device", "GPU-77", "--mem", "1GiB"], 2, OTHER_UNUSED),
    ];
    for (options, expected, named) in cases {
        let (code, stdout, stderr) = limit(&sluice, &name, options);
        assert_eq!((code, stdout.as_str()), (expected, ""), "{options:?}: {stderr}");
        assert!(stderr.contains(named), "{options:?}: {stderr}");
    }
    for session in ["nothing-like-it", "4294967290", ""] {
        let (code, _, stderr) = limit(&sluice, session, &["--mem", "1GiB"]);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains("no such session"), "{stderr}");
    }
    assert_eq!(device_of(&sluice, &program)["memory"]["limit"], 2 * GIB);
    let timed = Program::run(&sluice, &["--compute", "50"]);
    let (code, _, stderr) = limit(&sluice, &timed.name(), &["--mem-real", "1GiB"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("has no memory limit that --mem-real"), "{stderr}");
    // A process that is in no session, and one that has used no device.
    let (code, _, stderr) = limit(&sluice, &std::process::id().to_string(), &["--mem", "1GiB"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("what can be limited is what 'sluice run' starts"), "{stderr}");
    let mut command = sluice.run(&["--fake-gpu", "--daemon", "none", "--", "sleep", "60"]);
    let mut idle = command.spawn().unwrap();
    let named = idle.id().to_string();
    let refused = || limit(&sluice, &named, &["--mem", "1GiB"]);
    eventually("the session is there", || refused().2.contains("has used no device yet"));
    assert_eq!(refused().0, 2);
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_child(&idle),
        rustix::process::Signal::TERM,
    );
    let _ = idle.wait();
}

const OTHER_UNUSED: &str = "is not one device that session";

//! A program that the test controls, and what `sluice` shows of it.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::support::{Sluice, compiler, outcome, text};

pub(crate) const DEVICE: &str = "GPU-5a1ce000-0000-4000-8000-000000000000";
pub(crate) const OTHER: &str = "GPU-5a1ce000-0000-4000-8000-000000000001";
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
/// The size of a context on the simulated device.
pub(crate) const CONTEXT: u64 = 512 * MIB;
/// `CUDA_ERROR_OUT_OF_MEMORY`
pub(crate) const REFUSED: &str = "2";
pub(crate) const DONE: &str = "0";

/// `tests/programs/on_demand.c`, which carries out the commands that it reads.
pub(crate) struct Program {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The session's directory.
    pub(crate) session: PathBuf,
    /// The program itself.
    pub(crate) pid: u32,
}

impl Program {
    /// The compiled program; it is compiled once for all tests.
    pub(crate) fn compiled() -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/on_demand.c");
        let mut of = DefaultHasher::new();
        (fs::read(&source).unwrap(), compiler()).hash(&mut of);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let program = folder.join(format!("{:016x}/on_demand", of.finish()));
        if program.exists() {
            return program;
        }
        // Compiled in another folder and then moved: two tests may need it at once.
        let unfinished = tempfile::tempdir_in(folder).unwrap();
        let made = unfinished.path().join("on_demand");
        let said = Command::new(compiler())
            .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&made, &source])
            .arg("-ldl")
            .output()
            .unwrap_or_else(|error| panic!("{:?}: {error}: a C compiler is needed", compiler()));
        assert!(said.status.success(), "{}", text(&said.stderr));
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::rename(&made, &program).unwrap();
        program
    }

    /// Starts it under `sluice run` with these options.
    pub(crate) fn run(sluice: &Sluice, options: &[&str]) -> Self {
        let program = Self::compiled();
        let mut command = sluice.run(&["--fake-gpu", "--device", "0", "--daemon", "none"]);
        let script = r#"echo "$$ $SLUICE_SESSION_DIR"; exec "$0""#;
        command.args(options).args(["--", "sh", "-c", script]).arg(program);
        Self::start(&mut command)
    }

    /// Starts it with only the library preloaded, in the session that follows from `variables`.
    pub(crate) fn preloaded(sluice: &Sluice, variables: &[(&str, &str)]) -> Self {
        let nvml = ("libfake_nvml.so", "fake-nvml", "libnvidia-ml.so.1");
        Self::preloaded_beside(sluice, &[nvml], variables)
    }

    /// As [`Self::preloaded`], with these libraries beside the driver's.
    pub(crate) fn preloaded_beside(
        sluice: &Sluice,
        libraries: &[(&str, &str, &str)],
        variables: &[(&str, &str)],
    ) -> Self {
        let program = Self::compiled();
        let driver = sluice.folder().join("driver");
        fs::create_dir_all(&driver).unwrap();
        let cuda = ("libfake_cuda.so", "fake-cuda", "libcuda.so.1");
        for (file, package, name) in libraries.iter().copied().chain([cuda]) {
            let _ = symlink(sluice.built(file, package), driver.join(name));
        }
        // Under a name that the loader can read as one.
        let limiter = driver.join("libcuda_limiter.so");
        let _ = symlink(sluice.built("libcuda_limiter.so", "cuda-limiter"), &limiter);
        let mut command = sluice.command_of("sh");
        command
            .args(["-c", r#"echo "$$ none"; exec "$0""#])
            .arg(program)
            .env("LD_LIBRARY_PATH", driver)
            .env("LD_PRELOAD", limiter)
            .envs(variables.iter().copied());
        Self::start(&mut command)
    }

    pub(crate) fn start(command: &mut Command) -> Self {
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

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends it a command and returns its answer.
    pub(crate) fn tell(&mut self, what: &str) -> String {
        writeln!(self.input.as_ref().unwrap(), "{what}").unwrap();
        self.line()
    }

    /// The session's name: that of its directory, without the part that nobody may know.
    pub(crate) fn name(&self) -> String {
        let name = self.session.file_name().unwrap().to_string_lossy().into_owned();
        name.split('.').next().unwrap().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program ends when its input ends.
        self.input = None;
        let _ = self.child.wait();
    }
}

pub(crate) fn status(sluice: &Sluice) -> Value {
    let (code, stdout, stderr) = outcome(sluice.command().args(["status", "--json"]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).unwrap()
}

/// This user's session with that process.
pub(crate) fn session_of(status: &Value, pid: u32) -> Value {
    let user = rustix::process::getuid().as_raw();
    let has = |session: &&Value| {
        if session["uid"] != user {
            return false;
        }
        let devices = session["devices"].as_array().unwrap();
        let mut processes =
            devices.iter().flat_map(|device| device["processes"].as_array().unwrap());
        processes.any(|process| process["pid"] == pid)
    };
    status["sessions"].as_array().unwrap().iter().find(has).unwrap().clone()
}

pub(crate) fn device_of(sluice: &Sluice, program: &Program) -> Value {
    let session = session_of(&status(sluice), program.pid);
    assert_eq!(session["devices"].as_array().unwrap().len(), 1, "{session}");
    session["devices"][0].clone()
}

/// What `sluice status` says about one session.
pub(crate) fn lines_of(sluice: &Sluice, program: &Program) -> String {
    let (code, stdout, stderr) = outcome(sluice.command().args(["status", &program.name()]));
    assert_eq!(code, 0, "{stderr}");
    stdout
}

pub(crate) fn limit(sluice: &Sluice, session: &str, options: &[&str]) -> (i32, String, String) {
    outcome(sluice.command().args(["limit", session]).args(options))
}

/// Removes the session of a program that was started without `sluice run`.
pub(crate) fn remove(sluice: &Sluice, program: Program) {
    let session = session_of(&status(sluice), program.pid);
    drop(program);
    fs::remove_dir_all(session["directory"].as_str().unwrap()).unwrap();
}

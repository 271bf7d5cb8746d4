//! Shared by the tests of `sluice`: a clean environment, and the built files.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The folder with `sluice` and what belongs to it: that of this build, or another one, as for the limiter's tests.
fn parts() -> PathBuf {
    let given = std::env::var_os("SLUICE_TEST_PARTS").map(PathBuf::from);
    given.unwrap_or_else(|| Path::new(env!("CARGO_BIN_EXE_sluice")).parent().unwrap().to_owned())
}

/// `sluice` itself.
pub(crate) fn program() -> PathBuf {
    parts().join("sluice")
}

/// The C compiler, whose programs run beside these parts.
pub(crate) fn compiler() -> OsString {
    std::env::var_os("SLUICE_TEST_CC").unwrap_or_else(|| "cc".into())
}

/// Runs `sluice` with its own simulated node and none of the caller's settings.
pub(crate) struct Sluice {
    folder: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

impl Sluice {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    /// A folder of this test alone.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn pid_file(&self) -> PathBuf {
        self.folder().join("pid")
    }

    /// Sets a variable for all later commands.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn command(&self) -> Command {
        for (file, package) in [
            ("libcuda_limiter.so", "cuda-limiter"),
            ("libfake_cuda.so", "fake-cuda"),
            ("libfake_nvml.so", "fake-nvml"),
            ("fake-nvidia-smi", "fake-smi"),
        ] {
            self.built(file, package);
        }
        self.command_of(program())
    }

    /// `sluice run` with `options`; the caller adds `--` and the program. A daemon of the machine
    /// is not used.
    pub(crate) fn run(&self, options: &[&str]) -> Command {
        let mut command = self.command();
        command.env("SLUICE_DAEMON", "none").arg("run").args(options);
        command
    }

    /// Any program in the clean environment.
    pub(crate) fn command_of(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command
            .env_clear()
            .env("PATH", path)
            .env("XDG_RUNTIME_DIR", self.folder())
            .env("SLUICE_FAKE_NODE", self.folder().join("node"))
            .env("PIDFILE", self.pid_file())
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// A file that another package of the workspace builds beside `sluice`.
    pub(crate) fn built(&self, file: &str, package: &str) -> PathBuf {
        let path = parts().join(file);
        assert!(
            path.is_file(),
            "{} is missing: run `cargo build -p {package}` first",
            path.display()
        );
        path
    }
}

/// Exit status (or 1000 + signal), stdout, stderr.
pub(crate) fn outcome(command: &mut Command) -> (i32, String, String) {
    use std::os::unix::process::ExitStatusExt;
    let output = command.output().unwrap();
    let code = output.status.code().or(output.status.signal().map(|signal| 1000 + signal));
    (code.unwrap(), text(&output.stdout), text(&output.stderr))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether this process, and so what it starts, ignores a signal.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    u64::from_str_radix(mask, 16).unwrap() & (1 << (signal - 1)) != 0
}

/// Waits until something holds, even on a slow machine.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: not within 60 s");
        sleep(Duration::from_millis(20));
    }
}

/// Makes a session look as if nobody had begun to use it for long. Its directory may be gone.
pub(crate) fn age(session: &Path, by: Duration) {
    let long_ago = std::time::SystemTime::now() - by;
    if let Ok(used) = std::fs::File::open(session.join("used")) {
        used.set_modified(long_ago).unwrap();
    }
}

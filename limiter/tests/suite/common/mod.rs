//! Helpers of the limiter's end-to-end tests: a stage with its own simulated GPU and session, and child processes that
//! cannot hang.

mod machine;
mod skipped;

pub(crate) use machine::{Busy, Measured};
pub(crate) use skipped::skipped;

use fake_node::older::{self, Older};
use limits::env::GATES;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::hash::{Hash, Hasher};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
/// Size of a context on the simulated GPU.
pub(crate) const CONTEXT: u64 = 512 * MIB;
/// `CUDA_ERROR_OUT_OF_MEMORY`
pub(crate) const OUT_OF_MEMORY: &str = "CUDA_ERROR_OUT_OF_MEMORY";
pub(crate) const UUIDS: [&str; 2] =
    ["GPU-5a1ce000-0000-4000-8000-000000000000", "GPU-5a1ce000-0000-4000-8000-000000000001"];

pub(crate) const MEMORY_LIMIT: &str = "TENSOR_FUSION_CUDA_MEM_LIMIT";
pub(crate) const COMPUTE_LIMIT: &str = "TENSOR_FUSION_CUDA_UP_LIMIT";
pub(crate) const SESSION_DIR: &str = "SLUICE_SESSION_DIR";

const LIMITER: &str = "libcuda_limiter.so";

/// No child lives longer than this.
const PATIENCE: Duration = Duration::from_secs(90);

/// A folder with other builds of the parts, such as `cargo xtask old-glibc` makes.
const PARTS: &str = "SLUICE_TEST_PARTS";
/// The C compiler.
const COMPILER: &str = "SLUICE_TEST_CC";

/// A file of the workspace's build, beside the test's own directory.
pub(crate) fn built(file: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let parts = std::env::var_os(PARTS).map(PathBuf::from);
    let path = parts.as_deref().or(test.parent().and_then(Path::parent)).unwrap().join(file);
    assert!(
        path.is_file(),
        "{} is missing: run `cargo build --workspace` first, with the profile of the tests",
        path.display()
    );
    path
}

/// A simulated node of its own, and a session on it.
pub(crate) struct Stage {
    folder: tempfile::TempDir,
    /// The driver's branch, if it is an older one.
    branch: Option<&'static str>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("sluice-test-").tempdir_in("/dev/shm");
        let stage = Self { folder: folder.unwrap(), branch: None };
        let driver = stage.driver();
        std::fs::create_dir(&driver).unwrap();
        for (file, names) in [
            ("libfake_cuda.so", ["libcuda.so.1", "libcuda.so"]),
            ("libfake_nvml.so", ["libnvidia-ml.so.1", "libnvidia-ml.so"]),
        ] {
            for name in names {
                symlink(built(file), driver.join(name)).unwrap();
            }
        }
        symlink(built(LIMITER), stage.limiter()).unwrap();
        stage.session("session");
        stage
    }

    /// A stage with an older driver.
    pub(crate) fn of_driver(older: &'static Older) -> Self {
        let stage = Self { branch: Some(older.branch), ..Self::new() };
        for entry in std::fs::read_dir(stage.driver()).unwrap() {
            let path = entry.unwrap().path();
            let taken = older.taken_out_of(&std::fs::read(&path).unwrap());
            // The links lead to the build's files.
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, taken).unwrap();
        }
        stage
    }

    /// A folder of this stage alone.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of the simulated driver.
    pub(crate) fn driver(&self) -> PathBuf {
        self.folder().join("driver")
    }

    /// The limiter, under a path that the loader can parse: the build folder's path may contain a space.
    pub(crate) fn limiter(&self) -> PathBuf {
        self.folder().join(LIMITER)
    }

    /// The file of the simulated node.
    pub(crate) fn node(&self) -> PathBuf {
        self.folder().join("node")
    }

    /// The directory of a session; created if it does not exist.
    pub(crate) fn session(&self, name: &str) -> PathBuf {
        let path = self.folder().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// A program with the simulated driver, without the caller's settings and without limits.
    pub(crate) fn native(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            // Variables that other tools need (a home, a locale) stay.
            if ["SLUICE", "CUDA", "TENSOR", "VCUDA", "VGPU", "LD_", "TF_", "HYPERVISOR", "GPU_"]
                .iter()
                .any(|prefix| text.starts_with(prefix))
                // The person who runs the tests chooses where gates are in all of them.
                && text != GATES
            {
                command.env_remove(&name);
            }
        }
        command
            .env("LD_LIBRARY_PATH", self.driver())
            .env("SLUICE_FAKE_NODE", self.node())
            .env("XDG_RUNTIME_DIR", self.folder())
            .stdin(Stdio::null());
        if let Some(branch) = self.branch {
            command.env(older::VARIABLE, branch);
        }
        command
    }

    /// A program under the limiter, in the stage's session.
    pub(crate) fn limited(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.native(program);
        command.env("LD_PRELOAD", self.limiter()).env(SESSION_DIR, self.session("session"));
        command
    }

    /// `sluice run --fake-gpu` with `options`, without a daemon.
    pub(crate) fn run(&self, options: &[&str]) -> Command {
        let mut command = self.native(built("sluice"));
        command.args(["run", "--fake-gpu", "--daemon", "none"]).args(options).arg("--");
        command
    }

    /// Compiles a program of `tests/programs` as `output` for this stage. It is compiled once for all tests, unless it
    /// needs files of this stage.
    pub(crate) fn compile(&self, source: &str, output: &str, arguments: &[&str]) -> PathBuf {
        let path = self.folder().join(output);
        let _ = std::fs::remove_file(&path);
        let own = self.folder().to_str().unwrap();
        if arguments.iter().any(|argument| argument.contains(own)) {
            compile(source, arguments, &path);
        } else {
            symlink(compiled(source, arguments), &path).unwrap();
        }
        path
    }

    /// Like [`Self::compile`], with an option that only this machine's compiler supports: static linking, or a
    /// sanitizer. The program runs on this machine's C library, whatever the others run on. `None` if the compiler
    /// lacks the libraries.
    pub(crate) fn compile_here(&self, source: &str, output: &str, told: &str) -> Option<PathBuf> {
        let path = self.folder().join(output);
        let mut command = compilation("cc".into(), source, &[told], &path);
        command.output().unwrap().status.success().then_some(path)
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

fn compiler() -> OsString {
    std::env::var_os(COMPILER).unwrap_or_else(|| "cc".into())
}

fn compilation(compiler: OsString, source: &str, arguments: &[&str], to: &Path) -> Command {
    let mut command = Command::new(compiler);
    command
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(to)
        .arg(sources().join(source))
        .args(arguments)
        .args(["-ldl", "-lpthread"]);
    command
}

fn compile(source: &str, arguments: &[&str], to: &Path) {
    let said = compilation(compiler(), source, arguments, to)
        .output()
        .unwrap_or_else(|error| panic!("cc: {error}: a C compiler is needed"));
    assert!(said.status.success(), "{}", text(&said.stderr));
}

/// A program of `tests/programs` in the build folder; compiled if it does not exist.
fn compiled(source: &str, arguments: &[&str]) -> PathBuf {
    let mut of = std::hash::DefaultHasher::new();
    for file in [source, "any.h", "driver.h"] {
        std::fs::read(sources().join(file)).unwrap().hash(&mut of);
    }
    (source, arguments, compiler()).hash(&mut of);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join(format!("{source}-{:016x}", of.finish()));
    if program.exists() {
        return program;
    }
    // Compiled under a temporary name: two tests may need it at once.
    let unfinished = tempfile::Builder::new().prefix("cc-").tempdir_in(folder).unwrap();
    let made = unfinished.path().join("program");
    compile(source, arguments, &made);
    std::fs::rename(&made, &program).unwrap();
    program
}

/// How a child ended, and its output.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
    /// How busy the machine was meanwhile.
    pub(crate) busy: Busy,
}

impl Outcome {
    /// Exit status, or 1000 + signal.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().or(self.status.signal().map(|signal| 1000 + signal)).unwrap()
    }

    /// Asserts that the exit status is 0.
    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        self.note_failure(self.code() != 0);
        assert_eq!(self.code(), 0, "{self:#?}");
        self
    }

    /// Asserts that the exit status is 0 and that nothing was reported. Reports about a daemon may be the machine's
    /// fault: the next try decides.
    #[track_caller]
    pub(crate) fn silent(self) -> Self {
        let nothing: [&str; 0] = [];
        let of_itself = self.stderr.lines().any(|line| !is_of_daemon(line));
        self.note_failure(self.code() != 0 || of_itself);
        assert_eq!((self.code(), &self.said()[..]), (0, &nothing[..]), "{self:#?}");
        self
    }

    /// Lines on standard error, without those caused by a stalled machine: that the daemon is gone, and that it is
    /// back.
    pub(crate) fn said(&self) -> Vec<&str> {
        let excused = |line: &&str| self.busy.stood_still() && is_of_daemon(line);
        self.stderr.lines().filter(|line| !excused(line)).collect()
    }

    fn note_failure(&self, failed: bool) {
        if failed {
            note_fault(&format!("{:?}, {}", self.status, self.stderr));
        }
    }

    /// The last line of the output, as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let line = self.stdout.lines().last().unwrap_or_else(|| panic!("no output: {self:#?}"));
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// The value of `name=` in the output.
    #[track_caller]
    pub(crate) fn value(&self, name: &str) -> u64 {
        let found = self
            .stdout
            .split_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no {name}= in {self:#?}"))
    }

    /// Kernels a second, of `tenant dense`.
    #[track_caller]
    pub(crate) fn rate(&self) -> f64 {
        self.json()["rate"].as_f64().unwrap_or_else(|| panic!("no rate: {self:#?}"))
    }

    /// The part of the device's time that kernels of this length took, in percent. A kernel takes the simulated device
    /// exactly its stated time.
    #[track_caller]
    pub(crate) fn percent(&self, kernel_us: f64) -> f64 {
        self.rate() * kernel_us / 1e4
    }

    /// Lines on standard error.
    pub(crate) fn complaints(&self) -> Vec<&str> {
        self.stderr.lines().collect()
    }
}

/// Asserts that allocations within the limit are granted and others refused, without any output.
#[track_caller]
pub(crate) fn holds(outcome: Outcome) {
    let outcome = outcome.silent();
    assert_eq!((outcome.value("little"), outcome.value("much")), (0, 2), "{outcome:#?}");
}

/// Whether the limiter reports that a daemon is gone or back.
fn is_of_daemon(line: &str) -> bool {
    line.starts_with("sluice: daemon at ")
        && (line.contains("own account") || line.contains("it is back"))
}

/// A child in a process group of its own. The group ends with the child.
pub(crate) struct Running {
    child: Child,
    /// Standard output and standard error.
    said: Option<[Reader; 2]>,
    started: Instant,
    measured: Measured,
}

/// A failed test leaves no process behind.
impl Drop for Running {
    fn drop(&mut self) {
        if self.said.is_some() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// Collects the output of a pipe.
struct Reader {
    thread: JoinHandle<()>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Reader {
    fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::<Mutex<Vec<u8>>>::default();
        let read = Arc::clone(&bytes);
        let thread = std::thread::spawn(move || {
            let mut part = [0; 4096];
            loop {
                match pipe.read(&mut part) {
                    Ok(0) => return,
                    Ok(length) => read.lock().unwrap().extend_from_slice(&part[..length]),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}"),
                }
            }
        });
        Self { thread, bytes }
    }

    fn so_far(&self) -> String {
        text(&self.bytes.lock().unwrap())
    }

    fn into_text(self) -> String {
        self.thread.join().unwrap();
        text(&self.bytes.lock().unwrap())
    }
}

/// Starts a child.
#[track_caller]
pub(crate) fn start(command: &mut Command) -> Running {
    let spawned = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = Reader::start(child.stdout.take().unwrap());
    let stderr = Reader::start(child.stderr.take().unwrap());
    let measured = Measured::begin();
    Running { child, said: Some([stdout, stderr]), started: Instant::now(), measured }
}

/// Runs a child to its end.
#[track_caller]
pub(crate) fn outcome(command: &mut Command) -> Outcome {
    start(command).end()
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Its standard output so far.
    pub(crate) fn printed(&self) -> String {
        self.said.as_ref().map_or_else(String::new, |[stdout, _]| stdout.so_far())
    }

    /// Ends the whole group.
    pub(crate) fn kill(&self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
    }

    /// Waits for its end. A child that hangs is killed, and the test fails.
    #[track_caller]
    pub(crate) fn end(mut self) -> Outcome {
        let mut hangs = false;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if self.started.elapsed() > PATIENCE && !hangs {
                hangs = true;
                note_fault("hangs");
                self.kill();
            }
            sleep(Duration::from_millis(5));
        };
        let (took, busy) = (self.started.elapsed(), self.measured.end());
        // Processes that it left behind keep the pipes open.
        self.kill();
        let [stdout, stderr] = self.said.take().unwrap().map(Reader::into_text);
        let outcome = Outcome { status, stdout, stderr, took, busy };
        assert!(!hangs, "still running after {PATIENCE:?}: {outcome:#?}");
        outcome
    }
}

/// Records a fault in a file that `scripts/test.sh` reads: it retries tests of time that fail, but a program that fails
/// or hangs is a fault whatever the next try does.
fn note_fault(what: &str) {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults");
    let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
    let current = std::thread::current();
    writeln!(file, "{}: {}", current.name().unwrap_or("?"), what.trim()).unwrap();
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until a condition holds, on a machine of any speed.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: not within 60 s");
        sleep(Duration::from_millis(5));
    }
    start.elapsed()
}

/// Whether these tests run with gates in streams, unless `SLUICE_GATES=thread` selects the other kind for all of them.
pub(crate) fn gates_are_in_streams() -> bool {
    !std::env::var(GATES).is_ok_and(|gates| gates == "thread")
}

/// Asserts that a program gets no more than `share`, and less only if the machine is busy. Both are percent of the
/// device's time, and `tolerance` is in percentage points.
#[track_caller]
pub(crate) fn is_near(delivered: f64, share: f64, tolerance: f64, busy: Busy, what: &str) {
    let (least, most) = (busy.least(share, tolerance), share + tolerance);
    println!("{what}: {delivered:.2} of {share}, {least:.1} to {most:.1}; {busy:?}");
    let near = (least..=most).contains(&delivered);
    assert!(near, "{what}: {delivered:.1} of {share}, not {least:.1} to {most:.1}; {busy:?}");
}

/// A limit for the first device.
pub(crate) fn first_device(value: impl std::fmt::Display) -> String {
    format!(r#"{{"{}": "{value}"}}"#, UUIDS[0])
}

//! Shared by the benchmarks: loads the driver as a program without the toolkit does, and runs copies of the benchmark
//! with and without the limiter.

use core::ffi::{CStr, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Set in a copy of the benchmark that runs as a worker.
const ROLE: &str = "SLUICE_BENCH_WORKER";

const USAGE: &str =
    "options: --limiter PATH   the library to preload (by default the one of this build)
         --driver system  the driver that the loader finds, through LD_LIBRARY_PATH (by default the
                          simulated one of this build)
         --pairs N        runs with the limiter and without, in turn
         --limit BYTES    the memory limit of device 0
         --count N        calls of a run, processes at once, or mappings
         --old-kernel     the kernel refuses questions about single mappings, as before Linux 6.11";

/// The options of the command line.
pub struct Options {
    limiter: PathBuf,
    /// The simulated driver's folder.
    driver: Option<tempfile::TempDir>,
    pub pairs: usize,
    pub count: Option<usize>,
    limit: String,
}

/// The arguments of this worker; `None` if this process is not a worker.
pub fn worker() -> Option<Vec<String>> {
    std::env::var_os(ROLE)?;
    Some(std::env::args().skip(1).collect())
}

fn built(file: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(Path::parent).unwrap().join(file);
    assert!(
        path.exists(),
        "{} is missing: build the workspace first, or see {USAGE}",
        path.display()
    );
    path
}

impl Options {
    pub fn new(pairs: usize, limit: &str) -> Self {
        let (mut limiter, mut system, mut options) = (None, false, (pairs, None, limit.to_owned()));
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value =
                || arguments.next().unwrap_or_else(|| panic!("{argument}: no value; {USAGE}"));
            match argument.as_str() {
                "--limiter" => limiter = Some(PathBuf::from(value())),
                "--driver" => system = value() == "system",
                "--pairs" => options.0 = value().parse().unwrap(),
                "--count" => options.1 = Some(value().parse().unwrap()),
                "--limit" => options.2 = value(),
                "--old-kernel" => refuse_questions(),
                // `cargo bench` passes it.
                "--bench" => {}
                _ => panic!("{argument}: unknown; {USAGE}"),
            }
        }
        let driver = (!system).then(|| {
            let folder = tempfile::Builder::new().prefix("sluice-bench-").tempdir_in("/dev/shm");
            let folder = folder.unwrap();
            for (file, name) in
                [("libfake_cuda.so", "libcuda.so.1"), ("libfake_nvml.so", "libnvidia-ml.so.1")]
            {
                std::os::unix::fs::symlink(built(file), folder.path().join(name)).unwrap();
            }
            folder
        });
        let limiter = limiter.unwrap_or_else(|| built("libcuda_limiter.so"));
        let limiter = std::fs::canonicalize(&limiter).unwrap();
        Self { limiter, driver, pairs: options.0, count: options.1, limit: options.2 }
    }

    /// The library to preload.
    pub fn limiter(&self) -> &Path {
        &self.limiter
    }

    /// A copy of this benchmark, in the session `session`, or without the limiter.
    pub fn copy(&self, session: Option<&Path>, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(arguments).env(ROLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env_remove("LD_PRELOAD");
        if let Some(driver) = &self.driver {
            command.env("LD_LIBRARY_PATH", driver.path());
            command.env("SLUICE_FAKE_NODE", driver.path().join("node"));
            command.env("SLUICE_FAKE_MEMORY", "128GiB");
        }
        if let Some(session) = session {
            let limit = format!(r#"{{"0": "{}"}}"#, self.limit);
            command
                .env("LD_PRELOAD", &self.limiter)
                .env("SLUICE_SESSION_DIR", session)
                .env("TENSOR_FUSION_CUDA_MEM_LIMIT", limit);
        }
        command
    }
}

/// Makes the kernel refuse queries about single mappings, in this process and its children.
fn refuse_questions() {
    const QUESTION: u32 = 0xc068_6611;
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        step(load, 0, 0),
        step(equal, libc::SYS_ioctl as u32, 3),
        step(load, 24, 0),
        step(equal, QUESTION, 1),
        step(answer, libc::SECCOMP_RET_ERRNO | libc::ENOTTY as u32, 0),
        step(answer, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter lives as long as the calls.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(refused, "there are no seccomp filters here");
}

/// A directory for a session.
pub fn session() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("sluice-bench-").tempdir_in("/dev/shm").unwrap()
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// `CLOCK_MONOTONIC`, which all processes share.
pub fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
}

/// A function of the driver.
fn function(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a handle that `dlopen` has given, and a name.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "the driver has no {name:?}");
    found
}

/// The driver, with a context on device 0.
pub struct Driver {
    alloc: extern "C" fn(*mut u64, usize) -> c_int,
    free: extern "C" fn(u64) -> c_int,
    info: extern "C" fn(*mut usize, *mut usize) -> c_int,
}

fn ok(result: c_int, call: &str) {
    assert_eq!(result, 0, "{call}");
}

/// Loads the driver, if it is not loaded already.
pub fn load() -> *mut c_void {
    // SAFETY: a fixed name; never closed.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "libcuda.so.1 cannot be loaded");
    library
}

impl Driver {
    pub fn start() -> Self {
        let library = load();
        // SAFETY: the driver's functions have these signatures.
        unsafe {
            let init: extern "C" fn(u32) -> c_int =
                core::mem::transmute(function(library, c"cuInit"));
            let create: extern "C" fn(*mut *mut c_void, u32, c_int) -> c_int =
                core::mem::transmute(function(library, c"cuCtxCreate_v2"));
            ok(init(0), "cuInit");
            let mut context = core::ptr::null_mut();
            ok(create(&raw mut context, 0, 0), "cuCtxCreate");
            Self {
                alloc: core::mem::transmute::<*mut c_void, extern "C" fn(*mut u64, usize) -> c_int>(
                    function(library, c"cuMemAlloc_v2"),
                ),
                free: core::mem::transmute::<*mut c_void, extern "C" fn(u64) -> c_int>(function(
                    library,
                    c"cuMemFree_v2",
                )),
                info: core::mem::transmute::<
                    *mut c_void,
                    extern "C" fn(*mut usize, *mut usize) -> c_int,
                >(function(library, c"cuMemGetInfo_v2")),
            }
        }
    }

    /// `cuMemAlloc` and `cuMemFree`.
    pub fn pair(&self, bytes: usize) {
        let mut address = 0;
        ok((self.alloc)(&raw mut address, bytes), "cuMemAlloc");
        ok((self.free)(address), "cuMemFree");
    }

    /// `cuMemGetInfo`
    pub fn sizes(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        ok((self.info)(&raw mut free, &raw mut total), "cuMemGetInfo");
        (free, total)
    }
}

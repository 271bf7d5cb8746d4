//! Other users of the machine. Numbers that no account has are enough.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use limits::{GpuId, Limits, MemoryLimit};
use rustix::fs::{FlockOperation, fcntl_lock};
use session::Page;
use session::process::ProcessIdentity;

use crate::program::{DEVICE, Program, limit};
use crate::support::{Sluice, outcome, program};

/// A user who does not exist otherwise. What it left in the folders of sessions is removed at the end.
pub(crate) struct User {
    pub(crate) uid: u32,
}

impl User {
    /// Only root can act as others.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        assert!(
            rustix::process::geteuid().is_root(),
            "this test has to run as root: it acts as other users"
        );
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let uid = 1_000_000_000 + std::process::id() * 16 + number;
        Self { uid }
    }

    /// The usual place of its sessions.
    pub(crate) fn base(&self) -> PathBuf {
        Path::new("/dev/shm").join(format!("sluice-{}", self.uid))
    }

    pub(crate) fn make_base(&self) -> PathBuf {
        let base = self.base();
        fs::DirBuilder::new().mode(0o700).create(&base).unwrap();
        self.own(&base);
        base
    }

    /// Makes a session with a page of 2 GiB.
    pub(crate) fn make_session(&self, name: &str) -> PathBuf {
        let apart = tempfile::tempdir_in("/dev/shm").unwrap();
        let limits = Limits { memory: Some(MemoryLimit::new(2 << 30)), ..Limits::NONE };
        let page = Page::open(apart.path(), device(), &limits).unwrap();
        self.own(page.path());
        self.own(apart.path());
        let session = self.base().join(name);
        fs::rename(apart.keep(), &session).unwrap();
        session
    }

    pub(crate) fn own(&self, path: &Path) {
        chown(path, Some(self.uid), Some(self.uid)).unwrap();
    }

    /// A command that this user gives.
    pub(crate) fn command(&self, sluice: &Sluice, program: &str) -> Command {
        let id = self.uid.to_string();
        let mut command = sluice.command_of("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", program]);
        command
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let places = (1..64)
            .map(|number| self.base().with_file_name(format!("sluice-{}-{number}", self.uid)));
        for place in places.chain([self.base()]) {
            let _ = fs::remove_dir_all(&place).or_else(|_| fs::remove_file(&place));
        }
    }
}

/// A page's slots say what its user wants. This one names a process of another user.
#[test]
fn no_page_takes_another_users_process_for_its_own() {
    let (sluice, hostile) = (Sluice::new(), User::new());
    let program = Program::run(&sluice, &["--mem", "2GiB"]);
    let victim = ProcessIdentity::of(program.pid).unwrap();
    hostile.make_base();
    let session = hostile.make_session("env-trap");
    let page = Page::open_existing(&page_in(&session)).unwrap();
    let slot = &page.look().unwrap().slots[0];
    slot.start_time.store(victim.start_time, Ordering::Relaxed);
    slot.pid.store(victim.pid, Ordering::Relaxed);
    slot.host_pid.store(victim.pid, Ordering::Relaxed);
    page.look().unwrap().high_water.store(1, Ordering::Relaxed);
    // As the hostile user would, this process keeps the slot locked.
    let locked = fs::File::options().write(true).open(page.path()).unwrap();
    fcntl_lock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
    // Its name is another way.
    hostile.make_session(&victim.pid.to_string());
    let (code, stdout, _) = outcome(sluice.command().args(["status", "--all", "--json"]));
    assert_eq!(code, 0);
    let status: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let of = |name: &str| {
        let mut sessions = status["sessions"].as_array().unwrap().iter();
        sessions.find(|found| found["session"] == name).unwrap()["devices"][0]["processes"].clone()
    };
    assert_eq!(of("env-trap")[0]["bytes"], 0);
    assert!(of("env-trap")[0]["name"].is_null() && of("env-trap")[0]["host_pid"].is_null());
    let (code, stdout, stderr) = limit(&sluice, &victim.pid.to_string(), &["--mem", "3GiB"]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    assert!(stdout.starts_with(&format!("{} of user 0\n", program.name())), "{stdout}");
    assert_eq!(limit_of(&page_in(&session)), 2 << 30);
}

pub(crate) fn device() -> GpuId {
    DEVICE.parse().unwrap()
}

pub(crate) fn page_in(session: &Path) -> PathBuf {
    session.join(format!("{DEVICE}.page"))
}

/// What a page limits its session to, in bytes.
pub(crate) fn limit_of(page: &Path) -> u64 {
    Page::open_existing(page).unwrap().look().unwrap().limits().memory.unwrap().limit
}

/// Copies what users run to where all can reach it, and returns that folder.
pub(crate) fn for_all_users(sluice: &Sluice) -> PathBuf {
    let bin = sluice.folder().join("bin");
    fs::create_dir(&bin).unwrap();
    for folder in [sluice.folder(), &bin] {
        fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let parts = [
        sluice.built("libcuda_limiter.so", "cuda-limiter"),
        sluice.built("libfake_cuda.so", "fake-cuda"),
        sluice.built("libfake_nvml.so", "fake-nvml"),
        sluice.built("fake-nvidia-smi", "fake-smi"),
        program(),
        Program::compiled(),
    ];
    // By another process: a file that this one has open for writing could not be executed.
    assert!(Command::new("cp").args(&parts).arg(&bin).status().unwrap().success());
    bin
}

//! The mapped file: opening it, locking it, and waiting for the simulation.
//!
//! The file is long because all access to the mapped file goes through one type.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::config::{Config, ConfigError};
use crate::layout::{NONE, Op, QUEUE_DEPTH, State, StreamId};
use crate::memory::OutOfMemory;
use crate::process::{ahead, start_time};
use crate::queue::{LOOK_NS, QueueError};
use crate::shared::sweep;
use crate::values::Values;

/// Changes whenever the layout does. Most differences show in the size; this shows the others.
const MAGIC: u64 = 0x534c_5543_4500_0009;
/// Dead processes are looked for this often.
const REAP_NS: u64 = 5_000_000;
/// ... and in `/proc` this often.
const CHECK_NS: u64 = 1_000_000_000;
/// Offset of the bytes (far beyond the file's end) that processes keep locked while they live.
const LIFE_LOCKS: i64 = 1 << 40;
/// How late a sleep may end. The rest of a wait is spent polling the clock.
const SLEEP_SLACK_NS: u64 = 60_000;
/// How many free places a caller waits for (or for 1 ms) when a queue is full, so that it does not
/// wake for each one.
const REFILL: u64 = 64;

/// Why the node cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A variable has an invalid value.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file cannot be made, mapped or locked.
    #[error("cannot use the fake node {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

#[repr(C)]
struct Shared {
    magic: u64,
    size: u64,
    lock: libc::pthread_mutex_t,
    state: State,
}

/// The simulated node, mapped into this process for the rest of its life.
///
/// A process that takes part keeps one byte of the file locked. The lock belongs to an open file
/// description that nothing maps and no other program inherits. So the system ends the lock when
/// the process dies, in any way, or executes another program. Other processes check this lock.
pub struct Node {
    shared: *mut Shared,
    config: Config,
    path: PathBuf,
    /// Only for the locks.
    life: File,
    /// This process's slot; [`NONE`] if it only reads.
    own: AtomicU32,
    /// What its streams wait for in its memory.
    pub(crate) values: Values,
}

// SAFETY: the mapping is never unmapped, and what is behind the pointer is only accessed through
// `Node::lock`, which holds a process-shared mutex.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

/// The state, advanced to the present, for as long as this guard lives.
pub struct Guard<'a> {
    node: &'a Node,
}

impl<'a> Guard<'a> {
    /// The node that is locked.
    pub(crate) fn node(&self) -> &'a Node {
        self.node
    }
}

impl Deref for Guard<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        // SAFETY: the guard holds the mutex, so no other reference exists; any bytes are a valid
        // `State` (plain integers).
        unsafe { &(*self.node.shared).state }
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: as for `deref`, and `self` is borrowed exclusively.
        unsafe { &mut (*self.node.shared).state }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: this guard's construction locked the mutex on this thread.
        unsafe { libc::pthread_mutex_unlock(&raw mut (*self.node.shared).lock) };
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds, as outside of this process's time namespace: the simulation's clock.
#[must_use]
pub fn clock() -> u64 {
    static AHEAD: OnceLock<u64> = OnceLock::new();
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let ahead = *AHEAD.get_or_init(|| ahead("monotonic").cast_unsigned());
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64).wrapping_sub(ahead)
}

/// Sleeps for exactly `ns`: most of it asleep, the end polling the clock.
fn pause(ns: u64) {
    let until = clock() + ns;
    if ns > 2 * SLEEP_SLACK_NS {
        std::thread::sleep(Duration::from_nanos(ns - SLEEP_SLACK_NS));
    }
    while clock() < until {
        std::thread::yield_now();
    }
}

/// Waits for work that has at least `left` to go, at most `most`. Nobody knows (`None`) when a value
/// is stored or a kernel's group is complete: then all of the wait is sleep.
fn pause_until(left: Option<u64>, most: u64) {
    match left {
        Some(ns) => pause(ns.clamp(5_000, most)),
        None => std::thread::sleep(Duration::from_nanos(LOOK_NS)),
    }
}

/// The node's file: `SLUICE_FAKE_NODE`, or one per user in `/dev/shm`.
#[must_use]
pub fn default_path() -> PathBuf {
    match std::env::var_os(limits::env::FAKE_NODE) {
        Some(path) if !path.is_empty() => path.into(),
        // SAFETY: getuid has no preconditions and cannot fail.
        _ => format!("/dev/shm/sluice-fake-node-{}", unsafe { libc::getuid() }).into(),
    }
}

impl Node {
    /// Opens the node that this process's environment names, making it on first use.
    ///
    /// # Errors
    /// A variable with an invalid value, or a file that cannot be used.
    pub fn open() -> Result<Self, NodeError> {
        Self::open_at(&default_path(), Config::from_env()?)
    }

    /// Opens the node in the file `path`. `config` only applies to a node that is made now. A file
    /// of another version is replaced.
    ///
    /// # Errors
    /// [`NodeError::File`].
    pub fn open_at(path: &Path, config: Config) -> Result<Self, NodeError> {
        Self::map(path, config).map_err(|source| NodeError::File { path: path.to_owned(), source })
    }

    fn map(path: &Path, config: Config) -> io::Result<Self> {
        for _ in 0..100 {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
                .open(path)?;
            flock(&file, libc::LOCK_EX)?;
            let mapped = Self::map_locked(path, &file, config);
            // The mapping keeps the open file description alive, and with it the lock: closing
            // would not end it.
            flock(&file, libc::LOCK_UN)?;
            if let Some(node) = mapped? {
                return Ok(node);
            }
        }
        Err(io::Error::other("the file kept being replaced"))
    }

    /// Returns `None` if the file is not, or is no longer, the one to use.
    fn map_locked(path: &Path, file: &File, config: Config) -> io::Result<Option<Self>> {
        let size = size_of::<Shared>() as u64;
        let seen = file.metadata()?;
        // Another process may have replaced the file between opening and locking it.
        match std::fs::metadata(path) {
            Ok(named) if named.ino() == seen.ino() && named.dev() == seen.dev() => {}
            _ => return Ok(None),
        }
        let fresh = seen.len() == 0;
        if !fresh && seen.len() != size {
            std::fs::remove_file(path)?;
            return Ok(None);
        }
        if fresh {
            file.set_len(size)?;
        }
        let life = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let shared = map_file(file)?;
        // SAFETY: mapped in full just now; initialisation happens under the file lock.
        unsafe {
            if fresh || (*shared).magic == 0 {
                init_mutex(&raw mut (*shared).lock)?;
                (*shared).state.init(config, clock());
                (*shared).size = size;
                (*shared).magic = MAGIC;
            } else if (*shared).magic != MAGIC || (*shared).size != size {
                libc::munmap(shared.cast(), size_of::<Shared>());
                std::fs::remove_file(path)?;
                return Ok(None);
            }
            let config = (*shared).state.config;
            // Made absolute, because programs change their directory.
            let path = std::path::absolute(path)?;
            let (own, values) = (AtomicU32::new(NONE), Values::default());
            Ok(Some(Self { shared, config, path, life, own, values }))
        }
    }

    /// The node's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The node's fixed properties.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Locks the node and advances it to the present. Dead processes are dropped; while the node is
    /// used, they are looked for at least every 5 ms.
    #[must_use]
    pub fn lock(&self) -> Guard<'_> {
        let (mut guard, now) = self.lock_now();
        if now.saturating_sub(guard.reaped) > REAP_NS {
            reap(&mut guard, now);
        }
        guard
    }

    /// Like [`Node::lock`], but looks for dead processes now.
    #[must_use]
    pub fn lock_reaped(&self) -> Guard<'_> {
        let (mut guard, now) = self.lock_now();
        reap(&mut guard, now);
        guard
    }

    fn lock_now(&self) -> (Guard<'_>, u64) {
        let mut guard = self.lock_unmoved();
        // Read before the clock, so that nothing goes on before the value it waited for was stored.
        let values = self.values.look();
        let now = clock();
        if now.saturating_sub(guard.now) > REAP_NS {
            // Nobody has looked for so long. What dead processes had queued must not run until now.
            let seen = guard.now;
            guard.advance(seen + REAP_NS);
            reap(&mut guard, now);
        }
        guard.advance(now);
        if let Some(mut values) = values {
            // What is written may be what another stream waits for.
            while values.tell(&mut guard) {
                guard.advance(now);
                values.look_again();
            }
        }
        (guard, now)
    }

    fn lock_unmoved(&self) -> Guard<'_> {
        // SAFETY: the mutex was initialised before the magic number was written.
        let outcome = unsafe { libc::pthread_mutex_lock(&raw mut (*self.shared).lock) };
        let mut guard = Guard { node: self };
        if outcome == libc::EOWNERDEAD {
            // The owner died half-way. Its own records are removed, and derived ones are
            // recomputed.
            // SAFETY: this thread now holds the mutex.
            unsafe { libc::pthread_mutex_consistent(&raw mut (*self.shared).lock) };
            let now = clock();
            reap(&mut guard, now);
            guard.rebuild();
        }
        guard
    }

    /// Registers this process, with so many hardware queues on each device, and returns its slot.
    ///
    /// # Errors
    /// [`QueueError::NoSlot`].
    pub fn attach(&self, queues: u32) -> Result<u32, QueueError> {
        let pid = std::process::id();
        let start = start_time(pid).unwrap_or(0);
        let mut guard = self.lock_reaped();
        let slot = guard.add_process(pid, start)?;
        guard.set_queues(slot, queues);
        self.own.store(slot, Relaxed);
        self.life_lock(libc::F_OFD_SETLK, slot, libc::F_WRLCK);
        Ok(slot)
    }

    /// For a forked child: gives up what it inherited, so that it does not keep the parent's
    /// registration alive. Afterwards this value must neither be used nor dropped.
    pub fn abandon(&self) {
        // SAFETY: closes this process's copy of the descriptor; the value is not used again.
        unsafe { libc::close(self.life.as_raw_fd()) };
    }

    /// Sets or queries the lock of a slot; returns the kind of lock found.
    fn life_lock(&self, command: libc::c_int, slot: u32, kind: libc::c_int) -> libc::c_int {
        ofd_lock(&self.life, command, LIFE_LOCKS + i64::from(slot), kind)
    }

    /// Whether any process keeps a byte of the node's file locked.
    pub(crate) fn is_locked(&self, at: i64) -> bool {
        ofd_lock(&self.life, libc::F_OFD_GETLK, at, libc::F_WRLCK) != libc::F_UNLCK
    }

    /// Takes device memory.
    ///
    /// # Errors
    /// [`OutOfMemory`], if there is not enough even after dead processes' memory was collected.
    pub fn take(&self, process: u32, device: u32, bytes: u64) -> Result<(), OutOfMemory> {
        let first = self.lock().take(process, device, bytes);
        match first {
            Ok(()) => Ok(()),
            Err(_) => self.lock_reaped().take(process, device, bytes),
        }
    }

    /// Returns device memory.
    pub fn give_back(&self, process: u32, device: u32, bytes: u64) {
        self.lock().give_back(process, device, bytes);
    }

    /// Takes what a context needs.
    ///
    /// # Errors
    /// [`OutOfMemory`], if there is not enough even after dead processes' memory was collected.
    pub fn add_context(&self, process: u32, device: u32) -> Result<(), OutOfMemory> {
        let first = self.lock().add_context(process, device);
        match first {
            Ok(()) => Ok(()),
            Err(_) => self.lock_reaped().add_context(process, device),
        }
    }

    /// Returns what a context took.
    pub fn remove_context(&self, process: u32, device: u32) {
        self.lock().remove_context(process, device);
    }

    /// Queues work. While there is no room for it, waits asleep and without the lock.
    ///
    /// # Errors
    /// [`QueueError::Gone`].
    pub fn submit(&self, stream: StreamId, op: Op) -> Result<u64, QueueError> {
        self.retry_while_full(stream, |state| state.push(stream, op))
    }

    /// Runs an action that may find no room for more work of `stream`, and repeats it when there is.
    ///
    /// # Errors
    /// What `action` returns, except for [`QueueError::Full`] and [`QueueError::Held`].
    pub fn retry_while_full<T>(
        &self,
        stream: StreamId,
        mut action: impl FnMut(&mut State) -> Result<T, QueueError>,
    ) -> Result<T, QueueError> {
        loop {
            let pause_ns = {
                let mut guard = self.lock();
                match action(&mut guard) {
                    Err(QueueError::Held) => None,
                    Err(QueueError::Full) if guard.is_held(stream) => None,
                    Err(QueueError::Full) => {
                        let head = guard.end_of(stream)? - QUEUE_DEPTH;
                        let one = guard.least_time(stream, head + 1);
                        let more = guard.least_time(stream, head + REFILL);
                        Some(one.max(more.min(1_000_000)))
                    }
                    outcome => return outcome,
                }
            };
            pause_until(pause_ns, 10_000_000);
        }
    }

    /// Waits until a stream has reached `position`, or is gone.
    pub fn wait_for(&self, stream: StreamId, position: u64) {
        loop {
            let left = {
                let guard = self.lock();
                if guard.passed(stream.slot, stream.generation, position) {
                    return;
                }
                let unknown = guard.is_held(stream) || guard.spins(stream);
                (!unknown).then(|| guard.least_time(stream, position))
            };
            pause_until(left, 20_000_000);
        }
    }

    /// Whether this process is not registered.
    pub(crate) fn is_left(&self) -> bool {
        self.own.load(Relaxed) == NONE
    }

    /// Drops a process that ends normally.
    pub fn detach(&self, process: u32) {
        // The streams end because the process does, so nothing is stored for them.
        self.values.close();
        let mut guard = self.lock();
        guard.drop_process(process);
        sweep(&mut guard);
        self.own.store(NONE, Relaxed);
        self.life_lock(libc::F_OFD_SETLK, process, libc::F_UNLCK);
    }
}

/// Drops dead processes. The lock shows a death at once. But a child may have inherited the lock's
/// description unnoticed and keep it, so `/proc` is checked now and then as well.
fn reap(guard: &mut Guard<'_>, now: u64) {
    let node = guard.node;
    let own = node.own.load(Relaxed);
    let thorough = now.saturating_sub(guard.checked) > CHECK_NS;
    guard.reaped = now;
    if thorough {
        guard.checked = now;
    }
    for slot in 0..guard.process_mark {
        let process = &guard.processes[slot as usize];
        if process.state != 1 || slot == own {
            continue;
        }
        let unlocked = node.life_lock(libc::F_OFD_GETLK, slot, libc::F_WRLCK) == libc::F_UNLCK;
        if unlocked || (thorough && start_time(process.pid) != Some(process.start)) {
            guard.process_died(slot);
        }
    }
    sweep(guard);
}

/// Sets or queries a lock of an open file description on one byte; returns the kind of lock found.
pub(crate) fn ofd_lock(
    file: &File,
    command: libc::c_int,
    at: i64,
    kind: libc::c_int,
) -> libc::c_int {
    // SAFETY: plain integers, all-zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at;
    lock.l_len = 1;
    // SAFETY: a valid descriptor and a valid place for the answer.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
        0 => libc::c_int::from(lock.l_type),
        // Without an answer, the byte counts as locked.
        _ => kind,
    }
}

fn flock(file: &File, operation: libc::c_int) -> io::Result<()> {
    // SAFETY: a valid descriptor.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn map_file(file: &File) -> io::Result<*mut Shared> {
    // SAFETY: a new mapping at an address of the system's choice; the file has this size.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Shared>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(address.cast())
}

/// # Safety
/// `lock` is in the shared mapping, and nothing uses it yet.
unsafe fn init_mutex(lock: *mut libc::pthread_mutex_t) -> io::Result<()> {
    let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: the attributes are initialised first and destroyed last; `lock` by this function's
    // own condition.
    let failed = unsafe {
        let failed = libc::pthread_mutexattr_init(attributes)
            | libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED)
            | libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST)
            | libc::pthread_mutex_init(lock, attributes);
        libc::pthread_mutexattr_destroy(attributes);
        failed
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::other("cannot make a shared mutex")) }
}

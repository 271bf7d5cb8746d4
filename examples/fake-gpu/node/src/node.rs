//! The mapped file: opening, locking, and waiting for the simulation.
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

/// Changes with the layout. Most layout changes also change the file's size; this covers the rest.
const MAGIC: u64 = 0x534c_5543_4500_0009;
/// Interval of the search for dead processes, in nanoseconds.
const REAP_NS: u64 = 5_000_000;
/// Interval of the search in `/proc`, in nanoseconds.
const CHECK_NS: u64 = 1_000_000_000;
/// Offset of the bytes (far beyond the file's end) that processes keep locked during their life.
const LIFE_LOCKS: i64 = 1 << 40;
/// How late a sleep may end, in nanoseconds. The rest of a wait polls the clock.
const SLEEP_SLACK_NS: u64 = 60_000;
/// Free places in a full queue that a caller waits for (at most 1 ms), so that it does not wake up for each one.
const REFILL: u64 = 64;

/// Why the node cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A variable has an invalid value.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file cannot be created, mapped or locked.
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
/// A participating process keeps one byte of the file locked. The lock belongs to an open file description that is not
/// mapped and not inherited by other programs, so the system releases it when the process dies, in any way, or executes
/// another program. Other processes check this lock.
pub struct Node {
    shared: *mut Shared,
    config: Config,
    path: PathBuf,
    /// Holds only the lock.
    life: File,
    /// This process's slot; [`NONE`] if it only reads.
    own: AtomicU32,
    /// Values in this process's memory that its streams wait for or write.
    pub(crate) values: Values,
}

// SAFETY: the mapping is never unmapped, and what is behind the pointer is only accessed through
// `Node::lock`, which holds a process-shared mutex.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

/// Access to the state, advanced to the present, while the guard lives.
pub struct Guard<'a> {
    node: &'a Node,
}

impl<'a> Guard<'a> {
    /// The locked node.
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

/// The simulation's clock: `CLOCK_MONOTONIC` in nanoseconds, without the offset of this process's time namespace.
#[must_use]
pub fn clock() -> u64 {
    static AHEAD: OnceLock<u64> = OnceLock::new();
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let ahead = *AHEAD.get_or_init(|| ahead("monotonic").cast_unsigned());
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64).wrapping_sub(ahead)
}

/// Sleeps for exactly `ns`, polling the clock at the end.
fn pause(ns: u64) {
    let until = clock() + ns;
    if ns > 2 * SLEEP_SLACK_NS {
        std::thread::sleep(Duration::from_nanos(ns - SLEEP_SLACK_NS));
    }
    while clock() < until {
        std::thread::yield_now();
    }
}

/// Waits for work that takes at least `left`, for at most `most`. If the time is unknown (`None`: a value must be
/// stored, or a group completed), sleeps throughout.
fn pause_until(left: Option<u64>, most: u64) {
    match left {
        Some(ns) => pause(ns.clamp(5_000, most)),
        None => std::thread::sleep(Duration::from_nanos(LOOK_NS)),
    }
}

/// Default path: `SLUICE_FAKE_NODE`, or one file per user in `/dev/shm`.
#[must_use]
pub fn default_path() -> PathBuf {
    match std::env::var_os(limits::env::FAKE_NODE) {
        Some(path) if !path.is_empty() => path.into(),
        // SAFETY: getuid has no preconditions and cannot fail.
        _ => format!("/dev/shm/sluice-fake-node-{}", unsafe { libc::getuid() }).into(),
    }
}

impl Node {
    /// Opens the node that this process's environment names, creating it if missing.
    ///
    /// # Errors
    /// A variable with an invalid value, or an unusable file.
    pub fn open() -> Result<Self, NodeError> {
        Self::open_at(&default_path(), Config::from_env()?)
    }

    /// Opens the node in the file `path`. `config` applies only to a new node. A file of another version is replaced.
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
            // Unlocked explicitly: the mapping keeps the open file description alive, so closing would not release the
            // lock.
            flock(&file, libc::LOCK_UN)?;
            if let Some(node) = mapped? {
                return Ok(node);
            }
        }
        Err(io::Error::other("the file kept being replaced"))
    }

    /// Returns `None` if the file is no longer the current one.
    fn map_locked(path: &Path, file: &File, config: Config) -> io::Result<Option<Self>> {
        let size = size_of::<Shared>() as u64;
        let seen = file.metadata()?;
        // Another process may have replaced the file between opening and locking.
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
            // Absolute, because programs change their directory.
            let path = std::path::absolute(path)?;
            let (own, values) = (AtomicU32::new(NONE), Values::default());
            Ok(Some(Self { shared, config, path, life, own, values }))
        }
    }

    /// Path of the node's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The node's fixed properties.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Locks the node and advances it to the present. Searches for dead processes if the last search was more than 5 ms
    /// ago.
    #[must_use]
    pub fn lock(&self) -> Guard<'_> {
        let (mut guard, now) = self.lock_now();
        if now.saturating_sub(guard.reaped) > REAP_NS {
            reap(&mut guard, now);
        }
        guard
    }

    /// Like [`Node::lock`], but always searches for dead processes.
    #[must_use]
    pub fn lock_reaped(&self) -> Guard<'_> {
        let (mut guard, now) = self.lock_now();
        reap(&mut guard, now);
        guard
    }

    fn lock_now(&self) -> (Guard<'_>, u64) {
        let mut guard = self.lock_unmoved();
        // Read before the clock: a stream must not continue before the awaited value was stored.
        let values = self.values.look();
        let now = clock();
        if now.saturating_sub(guard.now) > REAP_NS {
            // No search for this long. Work of processes that died meanwhile must not run until now.
            let seen = guard.now;
            guard.advance(seen + REAP_NS);
            reap(&mut guard, now);
        }
        guard.advance(now);
        if let Some(mut values) = values {
            // A written value may be one that another stream awaits.
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

    /// Registers this process with `queues` hardware queues per device; returns its slot.
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

    /// For a forked child: releases what it inherited, so that it does not keep the parent's registration alive. This
    /// value must then neither be used nor dropped.
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

    /// Allocates device memory.
    ///
    /// # Errors
    /// [`OutOfMemory`] if too little is free even after collecting dead processes' memory.
    pub fn take(&self, process: u32, device: u32, bytes: u64) -> Result<(), OutOfMemory> {
        let first = self.lock().take(process, device, bytes);
        match first {
            Ok(()) => Ok(()),
            Err(_) => self.lock_reaped().take(process, device, bytes),
        }
    }

    /// Frees device memory.
    pub fn give_back(&self, process: u32, device: u32, bytes: u64) {
        self.lock().give_back(process, device, bytes);
    }

    /// Allocates a context's memory.
    ///
    /// # Errors
    /// [`OutOfMemory`] if too little is free even after collecting dead processes' memory.
    pub fn add_context(&self, process: u32, device: u32) -> Result<(), OutOfMemory> {
        let first = self.lock().add_context(process, device);
        match first {
            Ok(()) => Ok(()),
            Err(_) => self.lock_reaped().add_context(process, device),
        }
    }

    /// Frees a context's memory.
    pub fn remove_context(&self, process: u32, device: u32) {
        self.lock().remove_context(process, device);
    }

    /// Queues work. Waits, asleep and without the lock, while the queue is full.
    ///
    /// # Errors
    /// [`QueueError::Gone`].
    pub fn submit(&self, stream: StreamId, op: Op) -> Result<u64, QueueError> {
        self.retry_while_full(stream, |state| state.push(stream, op))
    }

    /// Runs an action that may find `stream`'s queue full, and repeats it once there is room.
    ///
    /// # Errors
    /// As `action`, except for [`QueueError::Full`] and [`QueueError::Held`].
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

    /// Waits until a stream has reached `position` or is gone.
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

    /// Removes a process that ends normally.
    pub fn detach(&self, process: u32) {
        // The streams end with the process, so nothing is stored for them.
        self.values.close();
        let mut guard = self.lock();
        guard.drop_process(process);
        sweep(&mut guard);
        self.own.store(NONE, Relaxed);
        self.life_lock(libc::F_OFD_SETLK, process, libc::F_UNLCK);
    }
}

/// Removes dead processes. The lock shows a death at once, but a child may have inherited the lock's file description
/// unnoticed, so `/proc` is checked occasionally, too.
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
        // Without an answer the byte counts as locked.
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

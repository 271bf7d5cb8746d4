//! Makes, checks and maps a page's file.

use super::map::Map;
use super::{PageError, slot_lock};
use crate::layout::{MAGIC, PageLayout, SLOTS, VERSION};
use core::mem;
use core::sync::atomic::Ordering::Relaxed;
use limits::{GpuId, Limits};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::thread::futex;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A mapped page.
#[derive(Debug)]
pub struct Page {
    map: Map,
    /// It is opened again when the program has closed it.
    file: Mutex<File>,
    device: GpuId,
    /// The file's device and inode.
    identity: (u64, u64),
    path: PathBuf,
}

/// A step of waiting for others who change the limits.
const STEP: Duration = Duration::from_millis(1);

/// The length of a page's file in bytes.
const LENGTH: u64 = size_of::<PageLayout>() as u64;

impl Page {
    /// Opens the page of `device` in a session's directory. The first process makes it, with the
    /// given limits. An existing page keeps its own.
    ///
    /// # Errors
    /// [`PageError::Io`] from the file system, [`PageError::Foreign`] for a file that is not a page
    /// of this version and user.
    pub fn open(dir: &Path, device: GpuId, limits: &Limits) -> Result<Self, PageError> {
        let path = dir.join(file_name(device));
        let found = match open_existing(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create(&path, device, limits).and_then(|()| open_existing(&path))
            }
            other => other,
        };
        let file = found.map_err(|source| PageError::Io { path: path.clone(), source })?;
        Self::of_file(file, path, device, false)
    }

    /// Whether there is a file for the page of `device` in a session's directory.
    #[must_use]
    pub fn exists(dir: &Path, device: GpuId) -> bool {
        dir.join(file_name(device)).exists()
    }

    /// Whether a file in a session's directory is one of its pages, judged by its name.
    #[must_use]
    pub fn has_name_of_one(path: &Path) -> bool {
        path.extension().is_some_and(|extension| extension == &SUFFIX[1..])
    }

    /// Opens an existing page, of the device that its name names, to read it or to change its
    /// limits. Root may open any user's page.
    ///
    /// Not for a process that is a member by this page: closing any descriptor of the file drops
    /// its record locks (`fcntl(2)`).
    ///
    /// # Errors
    /// As for [`Page::open`]; a missing page is a [`PageError::Io`].
    pub fn open_existing(path: &Path) -> Result<Self, PageError> {
        let named =
            path.file_name().and_then(|name| name.to_str()?.strip_suffix(SUFFIX)?.parse().ok());
        let Some(device) = named else {
            let reason = format!("its name is not a GPU's UUID with '{SUFFIX}' after it");
            return Err(PageError::Foreign { path: path.to_owned(), reason });
        };
        let file = open_existing(path)
            .map_err(|source| PageError::Io { path: path.to_owned(), source })?;
        let root = rustix::process::geteuid().is_root();
        Self::of_file(file, path.to_owned(), device, root)
    }

    fn of_file(
        file: File,
        path: PathBuf,
        device: GpuId,
        of_anybody: bool,
    ) -> Result<Self, PageError> {
        let io = |source| PageError::Io { path: path.clone(), source };
        let foreign = |reason: String| PageError::Foreign { path: path.clone(), reason };
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(foreign("it is not a regular file".to_owned()));
        }
        if metadata.len() != LENGTH {
            return Err(foreign(wrong_length(metadata.len())));
        }
        if !of_anybody && metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(foreign(format!("it belongs to user {}", metadata.uid())));
        }
        let file = out_of_the_way(file);
        let map = Map::new(&file).map_err(io)?;
        let identity = (metadata.dev(), metadata.ino());
        let page = Self { map, file: Mutex::new(file), device, identity, path: path.clone() };
        header(page.layout()).map_err(foreign)?;
        let mut bytes = [0; 16];
        for (byte, cell) in bytes.iter_mut().zip(&page.layout().uuid) {
            *byte = cell.load(Relaxed);
        }
        let found = GpuId::from_bytes(bytes);
        if found != device {
            return Err(foreign(format!("it is of another device, {found}")));
        }
        Ok(page)
    }

    /// The device.
    #[must_use]
    pub const fn device(&self) -> GpuId {
        self.device
    }

    /// The fields, if they are still those of a page. A process that may write to the file may have
    /// cut it short or overwritten it since.
    ///
    /// # Errors
    /// [`PageError::Damaged`]
    #[inline]
    pub fn look(&self) -> Result<&PageLayout, PageError> {
        self.check().map_err(|reason| PageError::Damaged { path: self.path.clone(), reason })?;
        Ok(self.layout())
    }

    #[inline]
    fn check(&self) -> Result<(), String> {
        let readable = self.map.is_readable();
        if readable == Some(true) && header(self.layout()).is_ok() {
            return Ok(());
        }
        self.look_closer(readable)
    }

    /// Why the page is not whole, or why that cannot be known from its memory.
    #[cold]
    fn look_closer(&self, readable: Option<bool>) -> Result<(), String> {
        // The descriptor may stand for another file by now: the page's is looked up by its name. If
        // the name is gone as well, only processes that have the file open can change it.
        let length = self
            .stat_of(&self.lock_file())
            .or_else(|| self.if_own(rustix::fs::stat(&self.path).ok()?))
            .map(|found| found.st_size);
        match length.map(|length| u64::try_from(length).unwrap_or(0)) {
            Some(length) if length != LENGTH => Err(wrong_length(length)),
            // Damaged, even if the file has its old length again.
            _ if readable == Some(false) || self.map.is_gone() => {
                Err("it has been cut short".to_owned())
            }
            _ => header(self.layout()),
        }
    }

    /// Keeps others who do the same from changing the limits, until this value is dropped. Waits for
    /// them until a given time; `false`: in vain.
    ///
    /// Whoever may write to the page can keep others waiting in this way, and can change the limits
    /// all the same.
    #[must_use]
    pub fn lock_limits(&self, until: Instant) -> bool {
        loop {
            if matches!(slot_lock::lock(self, slot_lock::LIMITS), Ok(true)) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(STEP);
        }
    }

    /// Changes the session's limits. Each process sees them at its next reservation or lease, and
    /// processes that sleep on the counter of changes are woken.
    ///
    /// # Errors
    /// [`PageError::Damaged`]
    pub fn change_limits(&self, limits: &Limits) -> Result<(), PageError> {
        let layout = self.look()?;
        layout.set_limits(limits);
        let _ = futex::wake(&layout.limit_changes, futex::Flags::empty(), i32::MAX as u32);
        Ok(())
    }

    /// The fields, unchecked. If the file has been cut short they read as zeros; or, if the process
    /// does not let the signal be caught, reading them ends it. See [`Page::look`].
    #[must_use]
    pub fn layout(&self) -> &PageLayout {
        self.map.layout()
    }

    /// The file, for locks. A program may close descriptors that it does not know, and its next
    /// file gets the same number: then the file is opened again. `None`: it is not to be found.
    pub(super) fn file(&self) -> Option<MutexGuard<'_, File>> {
        let mut file = self.lock_file();
        if self.stat_of(&file).is_none() {
            let closed = mem::replace(&mut *file, out_of_the_way(self.open_again()?));
            // The number is the program's now.
            let _ = closed.into_raw_fd();
        }
        Some(file)
    }

    /// The file, opened once more. When a descriptor of it is closed, this process's record locks
    /// of the file are dropped.
    pub(super) fn open_again(&self) -> Option<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&self.path, flags, Mode::empty()).ok()?);
        self.stat_of(&file).is_some().then_some(file)
    }

    fn lock_file(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the system says of a descriptor, if it stands for the page's file.
    fn stat_of(&self, file: &File) -> Option<Stat> {
        self.if_own(rustix::fs::fstat(file).ok()?)
    }

    fn if_own(&self, found: Stat) -> Option<Stat> {
        ((found.st_dev, found.st_ino) == self.identity).then_some(found)
    }

    /// The file's inode.
    pub(super) const fn inode(&self) -> u64 {
        self.identity.1
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

const SUFFIX: &str = ".page";

/// The name of a device's page in a session's directory. It depends on the bits alone: CUDA and NVML spell the
/// identity of a MIG slice differently, and both mean one page.
fn file_name(device: GpuId) -> String {
    format!("{}{SUFFIX}", GpuId::from_bytes(device.bytes()))
}

fn wrong_length(length: u64) -> String {
    format!("it has {length} bytes instead of {LENGTH}")
}

/// Whether the last bytes are those of a page. If the file was cut short they are zero.
#[inline]
fn has_end(layout: &PageLayout) -> bool {
    layout.end.iter().all(|cell| cell.load(Relaxed) == MAGIC)
}

/// Whether the fields can be those of a page.
#[inline]
fn header(layout: &PageLayout) -> Result<(), String> {
    let (version, slots) = (layout.version.load(Relaxed), layout.slot_count.load(Relaxed));
    if layout.magic.load(Relaxed) != MAGIC {
        return Err("it does not start like a page".to_owned());
    }
    if version != VERSION {
        return Err(format!("its version is {version}, this build knows {VERSION}"));
    }
    if slots as usize != SLOTS {
        return Err(format!("it has {slots} slots, this build knows {SLOTS}"));
    }
    let high_water = layout.high_water.load(Relaxed);
    if high_water as usize > SLOTS {
        return Err(format!("it says that {high_water} of its {SLOTS} slots were used"));
    }
    if !has_end(layout) {
        return Err("it does not end like a page".to_owned());
    }
    Ok(())
}

/// Moves a descriptor above those of the program. The kernel closes descriptors in order when a
/// process ends. So the slot is given up after the driver was told to free what the process held,
/// not before.
fn out_of_the_way(file: File) -> File {
    const MOST: u64 = 1024;
    const ABOVE: u64 = 32;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let least = limit.map_or(MOST, |limit| limit.min(MOST)).saturating_sub(ABOVE);
    match i32::try_from(least).map(|least| rustix::io::fcntl_dupfd_cloexec(&file, least)) {
        Ok(Ok(higher)) => File::from(higher),
        _ => file,
    }
}

fn open_existing(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
}

/// Makes the file under a temporary name and renames it when it is whole. So no process sees a
/// half-made page, and the first of two makers wins.
fn create(path: &Path, device: GpuId, limits: &Limits) -> io::Result<()> {
    static COUNTER: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
    let draft = path.with_extension(format!(
        "draft-{}-{}",
        std::process::id(),
        COUNTER.fetch_add(1, Relaxed)
    ));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&draft)?;
    let made = (|| {
        // With its memory allocated: on a full tmpfs, a store to a page without memory would end
        // the process.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, LENGTH)?;
        let map = Map::new(&file)?;
        let layout = map.layout();
        layout.magic.store(MAGIC, Relaxed);
        layout.end.iter().for_each(|cell| cell.store(MAGIC, Relaxed));
        layout.version.store(VERSION, Relaxed);
        layout.slot_count.store(u32::try_from(SLOTS).unwrap_or(u32::MAX), Relaxed);
        for (cell, byte) in layout.uuid.iter().zip(device.bytes()) {
            cell.store(byte, Relaxed);
        }
        layout.set_limits(limits);
        match fs::hard_link(&draft, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    })();
    fs::remove_file(&draft)?;
    made
}

//! Creates, checks and maps a page's file.

use super::PageError;
use super::map::Map;
use super::slot_lock::LimitsLock;
use crate::descriptors;
use crate::folder::{Folder, FolderError};
use crate::layout::{MAGIC, PageLayout, SLOTS, VERSION};
use core::mem;
use core::sync::atomic::Ordering::Relaxed;
use limits::session_name::told;
use limits::{GpuId, Limits};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use rustix::thread::futex;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A mapped page.
#[derive(Debug)]
pub struct Page {
    map: Map,
    /// Reopened if the program has closed the descriptor.
    file: Mutex<File>,
    device: GpuId,
    /// The file's device and inode.
    identity: (u64, u64),
    /// The path for messages, without secrets.
    path: PathBuf,
    real_path: PathBuf,
}

/// Interval of the polls for the lock of the limits.
const STEP: Duration = Duration::from_millis(1);

/// The length of a page's file in bytes.
const LENGTH: u64 = size_of::<PageLayout>() as u64;

impl Page {
    /// Opens the page of `device` in a session's directory. The first process creates it, with the given limits; an
    /// existing page keeps its own.
    ///
    /// # Errors
    /// [`PageError::Io`] from the file system, [`PageError::Foreign`] for a file that is not a page of this version and
    /// user.
    pub fn open(dir: &Path, device: GpuId, limits: &Limits) -> Result<Self, PageError> {
        Self::open_or_make(dir, &file_name(device), device, limits)
    }

    /// Like [`Self::open`], for the page of the devices that the session uses together. It belongs to no device, and is
    /// not listed as one of the session's pages.
    ///
    /// # Errors
    /// As [`Page::open`].
    pub(crate) fn open_of_all(dir: &Path, limits: &Limits) -> Result<Self, PageError> {
        Self::open_or_make(dir, OF_ALL, GpuId::from_bytes([0; 16]), limits)
    }

    /// Whether the session's directory has the page of devices used together.
    pub(crate) fn has_of_all(dir: &Path) -> bool {
        dir.join(OF_ALL).exists()
    }

    fn open_or_make(
        dir: &Path,
        name: &str,
        device: GpuId,
        limits: &Limits,
    ) -> Result<Self, PageError> {
        let folder = Folder::open(dir).map_err(PageError::from_folder)?;
        folder.check_is_reliable().map_err(PageError::from_folder)?;
        let found = match folder.file(name.as_ref(), OFlags::RDWR) {
            Err(error) if error.is_absent() => create(&folder, name, device, limits)
                .and_then(|()| folder.file(name.as_ref(), OFlags::RDWR)),
            other => other,
        };
        let file = found.map_err(PageError::from_folder)?;
        Self::of_file(file, dir.join(name), Some(device))
    }

    /// Whether a session's directory has a file for the page of `device`. True if that cannot be examined.
    #[must_use]
    pub fn exists(dir: &Path, device: GpuId) -> bool {
        let found = dir.join(file_name(device)).symlink_metadata();
        // What cannot be looked at may be there.
        !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Whether a file in a session's directory is one of its pages, judged by its name.
    #[must_use]
    pub fn has_name_of_one(path: &Path) -> bool {
        path.extension().is_some_and(|extension| extension == &SUFFIX[1..])
    }

    /// Opens an existing page, of the device in its name, to read it or to change its limits. Root may open any user's
    /// page.
    ///
    /// Not for a process that is a member through this page: closing any descriptor of the file drops its record locks
    /// (`fcntl(2)`).
    ///
    /// # Errors
    /// As for [`Page::open`]; [`PageError::Io`] if the page does not exist.
    pub fn open_existing(path: &Path) -> Result<Self, PageError> {
        Self::open_existing_of(path, None)
    }

    /// Like [`Self::open_existing`], for a file of any name, such as a saved copy of a page. The page itself names its
    /// device.
    ///
    /// # Errors
    /// As for [`Page::open_existing`].
    pub fn open_any(path: &Path) -> Result<Self, PageError> {
        Self::open_at(path, None, None)
    }

    /// Like [`Self::open_existing`], if the page's directory belongs to this user.
    pub(crate) fn open_existing_of(path: &Path, uid: Option<u32>) -> Result<Self, PageError> {
        let name = path.file_name().unwrap_or_default();
        let named = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse().ok());
        let foreign = |reason: String| PageError::Foreign { path: told(path), reason };
        let Some(device) = named else {
            return Err(foreign(format!("its name is not a GPU's UUID with '{SUFFIX}' after it")));
        };
        Self::open_at(path, Some(device), uid)
    }

    fn open_at(path: &Path, device: Option<GpuId>, uid: Option<u32>) -> Result<Self, PageError> {
        let name = path.file_name().unwrap_or_default();
        let foreign = |reason: String| PageError::Foreign { path: told(path), reason };
        let folder = path.parent().filter(|path| !path.as_os_str().is_empty());
        let folder =
            Folder::open(folder.unwrap_or(Path::new("."))).map_err(PageError::from_folder)?;
        if !rustix::process::geteuid().is_root() {
            folder.check_is_reliable().map_err(PageError::from_folder)?;
        }
        if let Some(uid) = uid.filter(|uid| *uid != folder.uid()) {
            return Err(foreign(format!("its folder is user {}'s, not {uid}'s", folder.uid())));
        }
        let file = folder.file(name, OFlags::RDWR).map_err(PageError::from_folder)?;
        Self::of_file(file, path.to_owned(), device)
    }

    /// The page in this file, which must be of `device` if one is given.
    fn of_file(file: File, path: PathBuf, device: Option<GpuId>) -> Result<Self, PageError> {
        let told = told(&path);
        let io = |source| PageError::Io { path: told.clone(), source };
        let foreign = |reason: String| PageError::Foreign { path: told.clone(), reason };
        let metadata = file.metadata().map_err(io)?;
        if metadata.len() != LENGTH {
            return Err(foreign(wrong_length(metadata.len())));
        }
        // Pages are created with their memory allocated. Reading a hole in another user's file would allocate memory in
        // the reader's name.
        let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
        if !is_own && metadata.blocks().saturating_mul(512) < LENGTH {
            return Err(foreign("it has holes".to_owned()));
        }
        let file = descriptors::out_of_the_way(file);
        let map = Map::new(&file).map_err(io)?;
        let identity = (metadata.dev(), metadata.ino());
        let mut page = Self {
            map,
            file: Mutex::new(file),
            device: device.unwrap_or(GpuId::from_bytes([0; 16])),
            identity,
            path: told.clone(),
            real_path: path,
        };
        header(page.layout()).map_err(foreign)?;
        let mut bytes = [0; 16];
        for (byte, cell) in bytes.iter_mut().zip(&page.layout().uuid) {
            *byte = cell.load(Relaxed);
        }
        let found = GpuId::from_bytes(bytes);
        if device.is_some_and(|device| device != found) {
            return Err(foreign(format!("it belongs to another device, {found}")));
        }
        page.device = found;
        Ok(page)
    }

    /// The device.
    #[must_use]
    pub const fn device(&self) -> GpuId {
        self.device
    }

    /// The fields, if they are still those of a page: a process that may write to the file may have truncated or
    /// overwritten it.
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

    /// Finds out why the page is not whole, or why its memory cannot tell.
    #[cold]
    fn look_closer(&self, readable: Option<bool>) -> Result<(), String> {
        // The descriptor may refer to another file by now, so look the file up by its name. If the name is gone as
        // well, only processes that have the file open can change it.
        let length = self
            .stat_of(&self.lock_file())
            .or_else(|| self.if_own(rustix::fs::stat(&self.real_path).ok()?))
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

    /// Keeps other callers of this function from changing the limits until the guard is dropped. Waits for them until a
    /// given time; `None`: in vain.
    ///
    /// Every process that may write to the page can keep others waiting in this way, and can change the limits in any
    /// case.
    #[must_use]
    pub fn lock_limits(&self, until: Instant) -> Option<LimitsLock> {
        loop {
            if let Some(lock) = LimitsLock::take(self) {
                return Some(lock);
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(STEP);
        }
    }

    /// Changes the session's limits. Each process sees them at its next reservation or lease; processes that sleep on
    /// the counter of changes are woken. Returns the number of the change, under which processes report that they have
    /// [taken](crate::taken) it.
    ///
    /// # Errors
    /// [`PageError::Damaged`]
    pub fn change_limits(&self, limits: &Limits) -> Result<u32, PageError> {
        let layout = self.look()?;
        let change = layout.set_limits(limits);
        let _ = futex::wake(&layout.limit_changes, futex::Flags::empty(), i32::MAX as u32);
        Ok(change)
    }

    /// The fields, unchecked. If the file was truncated, they read as zeros, or reading ends the process if it does not
    /// let the signal be caught. See [`Page::look`].
    #[must_use]
    pub fn layout(&self) -> &PageLayout {
        self.map.layout()
    }

    /// The file, for locks. A program may close unknown descriptors and reuse their numbers, so the file is reopened if
    /// needed. `None`: it cannot be found.
    pub(super) fn file(&self) -> Option<MutexGuard<'_, File>> {
        let mut file = self.lock_file();
        if self.stat_of(&file).is_none() {
            let closed = mem::replace(&mut *file, descriptors::out_of_the_way(self.open_again()?));
            // The number belongs to the program now.
            let _ = closed.into_raw_fd();
        }
        Some(file)
    }

    /// Opens the file once more. Closing this descriptor drops the process's record locks of the file.
    pub(super) fn open_again(&self) -> Option<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&self.real_path, flags, Mode::empty()).ok()?);
        self.stat_of(&file).is_some().then_some(file)
    }

    fn lock_file(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The status of a descriptor, if it refers to the page's file.
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

    /// The session's directory.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.real_path.parent()
    }

    /// The file's path for messages, without secrets.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

const SUFFIX: &str = ".page";
/// Name of the page of devices used together.
const OF_ALL: &str = "together";

/// The name of a device's page in a session's directory. Depends on the UUID's bits only, because CUDA and NVML spell
/// the UUID of a MIG slice differently.
fn file_name(device: GpuId) -> String {
    format!("{}{SUFFIX}", GpuId::from_bytes(device.bytes()))
}

fn wrong_length(length: u64) -> String {
    format!("it has {length} bytes instead of {LENGTH}")
}

/// Whether the last bytes are those of a page; they are zero if the file was truncated.
#[inline]
fn has_end(layout: &PageLayout) -> bool {
    layout.end.iter().all(|cell| cell.load(Relaxed) == MAGIC)
}

/// Checks that the fields can be those of a page.
#[inline]
fn header(layout: &PageLayout) -> Result<(), String> {
    let (version, slots) = (layout.version.load(Relaxed), layout.slot_count.load(Relaxed));
    if layout.magic.load(Relaxed) != MAGIC {
        return Err("it does not start like a page".to_owned());
    }
    if version != VERSION {
        return Err(format!("its version is {version}; expected {VERSION}"));
    }
    if slots as usize != SLOTS {
        return Err(format!("it has {slots} slots; expected {SLOTS}"));
    }
    let high_water = layout.high_water.load(Relaxed);
    if high_water as usize > SLOTS {
        return Err(format!("it claims {high_water} used slots of {SLOTS}"));
    }
    if !has_end(layout) {
        return Err("it does not end like a page".to_owned());
    }
    Ok(())
}

/// Creates the file under a temporary name and renames it when it is complete. So no process sees a half-made page, and
/// the first of two creators wins.
fn create(folder: &Folder, name: &str, device: GpuId, limits: &Limits) -> Result<(), FolderError> {
    static COUNTER: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
    let draft = format!("{name}.draft-{}-{}", std::process::id(), COUNTER.fetch_add(1, Relaxed));
    let draft = OsStr::new(&draft);
    // Left by an earlier process with the same id.
    let _ = rustix::fs::unlinkat(folder.descriptor(), draft, AtFlags::empty());
    // Everyone who can enter a directory with an unguessable name is a process of the session.
    let mode = if folder.is_for_those_who_know() { 0o666 } else { 0o600 };
    let file = folder.make_file(draft, mode)?;
    let made = fill(&file, device, limits).and_then(|()| publish(folder, draft, name.as_ref()));
    // A no-op if it was renamed.
    let _ = rustix::fs::unlinkat(folder.descriptor(), draft, AtFlags::empty());
    made.map_err(FolderError::io("make", &folder.path().join(name)))
}

fn fill(file: &File, device: GpuId, limits: &Limits) -> io::Result<()> {
    // Allocates the memory: on a full tmpfs, a store to an unallocated page would end the process.
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, LENGTH)?;
    let map = Map::new(file)?;
    let layout = map.layout();
    layout.magic.store(MAGIC, Relaxed);
    layout.end.iter().for_each(|cell| cell.store(MAGIC, Relaxed));
    layout.version.store(VERSION, Relaxed);
    layout.slot_count.store(u32::try_from(SLOTS).unwrap_or(u32::MAX), Relaxed);
    for (cell, byte) in layout.uuid.iter().zip(device.bytes()) {
        cell.store(byte, Relaxed);
    }
    let _ = layout.set_limits(limits);
    Ok(())
}

/// Renames the draft, unless a file of that name exists.
fn publish(folder: &Folder, draft: &OsStr, name: &OsStr) -> io::Result<()> {
    let dir = folder.descriptor();
    match rustix::fs::renameat_with(&dir, draft, &dir, name, RenameFlags::NOREPLACE) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

//! Making, checking and mapping a page's file.

use super::layout::{Layout, MAGIC, SLOTS, VERSION};
use super::{PageError, SessionLimits};
use crate::uuid::DeviceUuid;
use core::sync::atomic::Ordering::Relaxed;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A mapped page.
#[derive(Debug)]
pub struct Page {
    map: MmapRaw,
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    path: PathBuf,
}

impl Page {
    /// Opens the page of `device` in a session's directory. Whoever comes first makes it, with the
    /// given limits. A page that is there already keeps its own.
    ///
    /// # Errors
    /// [`PageError::Io`] from the file system, [`PageError::Foreign`] for a file that is not a page of
    /// this version and user.
    pub fn open(dir: &Path, device: DeviceUuid, limits: &SessionLimits) -> Result<Self, PageError> {
        let path = dir.join(format!("{device}.page"));
        let io = |source| PageError::Io { path: path.clone(), source };
        let file = match open_existing(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create(&path, device, limits).map_err(io)?;
                open_existing(&path)
            }
            other => other,
        }
        .map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        let foreign = |reason: String| PageError::Foreign { path: path.clone(), reason };
        if metadata.len() != size_of::<Layout>() as u64 {
            return Err(foreign(format!(
                "it has {} bytes instead of {}",
                metadata.len(),
                size_of::<Layout>()
            )));
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(foreign(format!("it belongs to user {}", metadata.uid())));
        }
        let map = map(&file).map_err(io)?;
        let identity = (metadata.dev(), metadata.ino());
        let page = Self { map, file, identity, path: path.clone() };
        let layout = page.layout();
        let (magic, version) = (layout.magic.load(Relaxed), layout.version.load(Relaxed));
        if magic != MAGIC || layout.slot_count.load(Relaxed) as usize != SLOTS {
            return Err(foreign("it does not start like a page".to_owned()));
        }
        if version != VERSION {
            return Err(foreign(format!("its version is {version}, this build knows {VERSION}")));
        }
        if layout.uuid.iter().map(|byte| byte.load(Relaxed)).ne(device.bytes()) {
            return Err(foreign("it is of another device".to_owned()));
        }
        Ok(page)
    }

    /// The fields.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        // SAFETY: the mapping is as long as the layout, page-aligned, and lives as long as `self`.
        // All fields are atomics, for which any bytes are a value.
        unsafe { &*self.map.as_ptr().cast::<Layout>() }
    }

    /// The file, for its locks.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Whether the descriptor still means the page's file: a program may close descriptors that it
    /// does not know, and get the number for a file of its own.
    pub(super) fn has_its_file(&self) -> bool {
        rustix::fs::fstat(&self.file)
            .is_ok_and(|found| (found.st_dev, found.st_ino) == self.identity)
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

fn open_existing(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

fn map(file: &File) -> io::Result<MmapRaw> {
    MmapOptions::new().len(size_of::<Layout>()).map_raw(file)
}

/// Makes the file under a name of its own and gives it its real one when it is whole: nobody sees a
/// page half made, and of two makers the first wins.
fn create(path: &Path, device: DeviceUuid, limits: &SessionLimits) -> io::Result<()> {
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
        // With its memory: a store to a page of a full tmpfs would end the process.
        rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::empty(),
            0,
            size_of::<Layout>() as u64,
        )?;
        let map = map(&file)?;
        // SAFETY: as in `Page::layout`.
        let layout = unsafe { &*map.as_ptr().cast::<Layout>() };
        layout.magic.store(MAGIC, Relaxed);
        layout.version.store(VERSION, Relaxed);
        layout.slot_count.store(u32::try_from(SLOTS).unwrap_or(u32::MAX), Relaxed);
        for (cell, byte) in layout.uuid.iter().zip(device.bytes()) {
            cell.store(byte, Relaxed);
        }
        limits.store(layout);
        match fs::hard_link(&draft, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    })();
    fs::remove_file(&draft)?;
    made
}

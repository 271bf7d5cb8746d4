//! Contents of shared blocks: each is a file beside the node's, which any process can map.
//!
//! An exported descriptor is an open file description of its own, of one file for all blocks, like with the real
//! driver. A lock on a byte of that file identifies its block. The descriptor may be copied any number of times to any
//! processes; the lock ends with the last copy. So the node knows when the block can no longer be opened this way.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::blocks::{Block, BlockId, Use};
use crate::node::{Guard, Node, ofd_lock};
use crate::queue::QueueError;

/// Offset of the bytes that exported descriptors keep locked.
const EXPORTS: u64 = 1 << 50;

/// The byte that exported descriptors of a block keep locked.
fn export_lock(id: BlockId) -> i64 {
    (EXPORTS | u64::from(id.slot) << 32 | u64::from(id.generation)) as i64
}

fn open(path: &Path, new: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(new)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
}

impl Node {
    fn block_path(&self, id: BlockId) -> PathBuf {
        let mut name = self.path().as_os_str().to_owned();
        name.push(format!(".block-{}-{}", id.slot, id.generation));
        name.into()
    }

    /// Creates a block of `length` zero bytes. This process is already charged `bytes` for it, directly or (`covered`)
    /// through another allocation.
    ///
    /// # Errors
    /// No slot, or the system's error for the file.
    pub fn make_block(
        &self,
        process: u32,
        device: u32,
        (bytes, covered): (u64, bool),
        length: u64,
    ) -> io::Result<(BlockId, File)> {
        let id = self
            .lock_reaped()
            .add_block(process, device, (bytes, covered), length)
            .map_err(io::Error::other)?;
        let path = self.block_path(id);
        let made = (|| {
            // A deleted node may have left the file behind.
            if let Err(error) = std::fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
            let file = open(&path, true)?;
            file.set_len(length)?;
            Ok((id, file))
        })();
        if made.is_err() {
            // The process stays charged.
            self.lock().blocks[id.slot as usize].state = Use::Free as u32;
        }
        made
    }

    /// Opens a block, and adds this process to its holders.
    ///
    /// # Errors
    /// [`QueueError::Gone`], also if the block's file cannot be opened.
    pub fn open_block(&self, process: u32, id: BlockId) -> Result<(Block, File), QueueError> {
        let held = self.lock_reaped().block(id).is_some_and(|block| block.holds(process));
        let block = self.lock().hold_block(process, id)?;
        match open(&self.block_path(id), false) {
            Ok(file) => Ok((block, file)),
            Err(_) => {
                if !held {
                    self.release_block(process, id);
                }
                Err(QueueError::Gone)
            }
        }
    }

    /// Undoes the creation of a block. The process stays charged for its bytes.
    pub fn cancel_block(&self, id: BlockId) {
        let mut guard = self.lock();
        if guard.block(id).is_some() {
            guard.blocks[id.slot as usize].state = Use::Free as u32;
            let _ = std::fs::remove_file(self.block_path(id));
        }
    }

    /// Releases a block.
    pub fn release_block(&self, process: u32, id: BlockId) {
        let mut guard = self.lock();
        guard.release_block(process, id);
        sweep(&mut guard);
    }

    /// Creates a descriptor that exports a block.
    ///
    /// # Errors
    /// The system's error for the file.
    pub fn export_block(&self, id: BlockId) -> io::Result<File> {
        let file = open(self.path(), false)?;
        let mut guard = self.lock();
        if guard.block(id).is_none() {
            return Err(io::Error::other("the block is gone"));
        }
        ofd_lock(&file, libc::F_OFD_SETLK, export_lock(id), libc::F_RDLCK);
        guard.blocks[id.slot as usize].exported = 1;
        Ok(file)
    }

    /// The block that a descriptor exports.
    #[must_use]
    pub fn exported_block(&self, file: &File) -> Option<BlockId> {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
        let start = |line: &str| line.split_whitespace().rev().nth(1)?.parse::<u64>().ok();
        let locks = info.ok()?;
        let mut locks = locks.lines().filter(|line| line.starts_with("lock:")).filter_map(start);
        let number = locks.rfind(|start| start & !(EXPORTS - 1) == EXPORTS)?;
        let (slot, generation) = ((number ^ EXPORTS) >> 32, number as u32);
        let id = BlockId { slot: slot as u32, generation };
        self.lock().block(id).map(|_| id)
    }
}

/// Finds closed descriptors, ends blocks that only they held, and deletes the files of ended blocks.
pub(crate) fn sweep(guard: &mut Guard<'_>) {
    let node = guard.node();
    for slot in 0..guard.block_mark {
        let block = guard.blocks[slot as usize];
        let id = BlockId { slot, generation: block.generation };
        if block.state == Use::Block as u32
            && block.exported == 1
            && !node.is_locked(export_lock(id))
        {
            guard.end_exported(id);
        }
        if guard.blocks[slot as usize].state == Use::Gone as u32 {
            let _ = std::fs::remove_file(node.block_path(id));
            guard.blocks[slot as usize].state = Use::Free as u32;
        }
    }
}

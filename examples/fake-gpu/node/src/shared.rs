//! The contents of blocks. Each is a file beside the node's own, which any process can map.
//!
//! A descriptor that hands a block over is an open file description of its own, with a lock on the
//! block's file. It may be copied any number of times, to any processes; the lock ends with the
//! last copy. So the node knows when the block can no longer be opened in this way.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use crate::blocks::{Block, BlockId, Use};
use crate::node::{Guard, Node, ofd_lock};
use crate::queue::QueueError;

fn open(path: &PathBuf, new: bool) -> io::Result<File> {
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

    /// Makes a block of `length` bytes of zeroes. This process is charged for its memory already:
    /// for `bytes`, directly or (`covered`) through something else.
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
            // A node that was deleted may have left one behind.
            if let Err(error) = std::fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
            let file = open(&path, true)?;
            file.set_len(length)?;
            Ok((file.metadata()?.ino(), file))
        })();
        let mut guard = self.lock();
        match made {
            Ok((number, file)) => {
                guard.blocks[id.slot as usize].file = number;
                Ok((id, file))
            }
            Err(error) => {
                // The process that was charged for the bytes stays charged.
                guard.blocks[id.slot as usize].state = Use::Free as u32;
                Err(error)
            }
        }
    }

    /// Opens a block and makes this process a holder of it.
    ///
    /// # Errors
    /// [`QueueError::Gone`], also if its file cannot be opened.
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

    /// Undoes the making of a block. The process that is charged for its bytes stays charged.
    pub fn cancel_block(&self, id: BlockId) {
        let mut guard = self.lock();
        if guard.block(id).is_some() {
            guard.blocks[id.slot as usize].state = Use::Free as u32;
            let _ = std::fs::remove_file(self.block_path(id));
        }
    }

    /// Lets go of a block.
    pub fn release_block(&self, process: u32, id: BlockId) {
        let mut guard = self.lock();
        guard.release_block(process, id);
        sweep(&mut guard);
    }

    /// Makes a descriptor that hands a block over.
    ///
    /// # Errors
    /// The system's error for the file.
    pub fn export_block(&self, id: BlockId) -> io::Result<File> {
        let file = open(&self.block_path(id), false)?;
        let mut guard = self.lock();
        if guard.block(id).is_none() {
            return Err(io::Error::other("the block is gone"));
        }
        ofd_lock(&file, libc::F_OFD_SETLK, 0, libc::F_RDLCK);
        guard.blocks[id.slot as usize].exported = 1;
        Ok(file)
    }

    /// The block for which a descriptor was made.
    #[must_use]
    pub fn exported_block(&self, file: &File) -> Option<BlockId> {
        let number = file.metadata().ok()?.ino();
        self.lock().block_of_file(number)
    }
}

/// Ends the blocks whose last holder was a descriptor that is now closed, and deletes the files of
/// those that are gone.
pub(crate) fn sweep(guard: &mut Guard<'_>) {
    let node = guard.node();
    for slot in 0..guard.block_mark {
        let block = guard.blocks[slot as usize];
        let id = BlockId { slot, generation: block.generation };
        if block.state == Use::Block as u32 && block.exported == 1 && !block.held() {
            let locked = open(&node.block_path(id), false).is_ok_and(|file| {
                ofd_lock(&file, libc::F_OFD_GETLK, 0, libc::F_WRLCK) != libc::F_UNLCK
            });
            if !locked {
                guard.end_exported(id);
            }
        }
        if guard.blocks[slot as usize].state == Use::Gone as u32 {
            let _ = std::fs::remove_file(node.block_path(id));
            guard.blocks[slot as usize].state = Use::Free as u32;
        }
    }
}

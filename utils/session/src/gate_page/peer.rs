//! The daemon's side: the page of a process that it does not trust.

use super::error::GatePageError;
use super::layout::{BLOCKS, GateBlock, LENGTH, MAGIC, VERSION};
use super::map::Map;
use super::reach;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use limits::GpuId;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::os::fd::{AsFd, BorrowedFd};

/// The required seals: nobody can shrink, grow or seal the memory further.
pub(super) const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// The page of another process. Any values in it are tolerated, even if they change meanwhile.
#[derive(Debug)]
pub struct PeerGatePage(Map);

impl PeerGatePage {
    /// The page at one of a process's descriptors. `pid` and `uid` are the process and its user according to the
    /// kernel; another process with the same id is refused.
    ///
    /// Only the type of the descriptor's file is examined. No other type of file is opened or closed here, because
    /// either may take arbitrarily long. Dropping the last reference to the memory has to free it, so do not call this
    /// from a thread that others wait for.
    ///
    /// # Errors
    /// [`GatePageError`]: there is no page, or it cannot be used.
    pub fn of_process(pid: u32, uid: u32, descriptor: i64) -> Result<Self, GatePageError> {
        Self::map(reach::memory_of(pid, uid, descriptor)?.as_fd())
    }

    /// Maps a page. The descriptor is not needed afterwards.
    ///
    /// # Errors
    /// [`GatePageError`] if it is not a page.
    pub fn map(memory: BorrowedFd<'_>) -> Result<Self, GatePageError> {
        check_seals(memory)?;
        let found = fstat(memory).map_err(GatePageError::io("looking at it"))?.st_size;
        if found != LENGTH as i64 {
            return Err(GatePageError::Size { found: found.unsigned_abs() });
        }
        let page = Self(Map::new(memory)?);
        if page.0.is_accessible() { page.checked() } else { Err(GatePageError::NotAMemfd) }
    }

    fn checked(self) -> Result<Self, GatePageError> {
        let layout = self.0.layout();
        let fields = [
            ("magic", layout.magic.load(Acquire), MAGIC),
            ("version", layout.version.load(Relaxed).into(), VERSION.into()),
            ("count", layout.count.load(Relaxed).into(), BLOCKS as u64),
        ];
        match fields.into_iter().find(|(_, found, wanted)| found != wanted) {
            Some((field, found, wanted)) => Err(GatePageError::Foreign { field, found, wanted }),
            None => Ok(self),
        }
    }

    /// Whether the page has a block for a device.
    #[must_use]
    pub fn has_block(&self, device: GpuId) -> bool {
        self.block(device).is_some()
    }

    /// Ends a lease on a device early: closes its gate now, and wakes the process. `false`: the page has no block for
    /// the device, so the lease ends as planned.
    pub fn stop_early(&self, device: GpuId, lease: u64) -> bool {
        self.block(device).map(|block| block.stop_early(lease)).is_some()
    }

    /// Whether the process keeps a lease on a device and does not use it now.
    #[must_use]
    pub fn is_idle(&self, device: GpuId, lease: u64) -> bool {
        self.block(device).is_some_and(|block| block.is_idle(lease))
    }

    /// Sets whether an unused lease on a device may be kept. Withdrawing the permission wakes the process.
    pub fn let_keep(&self, device: GpuId, lease: u64, may: bool) {
        if let Some(block) = self.block(device) {
            block.let_keep(lease, may);
        }
    }

    /// Opens the gate of a device for a lease. `word`: the word that the process named in its request. `false`:
    /// withdrawn or unknown, so the process has to open the gate itself.
    pub fn grant(&self, device: GpuId, lease: u64, word: u32) -> bool {
        self.block(device).is_some_and(|block| block.grant(lease, word))
    }

    fn block(&self, device: GpuId) -> Option<&GateBlock> {
        self.block_number(device).and_then(|number| self.0.layout().blocks.get(number))
    }

    pub(super) fn block_number(&self, device: GpuId) -> Option<usize> {
        if !self.0.is_accessible() {
            return None;
        }
        self.0.layout().blocks.iter().position(|block| block.is_of(device))
    }

    /// The futex word that changes when a lease's work is done.
    pub(super) fn ended(&self, number: usize) -> Option<&AtomicU32> {
        let block = self.0.layout().blocks.get(number)?;
        self.0.is_accessible().then(|| block.ended())
    }
}

/// Checks that the memory can be neither truncated nor write-protected.
pub(super) fn check_seals(memory: BorrowedFd<'_>) -> Result<(), GatePageError> {
    const FORBIDDEN: SealFlags = SealFlags::WRITE.union(SealFlags::FUTURE_WRITE);
    let seals = fcntl_get_seals(memory).map_err(|_| GatePageError::NotAMemfd)?;
    if seals.contains(SEALS) && !seals.intersects(FORBIDDEN) {
        Ok(())
    } else {
        Err(GatePageError::Seals { found: seals.bits() })
    }
}

//! The memory mapping of a gate page.

use super::error::GatePageError;
use super::layout::{GatePageLayout, LENGTH};
use crate::page::fault::{self, Range};
use crate::page::probe;
use memmap2::{MmapOptions, MmapRaw};
use std::os::fd::{AsRawFd, BorrowedFd};

/// A mapping of a page.
///
/// The memory cannot be truncated. But its owner can punch holes (fallocate(2)), which read as zeros when touched; if
/// the machine has no memory left then, the kernel sends `SIGBUS`. The handler for session pages covers this mapping as
/// well.
#[derive(Debug)]
pub(super) struct Map {
    /// Declared before `map`, so that it is dropped first.
    range: Range,
    map: MmapRaw,
}

impl Map {
    /// Maps `LENGTH` bytes of a file that is at least as long.
    pub(super) fn new(file: BorrowedFd<'_>) -> Result<Self, GatePageError> {
        fault::install();
        let map = MmapOptions::new()
            .len(LENGTH)
            .map_raw(file.as_raw_fd())
            .map_err(|source| GatePageError::Io { what: "mapping it", source })?;
        let range = Range::new(map.as_ptr().addr(), LENGTH).ok_or(GatePageError::TooMany)?;
        Ok(Self { range, map })
    }

    pub(super) fn layout(&self) -> &GatePageLayout {
        // SAFETY: the mapping is as long as the layout, page-aligned, and lives as long as `self`.
        // All fields are atomics, for which any bytes are a valid value.
        unsafe { &*self.map.as_ptr().cast::<GatePageLayout>() }
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Whether the calling thread can access the memory, whatever the other side does meanwhile, and it is still the
    /// page's.
    pub(super) fn is_accessible(&self) -> bool {
        (fault::are_caught() || self.can_be_read()) && !self.range.is_gone()
    }

    /// Queries the kernel for each of the smallest pages.
    fn can_be_read(&self) -> bool {
        const PIECE: usize = 4096;
        let start = self.map.as_ptr();
        (0..LENGTH)
            .step_by(PIECE)
            .all(|offset| probe::is_readable(start.wrapping_add(offset)) == Some(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    /// As if the machine had no memory left for a hole.
    #[test]
    fn an_access_that_the_kernel_cannot_serve_reads_zeros() {
        for caught in [true, false] {
            let memory = memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&memory, LENGTH as u64).unwrap();
            let map = Map::new(memory.as_fd()).unwrap();
            assert!(map.is_accessible() && map.can_be_read());
            ftruncate(&memory, 4096).unwrap();
            assert!(!map.can_be_read());
            if caught {
                map.layout().blocks[63].stop.store(1, Relaxed);
                assert!(!map.is_accessible());
                assert_eq!(map.layout().magic.load(Relaxed), 0);
            }
        }
    }
}

//! The memory mapping of a session page.

use super::fault::{self, Range};
use super::probe;
use crate::layout::PageLayout;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io;

/// A file's mapping. An access to a truncated part either reads zeros or must be avoided: see [`Map::is_readable`].
#[derive(Debug)]
pub(super) struct Map {
    /// Declared before `map`, so that it is dropped first. `None`: the signal handler does not know the mapping.
    range: Option<Range>,
    map: MmapRaw,
}

impl Map {
    pub(super) fn new(file: &File) -> io::Result<Self> {
        fault::install();
        let map = MmapOptions::new().len(size_of::<PageLayout>()).map_raw(file)?;
        Ok(Self { range: Range::new(map.as_ptr().addr(), size_of::<PageLayout>()), map })
    }

    /// The fields, unchecked.
    #[inline]
    pub(super) fn layout(&self) -> &PageLayout {
        // SAFETY: the mapping is as long as the layout, page-aligned, and lives as long as `self`.
        // All fields are atomics, for which any bytes are a valid value.
        unsafe { &*self.map.as_ptr().cast::<PageLayout>() }
    }

    /// Whether the calling thread may access all of the memory, whatever the file's length. `None`: the kernel does not
    /// tell.
    #[inline]
    pub(super) fn is_readable(&self) -> Option<bool> {
        match &self.range {
            Some(_) if fault::are_caught() => Some(true),
            // If the end exists, so does everything before it.
            _ => {
                let end = &self.layout().end;
                const { assert!(probe::LENGTH == size_of::<[u64; 4]>()) };
                probe::is_readable(end)
            }
        }
    }

    /// Whether zeros have replaced the file in this mapping.
    pub(super) fn is_gone(&self) -> bool {
        self.range.as_ref().is_some_and(Range::is_gone)
    }
}

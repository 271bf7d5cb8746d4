//! Memory for relays and trampolines, near the patched functions.

use crate::code::forced;
use crate::code::machine::{PAGE, REACH, publish};
use crate::code::mappings::Mappings;
use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::ptr;

/// Bytes of a block: enough for the relays and trampolines of 300 functions.
const BLOCK: usize = if PAGE > 16 * 1024 { PAGE } else { 16 * 1024 };
/// A block is offered only if at least this many bytes are left in it.
const ROOM: usize = 256;
const CODE: c_int = libc::PROT_READ | libc::PROT_EXEC;
const WRITABLE_CODE: c_int = CODE | libc::PROT_WRITE;
/// The alignment of functions.
const ALIGNED: usize = 16;
/// Addresses below this are never mapped, so that null pointers lead nowhere.
const LOWEST: usize = 0x1_0000;
/// Distances below a function at which memory is tried, in parts of [`REACH`]. Recently loaded libraries tend to lie
/// lowest.
const PARTS_BELOW: [usize; 6] = [64, 32, 16, 8, 4, 2];
/// The most gaps to try. Other threads may have filled the listed ones.
const TRIES: usize = 64;

/// Blocks of memory that stay mapped for the life of the process: writable while this value exists, only executable
/// afterwards.
#[derive(Debug, Default)]
pub(crate) struct CodeMemory(Vec<Block>);

/// A mapping that is filled from its start.
#[derive(Debug)]
pub(crate) struct Block {
    range: Range<usize>,
    next: usize,
    /// Whether the block is writable; it is always executable.
    writable: bool,
}

impl CodeMemory {
    /// A block that lies wholly within reach of `origin` and has [`ROOM`] left.
    pub(crate) fn near(&mut self, origin: usize, mappings: &mut Mappings) -> Option<&mut Block> {
        let within = origin.saturating_sub(REACH).max(LOWEST)..origin.saturating_add(REACH);
        let fits = |block: &Block| {
            within.start <= block.range.start
                && block.range.end <= within.end
                && block.range.end - block.next >= ROOM
        };
        if let Some(index) = self.0.iter().position(fits) {
            return self.0.get_mut(index);
        }
        let rights = [WRITABLE_CODE, CODE];
        let new = rights.iter().find_map(|&rights| {
            Block::map_anywhere(&within, rights).or_else(|| Block::map_below(origin, rights))
        });
        let block = new.or_else(|| {
            let free = mappings.free(origin, &within, BLOCK);
            let free = free.get(..TRIES).unwrap_or(&free);
            rights
                .iter()
                .find_map(|&rights| free.iter().find_map(|&place| Block::map(place, rights)))
        })?;
        mappings.add(block.range.clone(), CODE);
        self.0.push(block);
        self.0.last_mut()
    }
}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        for block in self.0.iter().filter(|block| block.writable) {
            let start = block.range.start as *mut c_void;
            // SAFETY: a mapping of this module's own, whose code is complete. If the kernel refuses, the code stays
            // writable and still works.
            unsafe { libc::mprotect(start, BLOCK, CODE) };
        }
    }
}

impl Block {
    /// Maps a block exactly at `place`, if that is still free.
    fn map(place: usize, protection: c_int) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: replaces nothing: kernels that do not know the last flag take the place as a
        // hint.
        let start = unsafe { libc::mmap(place as *mut c_void, BLOCK, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        Self::within(&(place..place + BLOCK), start as usize, protection)
    }

    /// Maps a block where the kernel chooses, if that is in `wanted`: the newest mappings tend to be adjacent. Does not
    /// need the list of mappings, which may be incomplete.
    fn map_anywhere(wanted: &Range<usize>, protection: c_int) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: anonymous memory; nothing is replaced.
        let start = unsafe { libc::mmap(ptr::null_mut(), BLOCK, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        Self::within(wanted, start as usize, protection)
    }

    /// Maps a block at one of a few places below `origin` that may be free. Does not need the list either.
    fn map_below(origin: usize, protection: c_int) -> Option<Self> {
        PARTS_BELOW.iter().find_map(|part| {
            let place = origin.checked_sub(REACH / part)? / PAGE * PAGE;
            if place >= LOWEST { Self::map(place, protection) } else { None }
        })
    }

    /// The block that was mapped at `start`; unmaps it unless it lies in `wanted`.
    fn within(wanted: &Range<usize>, start: usize, protection: c_int) -> Option<Self> {
        let range = start..start.checked_add(BLOCK)?;
        if wanted.start <= range.start && range.end <= wanted.end {
            let writable = protection & libc::PROT_WRITE != 0;
            return Some(Self { range, next: start, writable });
        }
        // SAFETY: mapped just now, and not handed out yet.
        unsafe { libc::munmap(start as *mut c_void, BLOCK) };
        None
    }

    /// The address for the next code.
    pub(crate) fn next(&self) -> usize {
        self.next
    }

    /// Writes `code` at [`Self::next`]; `None` if it is too long or cannot be written.
    pub(crate) fn put(&mut self, code: &[u8]) -> Option<usize> {
        if code.len() > self.range.end - self.next {
            return None;
        }
        let start = self.next;
        // SAFETY: inside a mapping of this module's own, in a part that has not been handed out
        // yet. It is writable as long as the block exists, or else is not written by this thread
        // itself.
        unsafe {
            if self.writable {
                ptr::copy_nonoverlapping(code.as_ptr(), start as *mut u8, code.len());
            } else if !forced::write(start, code) {
                return None;
            }
        }
        publish(start as *const u8, code.len());
        self.next = (start + code.len()).next_multiple_of(ALIGNED);
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::machine::refusal;

    /// More code than fits into one block.
    const PLACES: usize = 3 * BLOCK / ALIGNED;

    fn rights(address: usize) -> i32 {
        Mappings::now().unwrap().at(address).unwrap().0
    }

    #[test]
    fn code_lies_within_reach_runs_and_cannot_be_written_in_the_end() {
        let origin = rights as *const () as usize;
        let mut mappings = Mappings::now().unwrap();
        let mut memory = CodeMemory::default();
        let code = refusal(42);
        let mut places = Vec::new();
        for _ in 0..PLACES {
            let block = memory.near(origin, &mut mappings).unwrap();
            let expected = block.next();
            let place = block.put(&code).unwrap();
            assert_eq!(place, expected);
            assert_eq!(place % ALIGNED, 0);
            assert!(place.abs_diff(origin) < REACH);
            places.push(place);
        }
        assert!(memory.0.len() > 1, "more than one block is needed for this");
        drop(memory);
        places.dedup();
        assert_eq!(places.len(), PLACES);
        for place in [places[0], places[PLACES - 1]] {
            assert_eq!(rights(place), libc::PROT_READ | libc::PROT_EXEC);
        }
        for place in places {
            // SAFETY: the code above, of this signature.
            let function: extern "C" fn() -> i32 = unsafe { core::mem::transmute(place) };
            assert_eq!(function(), 42);
        }
    }

    #[test]
    fn nothing_is_mapped_where_something_is() {
        let taken =
            Block::map(Mappings::now().unwrap().free(1 << 33, &(1 << 33..1 << 34), BLOCK)[0], CODE);
        let taken = taken.unwrap();
        assert!(Block::map(taken.range.start, CODE).is_none());
        // An empty list of mappings, and the kernel's choice is far away: a place below is free.
        let mut memory = CodeMemory::default();
        let below = memory.near(taken.range.start, &mut Mappings::default()).unwrap();
        let distance = taken.range.start - below.range.start;
        assert!(distance >= BLOCK && distance <= REACH / PARTS_BELOW[5], "{distance:x}");
        // If a place is taken, the next one in `PARTS_BELOW` is used, until none is free.
        let mut further = CodeMemory::default();
        let places = core::iter::from_fn(|| Block::map_below(taken.range.start, CODE));
        further.0.extend(places);
        assert_eq!(further.0.len(), PARTS_BELOW.len() - 1);
        assert!(Block::map_below(LOWEST, CODE).is_none());
        // The next free place is not where the list says.
        let mut memory = CodeMemory::default();
        assert!(memory.near(taken.range.start, &mut Mappings::default()).is_none());
        // Near an earlier choice of the kernel, its next choice will do.
        let own = Block::map_anywhere(&(0..usize::MAX), CODE).unwrap();
        let near = memory.near(own.range.start, &mut Mappings::default()).unwrap();
        assert!(near.range.start.abs_diff(own.range.start) < REACH);
    }

    #[test]
    fn a_block_that_is_not_writable_takes_code_as_well() {
        let place = Mappings::now().unwrap().free(3 << 33, &(3 << 33..1 << 35), BLOCK)[0];
        let mut block = Block::map(place, CODE).unwrap();
        let place = block.put(&refusal(42)).unwrap();
        assert_eq!(rights(place), CODE);
        // SAFETY: the code above, of this signature.
        let function: extern "C" fn() -> i32 = unsafe { core::mem::transmute(place) };
        assert_eq!(function(), 42);
    }

    #[test]
    fn a_full_block_takes_nothing_more() {
        let mut mappings = Mappings::now().unwrap();
        let mut memory = CodeMemory::default();
        let block = memory.near(1 << 34, &mut mappings).unwrap();
        assert!(block.put(&[0x90; BLOCK - ROOM + 1]).is_some());
        assert!(block.put(&[0x90; ROOM]).is_none());
        let first = block.range.clone();
        assert_ne!(memory.near(1 << 34, &mut mappings).unwrap().range, first);
    }
}

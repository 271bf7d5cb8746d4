//! Patches many functions after reading the list of mappings once.
//!
//! For each function, the `detour` crate makes the kernel write its list of all mappings four
//! times. For the driver's functions, in a process with 2,000 mappings, this takes half a second.
//! Here the list is read once. The crate only gets the functions for which a plain copy of the
//! first instructions does not work.

use super::code_memory::CodeMemory;
use super::in_file;
use super::prologue::{LONGEST, Prologue, Unfit};
use crate::Slot;
use crate::code::jump;
use crate::code::mappings::Mappings;
use crate::code::overwrite::overwrite;
use core::ffi::{c_int, c_void};
use core::ptr;

const CODE: c_int = libc::PROT_READ | libc::PROT_EXEC;

/// What is known, and kept, while functions are patched.
#[derive(Debug)]
pub(super) struct Batch {
    mappings: Mappings,
    memory: CodeMemory,
}

impl Batch {
    /// Reads the list of mappings; `None` if it cannot be read.
    pub(super) fn begin() -> Option<Self> {
        Some(Self { mappings: Mappings::now()?, memory: CodeMemory::default() })
    }

    /// Redirects `target` to `detour` and puts the trampoline into `slot`. On failure, nothing has
    /// changed.
    ///
    /// # Safety
    /// As for [`crate::HookEngine::install`].
    pub(super) unsafe fn install(
        &mut self,
        target: *const c_void,
        detour: *const c_void,
        slot: &Slot,
    ) -> Result<(), Unfit> {
        let entry = target as usize;
        let is_code = |&(protection, _): &(c_int, usize)| protection & CODE == CODE;
        self.mappings.at(detour as usize).filter(is_code).ok_or(Unfit::Shape)?;
        let (protection, left) = self.mappings.at(entry).filter(is_code).ok_or(Unfit::Shape)?;
        // SAFETY: readable, and it stays mapped: it is a function's code, as the caller vouches.
        let code = unsafe { core::slice::from_raw_parts(target.cast(), left.min(LONGEST)) };
        let prologue = match Prologue::decode(code, entry) {
            // A tracer's breakpoint (uprobes), set by the kernel, or a debugger's. The jump takes
            // its place.
            Err(Unfit::Breakpoint) => {
                let code = in_file::beneath_breakpoints(code, entry).ok_or(Unfit::Breakpoint)?;
                Prologue::decode(&code, entry)?
            }
            decoded => decoded?,
        };
        let (original, patch) = self.place(&prologue, entry, detour).ok_or(Unfit::Shape)?;
        slot.set(original as *const c_void);
        // SAFETY: code of one mapping, at least as long as a jump, because that much was decoded.
        // No thread executes it or changes its protection, as the caller vouches.
        if !unsafe { overwrite(target, &patch, protection) } {
            slot.set(ptr::null());
            return Err(Unfit::Shape);
        }
        Ok(())
    }

    /// Puts what the function at `entry` needs near it. Returns the trampoline, and the jump to
    /// `detour`.
    fn place(
        &mut self,
        prologue: &Prologue,
        entry: usize,
        detour: *const c_void,
    ) -> Option<(usize, [u8; jump::NEAR])> {
        let block = self.memory.near(entry, &mut self.mappings)?;
        let original = block.put(&prologue.relocate(block.next())?)?;
        let patch = match jump::near(entry, detour as usize) {
            Some(patch) => patch,
            None => jump::near(entry, block.put(&jump::far(detour as usize))?)?,
        };
        Some((original, patch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{CASES, Case};
    use crate::{DetourEngine, HookEngine};

    type Function = extern "C" fn(u64) -> u64;

    /// mov rax, rdi; add rax, 5; ret
    const PLAIN: &[u8] = &[0x48, 0x89, 0xf8, 0x48, 0x83, 0xc0, 5, 0xc3];
    /// Its results for 0 and 7.
    const RESULTS: [u64; 2] = [5, 12];

    static SLOT: Slot = Slot::new();
    static SECOND: Slot = Slot::new();

    extern "C" fn and_hundred(argument: u64) -> u64 {
        // SAFETY: the trampoline of a function of this signature.
        let original: Function = unsafe { core::mem::transmute(SLOT.get()) };
        original(argument) + 100
    }

    extern "C" fn and_thousand(argument: u64) -> u64 {
        // SAFETY: as above.
        let original: Function = unsafe { core::mem::transmute(SECOND.get()) };
        original(argument) + 1000
    }

    /// Maps `code` into pages of its own.
    fn function(code: &[u8], near: usize) -> *const c_void {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: anonymous memory, nothing replaced.
        unsafe {
            let start = libc::mmap(near as *mut c_void, 4096, writable, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            ptr::copy_nonoverlapping(code.as_ptr(), start.cast(), code.len());
            assert_eq!(libc::mprotect(start, 4096, CODE), 0);
            start
        }
    }

    #[test]
    fn functions_of_every_kind_run_the_detour_and_the_way_back() {
        let coded = |case: &Case| {
            case.code().map(|(code, results)| (case.name(), function(code, 0), results))
        };
        // A batch does not know what is mapped after it began.
        let all: Vec<_> = CASES.iter().filter_map(coded).collect();
        let mut batch = Batch::begin().unwrap();
        let mut engine = DetourEngine::new();
        let mut left_to_the_crate = Vec::new();
        for (name, address, results) in all {
            let (slot, detour) = (Slot::new(), and_hundred as *const c_void);
            // SAFETY: functions of one signature that nothing else calls.
            unsafe {
                if batch.install(address, detour, &slot).is_err() {
                    assert!(!slot.is_set(), "{name}");
                    left_to_the_crate.push(name);
                    engine.install(address, detour, &slot).unwrap();
                }
            }
            SLOT.set(slot.get());
            // SAFETY: the code above.
            let patched: Function = unsafe { core::mem::transmute(address) };
            for (argument, result) in [0, 7].into_iter().zip(results) {
                assert_eq!(patched(argument), result + 100, "{name}");
            }
        }
        assert_eq!(left_to_the_crate, ["a branch into the prologue"]);
        // Two of the driver's names may be one function.
        // SAFETY: as above.
        unsafe {
            SLOT.set(ptr::null());
            let address = function(PLAIN, 0);
            let mut batch = Batch::begin().unwrap();
            batch.install(address, and_hundred as *const c_void, &SLOT).unwrap();
            batch.install(address, and_thousand as *const c_void, &SECOND).unwrap();
            let patched: Function = core::mem::transmute(address);
            assert_eq!(patched(7), 12 + 100 + 1000);
        }
    }

    #[test]
    fn a_detour_within_reach_needs_no_relay() {
        let (code, near) = (PLAIN, 3 << 41);
        let target = function(code, near);
        let detour = function(code, near + 0x10_0000);
        assert!((target as usize).abs_diff(detour as usize) < 1 << 30);
        let mut batch = Batch::begin().unwrap();
        let slot = Slot::new();
        // SAFETY: functions that nothing calls.
        let patch = unsafe {
            batch.install(target, detour, &slot).unwrap();
            core::slice::from_raw_parts(target.cast::<u8>(), jump::NEAR)
        };
        assert_eq!(
            Some(patch),
            jump::near(target as usize, detour as usize).as_ref().map(|p| &p[..])
        );
    }

    /// Maps code from a file, with a breakpoint at its entry.
    fn traced(file: &std::fs::File) -> *const c_void {
        use std::os::fd::AsRawFd;
        let (fd, writable) = (file.as_raw_fd(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping, of one page, whose beginning is in the file.
        unsafe {
            let start = libc::mmap(ptr::null_mut(), 4096, writable, libc::MAP_PRIVATE, fd, 0);
            assert_ne!(start, libc::MAP_FAILED);
            start.byte_add(64).cast::<u8>().write(0xcc);
            assert_eq!(libc::mprotect(start, 4096, CODE), 0);
            start.byte_add(64)
        }
    }

    #[test]
    fn what_a_breakpoint_stands_for_is_in_the_file() {
        let (code, results) = (PLAIN, RESULTS);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a name with spaces");
        std::fs::write(&path, [&[0; 64], code, &[0xcc; 64]].concat()).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let (address, lost) = (traced(&file), traced(&file));
        let (slot, detour) = (Slot::new(), and_hundred as *const c_void);
        // SAFETY: functions that nothing else calls; the trampoline has their signature.
        unsafe {
            Batch::begin().unwrap().install(address, detour, &slot).unwrap();
            let original: Function = core::mem::transmute(slot.get());
            assert_eq!([original(0), original(7)], results);
            assert_eq!(address.cast::<u8>().read(), 0xe9);
            // The file can no longer be found.
            std::fs::remove_file(&path).unwrap();
            let slot = Slot::new();
            let error = DetourEngine::new().install(lost, detour, &slot).unwrap_err();
            assert!(error.reason.contains("breakpoint"), "{error}");
            assert_eq!(lost.cast::<u8>().read(), 0xcc);
            assert!(!slot.is_set());
        }
    }

    #[test]
    fn what_is_no_code_is_refused_and_left_alone() {
        let code = PLAIN;
        // Nothing is mapped after it.
        let target = function(code, 5 << 41);
        let data = [0x90_u8; 64];
        let mut batch = Batch::begin().unwrap();
        let slot = Slot::new();
        let detour = and_hundred as *const c_void;
        // SAFETY: refused before anything is written.
        unsafe {
            assert!(batch.install(data.as_ptr().cast(), detour, &slot).is_err());
            assert!(batch.install(target, data.as_ptr().cast(), &slot).is_err());
            assert!(batch.install(ptr::null(), detour, &slot).is_err());
            // The last bytes of a page, with nothing mapped after them.
            assert!(batch.install(target.byte_add(4093), detour, &slot).is_err());
            assert_eq!(core::slice::from_raw_parts(target.cast::<u8>(), code.len()), code);
        }
        assert!(!slot.is_set());
    }
}

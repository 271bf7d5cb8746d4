//! The fast way of [`DetourEngine`](super::DetourEngine): patches many functions after reading the list of mappings
//! once.
//!
//! The `detour` crate makes the kernel write the list of all mappings four times per function, which takes half a
//! second for the driver's functions in a process with 2,000 mappings. Only functions whose first instructions cannot
//! simply be copied go to the crate.

use super::code_memory::CodeMemory;
use super::in_file;
use crate::Target;
use crate::code::machine::{self, JUMP, LONGEST, Prologue, Unfit};
use crate::code::mappings::Mappings;
use crate::code::overwrite::{overwrite, overwrite_all, pages};
use core::ffi::{c_int, c_void};

/// A function with copied first instructions, and the jump that replaces them.
#[derive(Debug)]
pub(super) struct Jump {
    entry: *const c_void,
    /// The jump's address, which may be after the entry.
    at: *const c_void,
    original: usize,
    before: [u8; JUMP],
    jump: [u8; JUMP],
    protection: c_int,
}

impl Jump {
    /// Copies the function's first instructions into `memory`. Changes nothing on failure.
    ///
    /// # Safety
    /// As for [`crate::HookEngine::prepare`].
    pub(super) unsafe fn prepare(
        function: &Target,
        memory: &mut CodeMemory,
        mappings: &mut Mappings,
    ) -> Result<Self, Unfit> {
        let at = function.entry as usize;
        let length = function.left.min(LONGEST);
        // SAFETY: readable, and it stays mapped: it is a function's code, as the caller vouches.
        let code = unsafe { core::slice::from_raw_parts(function.entry.cast(), length) };
        let prologue = match Prologue::decode(code, at) {
            // A tracer's breakpoint (uprobes) or a debugger's. The jump replaces it.
            Err(Unfit::Breakpoint) => {
                let code = in_file::beneath_breakpoints(code, at).ok_or(Unfit::Breakpoint)?;
                Prologue::decode(&code, at)?
            }
            decoded => decoded?,
        };
        let (original, jump) = place(&prologue, function, memory, mappings).ok_or(Unfit::Shape)?;
        // At least a jump's length was decoded.
        let overwritten = code.get(prologue.offset()..).and_then(|code| code.first_chunk());
        let before = overwritten.copied().ok_or(Unfit::Shape)?;
        let at = function.entry.wrapping_byte_add(prologue.offset());
        let (entry, protection) = (function.entry, function.protection);
        Ok(Self { entry, at, original, before, jump, protection })
    }

    /// The trampoline.
    pub(super) fn original(&self) -> *const c_void {
        self.original as *const c_void
    }

    /// Overwrites the first instructions of functions. On failure, returns the entry of a function whose instructions
    /// are unchanged.
    ///
    /// # Safety
    /// As for [`crate::HookEngine::enable`].
    pub(super) unsafe fn enable(mut jumps: Vec<&Self>) -> Result<(), *const c_void> {
        jumps.sort_unstable_by_key(|jump| jump.at);
        // Functions are mostly adjacent. Pages without any in between are left alone.
        let beside = |one: &&Self, next: &&Self| {
            one.protection == next.protection && pages(next.at, 0).start <= pages(one.at, JUMP).end
        };
        for group in jumps.chunk_by(beside) {
            let changes: Vec<_> = group.iter().map(|jump| (jump.at, &jump.jump[..])).collect();
            let Some(first) = group.first() else { continue };
            // SAFETY: code of one protection, at least as long as a jump, because that much was decoded.
            // No thread executes it or changes its protection, as the caller vouches.
            if !unsafe { overwrite_all(&changes, first.protection) } {
                return Err(first.entry);
            }
        }
        Ok(())
    }

    /// Restores the function's first instructions.
    ///
    /// # Safety
    /// As for [`crate::HookEngine::undo`].
    pub(super) unsafe fn undo(&self) {
        // SAFETY: as above.
        unsafe { overwrite(self.at, &self.before, self.protection) };
    }
}

/// Places the trampoline and, if needed, a relay near the function. Returns the trampoline, and the jump to the detour.
fn place(
    prologue: &Prologue,
    function: &Target,
    memory: &mut CodeMemory,
    mappings: &mut Mappings,
) -> Option<(usize, [u8; JUMP])> {
    let (entry, detour) = (function.entry as usize, function.detour as usize);
    let block = memory.near(entry, mappings)?;
    let original = block.put(&prologue.relocate(block.next())?)?;
    let from = entry + prologue.offset();
    let to = match prologue.relay(from, detour) {
        Some(relay) => block.put(&relay)?,
        None => detour,
    };
    Some((original, machine::near(from, to)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::machine::{ADDS_FIVE as PLAIN, BREAKPOINT, PAGE, publish};
    use crate::conformance::{Case, cases};
    use crate::{DetourEngine, HookError, PatchBatch, Slot};
    use core::ptr;

    const CODE: c_int = libc::PROT_READ | libc::PROT_EXEC;

    type Function = extern "C" fn(u64) -> u64;

    /// The plain function's results for 0 and 7.
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

    /// Functions that are patched together by this module's jumps.
    struct Jumps {
        memory: CodeMemory,
        mappings: Mappings,
    }

    impl Jumps {
        fn new() -> Self {
            Self { memory: CodeMemory::default(), mappings: Mappings::now().unwrap() }
        }

        /// Patches a function that nothing else calls. `false`: it does not fit.
        fn patch(&mut self, entry: *const c_void, detour: *const c_void, slot: &Slot) -> bool {
            let target = Target::look(entry, detour, &mut self.mappings).unwrap();
            // SAFETY: the detour has the function's signature.
            let jump = unsafe { Jump::prepare(&target, &mut self.memory, &mut self.mappings) };
            let Ok(jump) = jump else { return false };
            slot.set(jump.original());
            // SAFETY: as above.
            assert!(unsafe { Jump::enable(vec![&jump]) }.is_ok());
            true
        }
    }

    /// Patches a function with the whole engine.
    fn patch(entry: *const c_void, detour: *const c_void, slot: &Slot) -> Result<(), HookError> {
        let mut batch = PatchBatch::begin(|| Box::new(DetourEngine::new()));
        // SAFETY: a function that nothing else calls; the detour has its signature.
        unsafe { batch.prepare(entry, detour, slot) }?;
        assert!(batch.enable().lost.is_empty());
        Ok(())
    }

    /// Maps `code` into pages of its own.
    fn function(code: &[u8], near: usize) -> *const c_void {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: anonymous memory, nothing replaced.
        unsafe {
            let start = libc::mmap(near as *mut c_void, PAGE, writable, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            ptr::copy_nonoverlapping(code.as_ptr(), start.cast(), code.len());
            publish(start.cast(), PAGE);
            assert_eq!(libc::mprotect(start, PAGE, CODE), 0);
            start
        }
    }

    #[test]
    fn functions_of_every_kind_run_the_detour_and_the_way_back() {
        let coded = |case: &Case| {
            case.function().map(|(code, results)| (case.name(), function(code, 0), results))
        };
        // A batch does not know later mappings.
        let all: Vec<_> = cases().filter_map(coded).collect();
        let mut jumps = Jumps::new();
        let mut unfit = Vec::new();
        for (name, address, results) in all {
            let (slot, detour) = (Slot::new(), and_hundred as *const c_void);
            if !jumps.patch(address, detour, &slot) {
                assert!(!slot.is_set(), "{name}");
                unfit.push(name);
                patch(address, detour, &slot).unwrap();
            }
            SLOT.set(slot.get());
            // SAFETY: the code above.
            let patched: Function = unsafe { core::mem::transmute(address) };
            for (argument, result) in [0, 7].into_iter().zip(results) {
                assert_eq!(patched(argument), result + 100, "{name}");
            }
        }
        assert_eq!(unfit, ["a branch into the prologue"]);
        // Two names in the driver may denote one function.
        SLOT.set(ptr::null());
        let address = function(&PLAIN, 0);
        let mut jumps = Jumps::new();
        assert!(jumps.patch(address, and_hundred as *const c_void, &SLOT));
        assert!(jumps.patch(address, and_thousand as *const c_void, &SECOND));
        // SAFETY: the code above.
        let patched: Function = unsafe { core::mem::transmute(address) };
        assert_eq!(patched(7), 12 + 100 + 1000);
    }

    #[test]
    fn a_detour_within_reach_needs_no_relay() {
        let (code, near) = (&PLAIN, 3 << 41);
        let target = function(code, near);
        let detour = function(code, near + 0x10_0000);
        assert!((target as usize).abs_diff(detour as usize) < machine::REACH);
        let slot = Slot::new();
        assert!(Jumps::new().patch(target, detour, &slot));
        // SAFETY: a function of this test's own.
        let patch = unsafe { core::slice::from_raw_parts(target.cast::<u8>(), JUMP) };
        assert_eq!(
            Some(patch),
            machine::near(target as usize, detour as usize).as_ref().map(|p| &p[..])
        );
    }

    /// Maps code from a file, with a breakpoint at its entry.
    fn traced(file: &std::fs::File) -> *const c_void {
        use std::os::fd::AsRawFd;
        let (fd, writable) = (file.as_raw_fd(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping, of one page, whose beginning is in the file.
        unsafe {
            let start = libc::mmap(ptr::null_mut(), PAGE, writable, libc::MAP_PRIVATE, fd, 0);
            assert_ne!(start, libc::MAP_FAILED);
            start.byte_add(64).cast::<[u8; BREAKPOINT.len()]>().write(BREAKPOINT);
            publish(start.cast(), PAGE);
            assert_eq!(libc::mprotect(start, PAGE, CODE), 0);
            start.byte_add(64)
        }
    }

    #[test]
    fn what_a_breakpoint_stands_for_is_in_the_file() {
        let (code, results) = (&PLAIN, RESULTS);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a name with spaces");
        std::fs::write(&path, [&[0; 64], &code[..], &[0xcc; 64]].concat()).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let (address, lost) = (traced(&file), traced(&file));
        let (slot, detour) = (Slot::new(), and_hundred as *const c_void);
        // SAFETY: functions that nothing else calls; the trampoline has their signature.
        unsafe {
            assert!(Jumps::new().patch(address, detour, &slot));
            let original: Function = core::mem::transmute(slot.get());
            assert_eq!([original(0), original(7)], results);
            assert_ne!(address.cast::<[u8; BREAKPOINT.len()]>().read(), BREAKPOINT);
            // The file can no longer be found.
            std::fs::remove_file(&path).unwrap();
            let slot = Slot::new();
            let error = patch(lost, detour, &slot).unwrap_err();
            assert!(error.reason.contains("breakpoint"), "{error}");
            assert_eq!(lost.cast::<[u8; BREAKPOINT.len()]>().read(), BREAKPOINT);
            assert!(!slot.is_set());
        }
    }

    #[test]
    fn what_is_no_code_is_refused_and_left_alone() {
        let code = &PLAIN;
        // Nothing is mapped after it.
        let target = function(code, 5 << 41);
        let data = [0x90_u8; 64];
        let slot = Slot::new();
        let detour = and_hundred as *const c_void;
        assert!(patch(data.as_ptr().cast(), detour, &slot).is_err());
        assert!(patch(target, data.as_ptr().cast(), &slot).is_err());
        assert!(patch(ptr::null(), detour, &slot).is_err());
        // SAFETY: a function of this test's own, in a page of its own.
        unsafe {
            // The last bytes of a page, with nothing mapped after them.
            assert!(!Jumps::new().patch(target.byte_add(PAGE - JUMP + 1), detour, &slot));
            assert_eq!(core::slice::from_raw_parts(target.cast::<u8>(), code.len()), code);
        }
        assert!(!slot.is_set());
    }
}

//! Cases about a function's surroundings: beside others, far away, at a former function's address, under a breakpoint;
//! and about data.

use super::functions::{
    ACROSS, HIDDEN, ONE_MORE, OTHER, PLAIN, PLAIN_LENGTH, SEVEN, SHORT, leading_jump,
};
use super::{
    Case, Failure, Make, Outcome, PLAIN_RESULTS, SECOND, SLOT, and_hundred, and_thousand, expect,
    first_bytes, function, map, patch,
};
use crate::code::machine::{BREAKPOINT, PAGE, publish};
use crate::{Mappings, Slot, Target};
use core::ffi::c_void;
use core::ptr;
use std::fs::File;
use std::os::fd::AsRawFd;

pub(super) const CASES: &[Case] = &[
    Case::other("a target beyond 2 GiB", far),
    Case::other("a leading jump to anywhere", leading_far_jump),
    Case::other("a function packed against the next one", packed),
    Case::other("a longer function packed against the next one", packed_and_longer),
    Case::other("a function shorter than a jump, packed against the next one", packed_and_short),
    Case::other("many functions in one page", many),
    Case::other("a function across two pages", across_pages),
    Case::other("two detours on one function", two_detours),
    Case::other("new code at an address that was patched", loaded_again),
    Case::other("a function that was written back and is patched again", written_back),
    Case::other("what is undone is as it was", undone),
    Case::other("a breakpoint at the entry, and the file tells what it stands for", breakpoint),
    Case::refused("a breakpoint of which nothing is known", unknown_breakpoint),
    Case::refused("data", data),
    Case::refused("a detour that is no code", detour_is_data),
];

unsafe fn far(make: Make) -> Result<Outcome, Failure> {
    // SAFETY: a function of the case's own that nothing else calls.
    unsafe { function(make, map(PLAIN, 3 << 41)?, PLAIN_RESULTS) }
}

unsafe fn leading_far_jump(make: Make) -> Result<Outcome, Failure> {
    let behind = map(PLAIN, 5 << 41)?;
    let code = leading_jump(behind);
    // SAFETY: as above.
    unsafe {
        let outcome = function(make, map(&code, 0)?, PLAIN_RESULTS)?;
        // The target of the jump has other callers.
        expect(behind, "function behind the jump", 7, 12)?;
        Ok(outcome)
    }
}

/// Patches `code`, and calls the function after it.
unsafe fn beside(make: Make, code: &[u8], results: [u64; 2]) -> Result<Outcome, Failure> {
    let mut all = code.to_vec();
    all.extend(ONE_MORE);
    let address = map(&all, 0)?;
    // SAFETY: as above.
    unsafe {
        let outcome = function(make, address, results)?;
        expect(address.byte_add(code.len()), "next function", 7, 8)?;
        Ok(outcome)
    }
}

unsafe fn packed(make: Make) -> Result<Outcome, Failure> {
    // SAFETY: the caller's.
    unsafe { beside(make, SEVEN, [7, 7]) }
}

unsafe fn packed_and_longer(make: Make) -> Result<Outcome, Failure> {
    // SAFETY: the caller's.
    unsafe { beside(make, &PLAIN[..PLAIN_LENGTH], PLAIN_RESULTS) }
}

unsafe fn packed_and_short(make: Make) -> Result<Outcome, Failure> {
    // SAFETY: the caller's.
    unsafe { beside(make, SHORT.0, SHORT.1) }
}

unsafe fn many(make: Make) -> Result<Outcome, Failure> {
    const COUNT: usize = 128;
    let address = map(&PLAIN.repeat(COUNT), 0)?;
    // All have one detour and equivalent trampolines, so the slot's last value will do.
    let slots: Vec<Slot> = (0..COUNT).map(|_| Slot::new()).collect();
    let at = |index: usize| address.wrapping_byte_add(PLAIN.len() * index);
    let functions: Vec<_> = slots
        .iter()
        .enumerate()
        .map(|(index, slot)| (at(index), and_hundred as *const c_void, slot))
        .collect();
    // SAFETY: as above.
    unsafe {
        let outcome = patch(make, &functions)?;
        if outcome == Outcome::Patched {
            for (index, slot) in slots.iter().enumerate() {
                SLOT.set(slot.get());
                expect(at(index), "function", 7, 12 + 100)?;
                expect(slot.get(), "way back", 7, 12)?;
            }
        }
        Ok(outcome)
    }
}

unsafe fn across_pages(make: Make) -> Result<Outcome, Failure> {
    let mut code = vec![0xcc; PAGE - ACROSS];
    code.extend(PLAIN);
    let address = map(&code, 0)?.wrapping_byte_add(PAGE - ACROSS);
    // SAFETY: as above.
    unsafe {
        let outcome = function(make, address, PLAIN_RESULTS)?;
        super::check_rights(address.byte_add(PAGE))?;
        Ok(outcome)
    }
}

/// Two names in the driver may denote one function.
unsafe fn two_detours(make: Make) -> Result<Outcome, Failure> {
    let address = map(PLAIN, 0)?;
    // SAFETY: as above.
    unsafe {
        let first = patch(make, &[(address, and_hundred as *const c_void, &SLOT)])?;
        if first != Outcome::Patched {
            return Ok(first);
        }
        let second = patch(make, &[(address, and_thousand as *const c_void, &SECOND)])?;
        // If the second is refused, the first stays in effect.
        let added = if second == Outcome::Patched { 1100 } else { 100 };
        expect(address, "function patched twice", 7, 12 + added)?;
        Ok(second)
    }
}

/// A library is unloaded, and another one loaded at its address.
unsafe fn loaded_again(make: Make) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::Patched;
    let mut place = 7 << 41;
    // Load identical code again, then different code.
    for (code, added) in [(PLAIN, 5), (PLAIN, 5), (OTHER, 8), (PLAIN, 5)] {
        let address = map(code, place)?;
        if place != 7 << 41 && address as usize != place {
            return Err(Failure::NotMade(place));
        }
        place = address as usize;
        // SAFETY: as above; the page is the case's own.
        unsafe {
            expect(address, "new function", 7, 7 + added)?;
            outcome = patch(make, &[(address, and_thousand as *const c_void, &SECOND)])?;
            if outcome != Outcome::Patched {
                return Ok(outcome);
            }
            expect(address, "new function, patched", 7, 7 + added + 1000)?;
            expect(SECOND.get(), "way back", 7, 7 + added)?;
            libc::munmap(address.cast_mut(), PAGE);
        }
    }
    Ok(outcome)
}

/// Another tool writes the function's own code back; the function can be patched again.
unsafe fn written_back(make: Make) -> Result<Outcome, Failure> {
    let address = map(PLAIN, 0)?;
    // SAFETY: as above; the page is the case's own.
    unsafe {
        for _ in 0..2 {
            let outcome = patch(make, &[(address, and_hundred as *const c_void, &SLOT)])?;
            if outcome != Outcome::Patched {
                return Ok(outcome);
            }
            expect(address, "function", 7, 112)?;
            if !crate::code::forced::write(address as usize, PLAIN) {
                return Err(Failure::NotMade(address as usize));
            }
            expect(address, "function that was written back", 7, 12)?;
        }
    }
    Ok(Outcome::Patched)
}

/// An engine undoes its work on request, before and after it has enabled anything.
unsafe fn undone(make: Make) -> Result<Outcome, Failure> {
    let address = map(PLAIN, 0)?;
    let mut mappings = Mappings::now().ok_or(Failure::NotMade(address as usize))?;
    for enables in [false, true] {
        let mut engine = make();
        // SAFETY: as above.
        unsafe {
            let before = first_bytes(address);
            let detour = and_hundred as *const c_void;
            let prepared = Target::look(address, detour, &mut mappings)
                .and_then(|target| engine.prepare(&target, &mut mappings));
            match prepared {
                Ok(original) => SLOT.set(original),
                Err(error) => return Ok(Outcome::Refused(error.reason)),
            }
            if enables {
                engine.enable().map_err(|error| Failure::Lost(error.reason))?;
                expect(address, "function", 7, 112)?;
            }
            engine.undo();
            drop(engine);
            if first_bytes(address) != before {
                return Err(Failure::NotUndone);
            }
            expect(address, "function that was undone", 7, 12)?;
        }
    }
    super::check_rights(address)?;
    Ok(Outcome::Patched)
}

/// Maps a page of `file`, with a breakpoint at byte 64.
fn traced(file: &File) -> Result<*const c_void, Failure> {
    let (fd, writable) = (file.as_raw_fd(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping, of one page, whose beginning is in the file.
    unsafe {
        let start = libc::mmap(ptr::null_mut(), PAGE, writable, libc::MAP_PRIVATE, fd, 0);
        if start == libc::MAP_FAILED {
            return Err(Failure::NotMade(0));
        }
        start.byte_add(64).cast::<[u8; BREAKPOINT.len()]>().write(BREAKPOINT);
        publish(start.byte_add(64).cast(), BREAKPOINT.len());
        if libc::mprotect(start, PAGE, libc::PROT_READ | libc::PROT_EXEC) != 0 {
            return Err(Failure::NotMade(start as usize));
        }
        Ok(start.byte_add(64))
    }
}

/// A breakpoint set by a tracer or a debugger.
unsafe fn breakpoint(make: Make) -> Result<Outcome, Failure> {
    let path = std::env::temp_dir().join(format!("sluice-breakpoint-{}", std::process::id()));
    let outcome = std::fs::write(&path, [&[0x90; 64], PLAIN, &[0xcc; 64]].concat())
        .and_then(|()| File::open(&path))
        .map_err(|_| Failure::NotMade(0))
        .and_then(|file| traced(&file))
        .and_then(|address| {
            // SAFETY: as above.
            unsafe {
                let detour = and_hundred as *const c_void;
                let outcome = patch(make, &[(address, detour, &SLOT)])?;
                if outcome == Outcome::Patched {
                    expect(address, "function", 7, 112)?;
                    expect(SLOT.get(), "way back", 7, 12)?;
                }
                Ok(outcome)
            }
        });
    let _ = std::fs::remove_file(&path);
    outcome
}

unsafe fn unknown_breakpoint(make: Make) -> Result<Outcome, Failure> {
    let address = map(HIDDEN, 0)?;
    // SAFETY: refused before anything is written; nothing calls it.
    unsafe { patch(make, &[(address, and_hundred as *const c_void, &SLOT)]) }
}

unsafe fn data(make: Make) -> Result<Outcome, Failure> {
    let data = [0x90_u8; 64];
    // SAFETY: refused before anything is written.
    unsafe { patch(make, &[(data.as_ptr().cast(), and_hundred as *const c_void, &SLOT)]) }
}

unsafe fn detour_is_data(make: Make) -> Result<Outcome, Failure> {
    let address = map(PLAIN, 0)?;
    let data = [0x90_u8; 64];
    // SAFETY: as above.
    unsafe { patch(make, &[(address, data.as_ptr().cast(), &SLOT)]) }
}

//! Other threads: some are inside a function while it is patched.

use super::{Case, Failure, Function, Make, Outcome, SLOT, and_hundred, map, patch};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use std::thread;

pub(super) const CASES: &[Case] =
    &[Case::other("threads that are inside the function", threads_inside)];

const THREADS: usize = 4;

/// Threads wait in the function's body, behind what is overwritten, and return when it has been patched.
unsafe fn threads_inside(make: Make) -> Result<Outcome, Failure> {
    // push rbp; mov rbp, rsp; sub rsp, 16; lock inc qword ptr [rdi]; pause; cmp qword ptr [rdi + 8], 0; je -9;
    // mov eax, 5; leave; ret
    const WAIT: &[u8] = &[
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0x48, 0x8d, 0x40, 0, 0x48, 0x8d, 0x40, 0,
        0xf0, 0x48, 0xff, 0x07, 0xf3, 0x90, 0x48, 0x83, 0x7f, 8, 0, 0x74, 0xf7, 0xb8, 5, 0, 0, 0,
        0xc9, 0xc3,
    ];
    let address = map(WAIT, 0)?;
    // How many are inside, and whether they may go.
    let state = [AtomicU64::new(0), AtomicU64::new(0)];
    let argument = state.as_ptr() as u64;
    // SAFETY: the code above, of this signature; its argument points to two numbers.
    let function: Function = unsafe { core::mem::transmute::<*const c_void, Function>(address) };
    let (outcome, results) = thread::scope(|scope| {
        let inside: Vec<_> =
            (0..THREADS).map(|_| scope.spawn(move || function(argument))).collect();
        while state[0].load(Ordering::Acquire) < THREADS as u64 {
            thread::yield_now();
        }
        // SAFETY: no thread is in its first instructions.
        let outcome = unsafe { patch(make, &[(address, and_hundred as *const c_void, &SLOT)]) };
        state[1].store(1, Ordering::Release);
        let results: Vec<u64> =
            inside.into_iter().map(|thread| thread.join().unwrap_or_default()).collect();
        (outcome, results)
    });
    let outcome = outcome?;
    let added = if outcome == Outcome::Patched { 100 } else { 0 };
    let inside = results.into_iter().map(|result| ("function as threads were in it", result, 5));
    let after = [("function", function(argument), 5 + added)];
    for (through, result, expected) in inside.chain(after) {
        if result != expected {
            return Err(Failure::WrongResult { through, argument: 0, result, expected });
        }
    }
    Ok(outcome)
}

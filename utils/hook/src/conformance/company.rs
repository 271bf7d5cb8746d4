//! Cases with other threads, some of them inside a function while it is patched.

use super::functions::WAIT;
use super::{Case, Failure, Function, Make, Outcome, SLOT, and_hundred, map, patch};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use std::thread;

pub(super) const CASES: &[Case] =
    &[Case::other("threads that are inside the function", threads_inside)];

const THREADS: usize = 4;

/// Threads wait in the function's body, after the overwritten instructions, and return when it has been patched.
unsafe fn threads_inside(make: Make) -> Result<Outcome, Failure> {
    let address = map(WAIT, 0)?;
    // The number of threads inside, and whether they may leave.
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

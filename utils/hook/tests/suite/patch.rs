//! Patches one function, as a program's functions are patched.

use core::ffi::c_void;
use core::hint::black_box;
use hook::{Slot, engine};

type Add = extern "C" fn(u64, u64) -> u64;

static SLOT: Slot = Slot::new();

#[inline(never)]
extern "C" fn add(a: u64, b: u64) -> u64 {
    // Long enough to be patched, however it is optimised.
    let mut sum = black_box(a);
    for _ in 0..black_box(1) {
        sum = sum.wrapping_add(black_box(b));
    }
    sum
}

extern "C" fn add_and_ten(a: u64, b: u64) -> u64 {
    // SAFETY: the slot holds the trampoline of `add`, which has this signature.
    let original: Add = unsafe { core::mem::transmute(SLOT.get()) };
    original(a, b) + 10
}

#[test]
fn a_patched_function_runs_the_detour_and_the_way_back_runs_the_original() {
    let target: Add = black_box(add);
    assert_eq!(target(2, 3), 5);
    assert!(!SLOT.is_set());
    // SAFETY: both have the same signature, and nothing else calls `add`.
    unsafe {
        engine().install(add as *const c_void, add_and_ten as *const c_void, &SLOT).unwrap();
    }
    assert!(SLOT.is_set());
    assert_eq!(target(2, 3), 15);
}

#[test]
fn data_is_refused_and_left_alone() {
    let data = [0x90_u8; 32];
    let slot = Slot::new();
    // SAFETY: refused before anything is written.
    let result =
        unsafe { engine().install(data.as_ptr().cast(), add_and_ten as *const c_void, &slot) };
    assert!(result.is_err());
    assert!(!slot.is_set());
    assert!(data.iter().all(|&byte| byte == 0x90));
}

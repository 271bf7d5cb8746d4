//! The engine over a simulated gum. These tests share its state, so only one runs at a time.

use super::simulated::{KEPT, Simulated, engine};
use super::{Engine, Interceptor};
use crate::code::{forced, mappings::Mappings};
use crate::conformance::{Outcome, cases};
use crate::{HookEngine, PatchBatch, Slot, Verified};
use core::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

type Function = extern "C" fn(u64) -> u64;

extern "C" fn hundred(_: u64) -> u64 {
    100
}

/// push rbp; mov rbp, rsp; sub rsp, 16; lea rax, [rdi + 8]; nop x 4; leave; ret: long enough for gum.
const LONG: &[u8] = &[
    0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0x48, 0x8d, 0x47, 8, 0x90, 0x90, 0x90, 0x90,
    0xc9, 0xc3,
];

/// Maps `code` at `place` if that is not zero, or anywhere.
fn map(code: &[u8], place: usize) -> *const c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a new page of the test's own.
    let page = unsafe { libc::mmap(place as *mut c_void, 4096, rights, flags, -1, 0) };
    assert!(page != libc::MAP_FAILED && (place == 0 || page as usize == place));
    // SAFETY: as above.
    assert!(unsafe { forced::write(page as usize, code) });
    page
}

fn unmap(page: *const c_void) {
    // SAFETY: a page of a test's own, in which nothing runs.
    unsafe { libc::munmap(page.cast_mut(), 4096) };
}

fn call(function: *const c_void) -> u64 {
    // SAFETY: code of these tests, of this signature.
    let function: Function = unsafe { core::mem::transmute(function) };
    function(1)
}

fn patched(make: fn() -> Box<dyn HookEngine>, function: *const c_void, slot: &Slot) -> Verified {
    let mut batch = PatchBatch::begin(make);
    // SAFETY: a function of these tests, of the detour's signature.
    unsafe { batch.prepare(function, hundred as *const c_void, slot) }.unwrap();
    batch.enable()
}

fn rights(address: *const c_void) -> i32 {
    Mappings::now().unwrap().at(address as usize).unwrap().0
}

#[test]
fn the_suite_of_every_engine_holds() {
    let _alone = alone();
    let before = Simulated::remembered();
    for case in cases() {
        // SAFETY: one case at a time.
        let outcome = unsafe { case.run(engine) };
        let outcome = outcome.unwrap_or_else(|failure| panic!("{}: {failure}", case.name()));
        if let Outcome::Refused(reason) = outcome {
            let may = case.must_refuse() || case.name().starts_with("a function shorter than");
            assert!(may, "{}: {reason}", case.name());
        }
        assert!(!Simulated::is_open(), "{}", case.name());
    }
    let by_gum = Simulated::remembered() - before;
    assert!(by_gum > 128 + 10, "of all that was patched, gum has patched {by_gum}");
}

/// Without the kept reference, the real gum undoes its patches; a batch finds that out.
#[test]
fn a_gum_that_is_dropped_leaves_nothing_patched() {
    let _alone = alone();
    if KEPT.get().is_some() {
        return not_kept_in_a_process_of_its_own();
    }
    not_kept();
}

fn not_kept() {
    let function = map(LONG, 0);
    let slot = Slot::new();
    let verified = patched(|| Box::new(Engine::over(Simulated::obtain)), function, &slot);
    assert!(verified.patches.is_empty() && verified.lost[0].is_unchanged, "{verified:?}");
    assert_eq!((call(function), slot.get()), (9, function));
}

fn not_kept_in_a_process_of_its_own() {
    let own = std::env::current_exe().unwrap();
    let name = "frida_engine::tests::a_gum_that_is_dropped_leaves_nothing_patched";
    let output = std::process::Command::new(own).args(["--exact", name]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn driver_code_is_protected_again_and_gum_has_patched_it() {
    let _alone = alone();
    let function = map(LONG, 0);
    let slot = Slot::new();
    let before = Simulated::remembered();
    let verified = patched(engine, function, &slot);
    assert_eq!((verified.engine, verified.patches.len()), ("frida-gum", 1), "{verified:?}");
    // The function; not the canary, which is too short for gum.
    assert_eq!(Simulated::remembered(), before + 1);
    assert_eq!(rights(function), libc::PROT_READ | libc::PROT_EXEC);
    assert_eq!((call(function), call(slot.get())), (100, 9));
}

/// Gum remembers the functions of an unloaded library. The function loaded there next is shorter, and has a neighbour.
#[test]
fn a_function_where_gum_remembers_another_one_is_patched_and_whole() {
    let _alone = alone();
    // push rbp; mov rbp, rsp; sub rsp, 16; mov eax, 3; nop; nop; lea rax, [rdi + 256]; leave; ret: the lea reaches from
    // the 16th byte to the 22nd.
    let older = [
        &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0xb8, 3, 0, 0, 0, 0x90, 0x90][..],
        &[0x48, 0x8d, 0x87, 0, 1, 0, 0, 0xc9, 0xc3],
    ]
    .concat();
    let page = map(&older, 0);
    let slot = Slot::new();
    assert_eq!(patched(engine, page, &slot).patches.len(), 1);
    unmap(page);
    // lea rax, [rdi + 8]; ten bytes of nop; ret at the 17th; and the next function.
    let newer = [
        &[
            0x48, 0x8d, 0x47, 8, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
            0x90,
        ][..],
        &[0xc3, 0x48, 0x8d, 0x47, 1, 0xc3],
    ]
    .concat();
    assert_eq!(map(&newer, page as usize), page);
    let verified = patched(engine, page, &slot);
    assert_eq!(verified.patches.len(), 1, "{verified:?}");
    assert_eq!((call(page), call(slot.get())), (100, 9));
    assert_eq!(call(page.wrapping_byte_add(17)), 2);
    // SAFETY: a page of this test's own.
    let behind = unsafe { core::slice::from_raw_parts(page.cast::<u8>().add(16), 6) };
    assert_eq!(behind, &newer[16..]);
}

/// A function that was prepared and never enabled must not be patched by the next batch.
#[test]
fn an_engine_that_is_dropped_before_it_enables_has_done_nothing() {
    let _alone = alone();
    let (function, other) = (map(LONG, 0), map(LONG, 0));
    let (slot, second) = (Slot::new(), Slot::new());
    let mut batch = PatchBatch::begin(engine);
    // SAFETY: a function of this test.
    unsafe { batch.prepare(function, hundred as *const c_void, &slot) }.unwrap();
    drop(batch);
    assert!(!Simulated::is_open());
    assert_eq!(patched(engine, other, &second).patches.len(), 1);
    assert_eq!((call(function), call(other)), (9, 100));
    assert_eq!(rights(function), libc::PROT_READ | libc::PROT_EXEC);
}

/// The simulated gum has the flaws that the tests above rely on.
#[test]
fn the_simulated_gum_does_what_the_engine_has_to_cope_with() {
    let _alone = alone();
    KEPT.get_or_init(Simulated::obtain);
    let mut gum = Simulated::obtain();
    let function = map(LONG, 0);
    let detour = hundred as *const c_void;
    gum.begin();
    gum.replace_fast(function, detour).unwrap();
    assert_eq!(call(function), 9, "it waits");
    gum.end();
    assert_eq!(call(function), 100);
    assert_ne!(rights(function) & libc::PROT_WRITE, 0, "it does not protect again");
    unmap(function);
    assert_eq!(map(LONG, function as usize), function);
    assert!(gum.replace_fast(function, detour).is_err(), "it remembers");
    gum.revert(function);
    assert!(gum.replace_fast(function, detour).is_ok());
    // jmp +3; int3 x 3; then a function with other callers.
    let jump = map(&[&[0xeb, 3, 0xcc, 0xcc, 0xcc][..], LONG].concat(), 0);
    gum.replace_fast(jump, detour).unwrap();
    assert_eq!(call(jump.wrapping_byte_add(5)), 100, "it follows the jump");
    let data = map(LONG, 0);
    // SAFETY: a page of this test's own that nothing executes.
    unsafe { libc::mprotect(data.cast_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE) };
    assert!(gum.replace_fast(data, detour).is_ok(), "it patches data");
    assert!(gum.replace_fast(map(&[0x31, 0xc0, 0xc3], 0), detour).is_err(), "it needs 16 bytes");
}

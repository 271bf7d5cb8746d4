//! Engines that say what is not true: a batch finds them out.

use core::ffi::c_void;
use core::ptr;
use hook::{DetourEngine, HookEngine, HookError, PatchBatch, PatchedEntry, Slot, Verified, engine};

type Function = extern "C" fn(u64) -> u64;

const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;

/// Functions of 64 bytes each: mov rax, rdi; add rax, 5; ret; int3 ...
fn functions(count: usize) -> Vec<*const c_void> {
    let function = [0x48, 0x89, 0xf8, 0x48, 0x83, 0xc0, 5, 0xc3];
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping that nothing executes yet.
    unsafe {
        let start = libc::mmap(ptr::null_mut(), 64 * count, rights, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        start.cast::<u8>().write_bytes(0xcc, 64 * count);
        for index in 0..count {
            let at = start.byte_add(64 * index);
            ptr::copy_nonoverlapping(function.as_ptr(), at.cast(), function.len());
        }
        assert_eq!(libc::mprotect(start, 64 * count, CODE), 0);
        (0..count).map(|index| start.byte_add(64 * index).cast_const()).collect()
    }
}

extern "C" fn hundred(_: u64) -> u64 {
    100
}

extern "C" fn elsewhere(_: u64) -> u64 {
    1
}

fn write(address: *const c_void, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
    memory.write_all_at(bytes, address as u64).unwrap();
}

fn first_bytes(address: *const c_void) -> [u8; 16] {
    // SAFETY: a function of these tests.
    unsafe { ptr::read_volatile(address.cast()) }
}

/// What an engine does to each function that it says it has patched.
#[derive(Clone, Copy)]
enum Does {
    Nothing,
    WritesData,
    LeadsElsewhere,
    EverySecond,
    UndoesWhenDropped,
    /// The functions right, and ours not: it knows which is which.
    OnlyTheTargets,
}

struct Double {
    engine: DetourEngine,
    does: Does,
    count: usize,
    before: Vec<(*const c_void, [u8; 16])>,
}

impl HookEngine for Double {
    fn name(&self) -> &'static str {
        "double"
    }

    unsafe fn install(
        &mut self,
        target: *const c_void,
        detour: *const c_void,
        slot: &Slot,
    ) -> Result<(), HookError> {
        self.count += 1;
        self.before.push((target, first_bytes(target)));
        slot.set(target);
        let detour = match self.does {
            Does::Nothing => return Ok(()),
            Does::EverySecond if self.count.is_multiple_of(2) => return Ok(()),
            Does::OnlyTheTargets if detour != hundred as *const c_void => return Ok(()),
            Does::WritesData => {
                write(target, &[0x90, 0x90, 0x90]);
                return Ok(());
            }
            Does::LeadsElsewhere => elsewhere as *const c_void,
            _ => detour,
        };
        // SAFETY: the caller's.
        unsafe { self.engine.install(target, detour, slot) }
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        if let Does::UndoesWhenDropped = self.does {
            self.before.iter().for_each(|(address, code)| write(*address, code));
        }
    }
}

fn patched(make: impl FnOnce() -> Box<dyn HookEngine>, functions: &[*const c_void]) -> Verified {
    let mut batch = PatchBatch::begin(make);
    for &function in functions {
        // SAFETY: functions of these tests, of one signature; nothing calls them meanwhile.
        unsafe { batch.install(function, hundred as *const c_void, &Slot::new()) }.unwrap();
    }
    batch.end()
}

fn by_double(does: Does) -> (Vec<*const c_void>, Verified) {
    let functions = functions(6);
    let make = || -> Box<dyn HookEngine> {
        Box::new(Double { engine: DetourEngine::new(), does, count: 0, before: Vec::new() })
    };
    let verified = patched(make, &functions);
    (functions, verified)
}

#[test]
fn what_the_engine_of_this_build_patches_is_verified() {
    let functions = functions(6);
    let verified = patched(engine, &functions);
    assert!(verified.lost.is_empty(), "{:?}", verified.lost);
    assert_eq!(verified.patches.len(), 6);
    for &function in &functions {
        // SAFETY: patched with a function of this signature.
        let function: Function = unsafe { core::mem::transmute(function) };
        assert_eq!(function(1), 100);
    }
}

#[test]
fn engines_that_lie_are_found_out() {
    for (does, lost, unchanged) in [
        (Does::Nothing, 6, 6),
        (Does::WritesData, 6, 0),
        (Does::LeadsElsewhere, 6, 0),
        (Does::UndoesWhenDropped, 6, 6),
        // The other half is not believed if our own function was in the wrong half.
        (Does::EverySecond, 3, 3),
        (Does::OnlyTheTargets, 6, 0),
    ] {
        let (_, verified) = by_double(does);
        let same = verified.lost.iter().filter(|lost| lost.is_unchanged).count();
        assert_eq!((verified.lost.len(), same), (lost, unchanged), "{:?}", verified.lost);
        assert_eq!(verified.patches.len() + verified.lost.len(), 6);
    }
}

#[test]
fn a_patch_that_is_undone_later_is_noticed_and_a_breakpoint_is_none() {
    let functions = functions(1);
    let before = first_bytes(functions[0]);
    let verified = patched(engine, &functions);
    let entry = PatchedEntry::new();
    // SAFETY: the function stays mapped.
    let intact = || unsafe { entry.is_intact() };
    assert!(intact() && entry.address().is_null());
    entry.record(&verified.patches[0]);
    assert!(intact());
    assert_eq!(entry.address(), functions[0]);
    let jump = first_bytes(functions[0]);
    write(functions[0], &[0xcc]);
    assert!(intact());
    write(functions[0], &[0xe9, jump[1] ^ 1]);
    assert!(!intact());
    write(functions[0], &before);
    assert!(!intact());
    entry.forget();
    assert!(intact());
}

#[test]
fn a_function_that_refuses_answers_at_once() {
    let functions = functions(1);
    // SAFETY: a function of these tests that returns a number.
    unsafe {
        assert!(hook::refuse(functions[0], 800));
        let function: Function = core::mem::transmute(functions[0]);
        assert_eq!(function(1), 800);
        assert!(!hook::refuse(ptr::null(), 800));
    }
}

//! Engines that report false results, which a batch has to find out.

use core::ffi::c_void;
use core::ptr;
use hook::{
    DetourEngine, HookEngine, HookError, Mappings, PatchBatch, PatchedEntry, Slot, Target,
    Verified, engine,
};

type Function = extern "C" fn(u64) -> u64;

const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;

/// Functions of 64 bytes each: mov rax, rdi; add rax, 5; ret; int3 ...
fn functions(count: usize) -> Vec<*const c_void> {
    let function = [0x48_u8, 0x89, 0xf8, 0x48, 0x83, 0xc0, 5, 0xc3];
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

/// What a double does to each function that it reports as patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Nothing,
    WritesData,
    LeadsElsewhere,
    EverySecond,
    /// As frida-gum does when its last reference is dropped.
    UndoesWhenDropped,
    /// Patches the targets but not the canary, which it recognises.
    OnlyTheTargets,
    /// Patches only some functions, and reports the failure.
    FailsInTheMiddle,
    /// As `FailsInTheMiddle`, and does not undo on request.
    FailsAndUndoesNothing,
    PanicsWhenItPrepares,
    PanicsWhenItEnables,
    /// Changes the functions when it prepares them.
    EnablesTooEarly,
    /// Leads callers through code of its own.
    LeadsThroughOwnCode,
    /// Returns a trampoline that is no code.
    ForgetsTheTrampoline,
}

struct Double {
    engine: DetourEngine,
    does: Does,
    count: usize,
    before: Vec<(*const c_void, [u8; 16])>,
    /// Code that does something before it jumps: its address, and the jump's target.
    own_code: *const c_void,
}

impl Double {
    fn make(does: Does) -> Box<dyn HookEngine> {
        let own_code = functions(1)[0];
        Box::new(Self { engine: DetourEngine::new(), does, count: 0, before: Vec::new(), own_code })
    }

    /// Patches and enables a function at once, with an engine of its own.
    fn at_once(&mut self, target: &Target, mappings: &mut Mappings) {
        let mut engine = DetourEngine::new();
        // SAFETY: the caller of `prepare` vouches for it.
        unsafe {
            engine.prepare(target, mappings).unwrap();
            engine.enable().unwrap();
        }
    }

    fn instead(target: &Target, detour: *const c_void, mappings: &mut Mappings) -> Target {
        Target::look(target.entry(), detour, mappings).unwrap()
    }
}

impl HookEngine for Double {
    fn name(&self) -> &'static str {
        "double"
    }

    unsafe fn prepare(
        &mut self,
        target: &Target,
        mappings: &mut Mappings,
    ) -> Result<*const c_void, HookError> {
        self.count += 1;
        let entry = target.entry();
        self.before.push((entry, first_bytes(entry)));
        let target = match self.does {
            Does::Nothing => return Ok(entry),
            Does::EverySecond if self.count.is_multiple_of(2) => return Ok(entry),
            Does::OnlyTheTargets if target.detour() != hundred as *const c_void => {
                return Ok(entry);
            }
            Does::PanicsWhenItPrepares if self.count == 3 => panic!("a double's own"),
            Does::WritesData => return Ok(entry),
            Does::LeadsElsewhere => Self::instead(target, elsewhere as *const c_void, mappings),
            // mov rax, rdi; add rax, 5; ret: not only a jump.
            Does::LeadsThroughOwnCode => Self::instead(target, self.own_code, mappings),
            Does::EnablesTooEarly => {
                self.at_once(target, mappings);
                return Ok(entry);
            }
            _ => *target,
        };
        // SAFETY: the caller's.
        let original = unsafe { self.engine.prepare(&target, mappings) }?;
        Ok(if self.does == Does::ForgetsTheTrampoline { entry } else { original })
    }

    unsafe fn enable(&mut self) -> Result<(), HookError> {
        if self.does == Does::WritesData {
            self.before.iter().for_each(|(address, _)| write(*address, &[0x90, 0x90, 0x90]));
        }
        // SAFETY: the caller's.
        unsafe { self.engine.enable() }?;
        let (address, _) = self.before[self.before.len() / 2];
        match self.does {
            Does::PanicsWhenItEnables => panic!("a double's own"),
            Does::FailsInTheMiddle | Does::FailsAndUndoesNothing => {
                Err(HookError { address: address as usize, reason: "no memory".to_owned() })
            }
            _ => Ok(()),
        }
    }

    unsafe fn undo(&mut self) {
        if self.does != Does::FailsAndUndoesNothing {
            // SAFETY: the caller's.
            unsafe { self.engine.undo() }
        }
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        if let Does::UndoesWhenDropped = self.does {
            self.before.iter().for_each(|(address, code)| write(*address, code));
        }
    }
}

/// The functions, the slots of the prepared ones, and the errors of the others.
struct Outcome {
    functions: Vec<*const c_void>,
    slots: Vec<Slot>,
    refused: Vec<HookError>,
    verified: Verified,
}

fn patched(make: impl FnOnce() -> Box<dyn HookEngine>) -> Outcome {
    let functions = functions(6);
    let slots: Vec<Slot> = (0..6).map(|_| Slot::new()).collect();
    let mut refused = Vec::new();
    let mut batch = PatchBatch::begin(make);
    for (&function, slot) in functions.iter().zip(&slots) {
        // SAFETY: functions of these tests, of one signature; nothing calls them meanwhile.
        let prepared = unsafe { batch.prepare(function, hundred as *const c_void, slot) };
        refused.extend(prepared.err());
    }
    let verified = batch.enable();
    Outcome { functions, slots, refused, verified }
}

fn call(function: *const c_void) -> u64 {
    // SAFETY: a function of these tests or its trampoline, of this signature.
    let function: Function = unsafe { core::mem::transmute(function) };
    function(1)
}

#[test]
fn what_the_engine_of_this_build_patches_is_verified() {
    let Outcome { functions, slots, refused, verified } = patched(engine);
    assert!(refused.is_empty() && verified.lost.is_empty(), "{refused:?} {:?}", verified.lost);
    assert_eq!((verified.patches.len(), verified.engine), (6, engine().name()));
    for (function, slot) in functions.into_iter().zip(slots) {
        assert_eq!((call(function), call(slot.get())), (100, 6));
    }
}

/// An engine that lies leaves nothing behind: each function is restored, and its slot leads to it.
#[test]
fn engines_that_lie_are_found_out_and_undone() {
    for does in [
        Does::Nothing,
        Does::WritesData,
        Does::LeadsElsewhere,
        Does::UndoesWhenDropped,
        Does::OnlyTheTargets,
        Does::FailsInTheMiddle,
        Does::FailsAndUndoesNothing,
        Does::PanicsWhenItEnables,
        Does::LeadsThroughOwnCode,
        Does::ForgetsTheTrampoline,
    ] {
        let Outcome { functions, slots, refused, verified } = patched(|| Double::make(does));
        let lost: Vec<_> = verified.lost.iter().map(|lost| lost.error.address).collect();
        let all: Vec<_> = functions.iter().map(|&function| function as usize).collect();
        assert!(refused.is_empty() && verified.patches.is_empty(), "{does:?}: {verified:?}");
        assert_eq!(lost, all, "{does:?}: {verified:?}");
        assert!(verified.lost.iter().all(|lost| lost.is_unchanged), "{does:?}: {verified:?}");
        for (function, slot) in functions.into_iter().zip(slots) {
            assert_eq!((call(function), slot.get()), (6, function), "{does:?}");
        }
    }
}

/// The failing function and those undone because of it are named.
#[test]
fn the_reason_of_a_batch_that_is_undone_is_told() {
    let Outcome { functions, verified, .. } = patched(|| Double::make(Does::FailsInTheMiddle));
    let reasons: Vec<_> = verified.lost.iter().map(|lost| lost.error.reason.as_str()).collect();
    let failed = reasons.iter().filter(|&&reason| reason == "no memory").count();
    let undone = reasons.iter().filter(|reason| {
        reason.starts_with("undone, because the hook engine failed")
            && reason.ends_with("no memory")
    });
    assert_eq!((failed, undone.count()), (1, functions.len() - 1), "{reasons:?}");
}

/// If half of the functions and the canary are patched, the other half is reported as lost.
#[test]
fn a_function_that_is_left_out_is_lost_alone() {
    let Outcome { functions, verified, .. } = patched(|| Double::make(Does::EverySecond));
    assert_eq!((verified.patches.len(), verified.lost.len()), (3, 3), "{verified:?}");
    assert!(verified.lost.iter().all(|lost| lost.is_unchanged));
    assert_eq!(functions.into_iter().map(call).collect::<Vec<_>>(), [100, 6, 100, 6, 100, 6]);
}

#[test]
fn an_engine_that_panics_refuses_one_function() {
    let Outcome { functions, slots, refused, verified } =
        patched(|| Double::make(Does::PanicsWhenItPrepares));
    assert_eq!((refused.len(), verified.patches.len()), (1, 5), "{refused:?} {verified:?}");
    assert!(refused[0].reason.contains("panicked"), "{refused:?}");
    assert_eq!((call(functions[2]), slots[2].is_set()), (6, false));
}

/// The trampoline of a changed function would be wrong; the canary shows that.
#[test]
fn an_engine_that_enables_too_early_is_not_believed() {
    let Outcome { verified, .. } = patched(|| Double::make(Does::EnablesTooEarly));
    assert!(verified.patches.is_empty(), "{verified:?}");
}

#[test]
fn no_engine_is_asked_to_patch_data_or_one_function_twice() {
    struct Never;
    impl HookEngine for Never {
        fn name(&self) -> &'static str {
            "never"
        }
        unsafe fn prepare(
            &mut self,
            target: &Target,
            _: &mut Mappings,
        ) -> Result<*const c_void, HookError> {
            assert!(target.detour() != hundred as *const c_void, "it was asked");
            Ok(target.entry())
        }
        unsafe fn enable(&mut self) -> Result<(), HookError> {
            Ok(())
        }
        unsafe fn undo(&mut self) {}
    }
    let data = Box::new([0x90_u8; 64]);
    let code = functions(1)[0];
    let (detour, slot) = (hundred as *const c_void, Slot::new());
    let mut batch = PatchBatch::begin(|| Box::new(Never));
    for (target, detour) in
        [(data.as_ptr().cast(), detour), (code, data.as_ptr().cast()), (ptr::null(), detour)]
    {
        // SAFETY: refused before anything is written.
        let error = unsafe { batch.prepare(target, detour, &slot) }.unwrap_err();
        assert!(error.reason.contains("executable memory"), "{error}");
    }
    drop(batch);
    let mut batch = PatchBatch::begin(engine);
    // SAFETY: a function of these tests.
    unsafe {
        batch.prepare(code, detour, &slot).unwrap();
        let error = batch.prepare(code, elsewhere as *const c_void, &slot).unwrap_err();
        assert!(error.reason.contains("already in this batch"), "{error}");
    }
    assert!(batch.enable().lost.is_empty() && !slot.get().is_null());
    assert_eq!((call(code), *data), (100, [0x90; 64]));
}

#[test]
fn a_patch_that_is_undone_later_is_noticed_and_a_breakpoint_is_none() {
    let Outcome { functions, verified, .. } = patched(engine);
    let before = [0x48, 0x89, 0xf8, 0x48, 0x83, 0xc0, 5, 0xc3];
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

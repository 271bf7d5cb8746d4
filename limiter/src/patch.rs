//! Notices that a driver library has been loaded, and patches it before any thread can call it.

use crate::config::{Config, OnFailure, ProcessEnvironment};
use crate::driver_calls;
use crate::hooks::{self, Library, cancellation};
use crate::per_process::Turnstile;
use crate::{report, unpatched};
use core::ffi::c_void;
use core::ptr;
use driver::cuda::CuResult;
use driver::nvml::NvmlReturn;
use hook::loader;
use hook::{self, HookEngine, Slot};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe};

/// File that gets a line for each symbol, `library TAB symbol TAB state`: see `sluice hooks`.
const REPORT_FILE: &str = "SLUICE_HOOK_REPORT";

/// The libraries seen in the loader's list.
struct KnownLibraries {
    /// In the list's order.
    libraries: Vec<(usize, usize)>,
    patched: [Option<(usize, usize)>; 2],
}

static SEEN: Turnstile<KnownLibraries> =
    Turnstile::new(KnownLibraries { libraries: Vec::new(), patched: [None; 2] });

fn failed(message: String) {
    unpatched::note(message);
    // From now on launches must be looked at even if no time limit is set.
    crate::compute::set_gated(None);
}

/// Starts the loader watch, and patches the libraries that are already loaded.
///
/// # Safety
/// To be called from a constructor.
pub(crate) unsafe fn start() {
    crate::process::watch_forks();
    not_cancelled(crate::process::hold_session);
    not_cancelled(|| {
        // SAFETY: the caller is a constructor.
        if let Err(error) = unsafe { loader::watch(hook::engine, on_change) } {
            report::once(format_args!("{error}; CUDA programs are not limited in this process"));
        }
    });
}

/// Runs `work` in the middle of the loader's work, which cannot be unwound. A panic ends here.
fn not_cancelled(work: impl FnOnce()) {
    let before = cancellation::put_off();
    let _ = panic::catch_unwind(AssertUnwindSafe(work));
    cancellation::allow_again(before);
}

/// The loader's lock is held: nothing here may load a library or wait for another thread.
fn on_change() {
    // The loader's lock keeps other threads out. A signal handler that loads libraries while this runs is
    // turned away.
    not_cancelled(|| SEEN.pass(look));
}

/// The list as it was, searched in its order: a program may have hundreds of libraries and load them one by
/// one.
struct Before<'a> {
    libraries: &'a [(usize, usize)],
    /// The position after the last library that was searched for and found.
    next: usize,
}

impl Before<'_> {
    fn has(&mut self, library: (usize, usize)) -> bool {
        let (passed, ahead) = self.libraries.split_at(self.next);
        match ahead.iter().position(|&other| other == library) {
            Some(unloaded) => {
                self.next += unloaded + 1;
                true
            }
            None => passed.contains(&library),
        }
    }
}

fn look(seen: &mut KnownLibraries) {
    let mut present = Vec::with_capacity(seen.libraries.len() + 1);
    let mut fresh = Vec::new();
    let mut before = Before { libraries: &seen.libraries, next: 0 };
    // SAFETY: called by the watch only, when the list is at rest.
    unsafe {
        loader::libraries(&mut |library| {
            present.push(library.key());
            if !before.has(library.key()) {
                fresh.push(library);
            }
        });
    }
    seen.libraries = present;
    for (kind, key) in [Library::Cuda, Library::Nvml].into_iter().zip(&mut seen.patched) {
        if key.is_some_and(|key| !seen.libraries.contains(&key)) {
            *key = None;
            unloaded(kind);
        }
    }
    for library in fresh {
        let kind = match library.soname() {
            Some(name) if name == Library::Cuda.soname() => Library::Cuda,
            Some(name) if name == Library::Nvml.soname() => Library::Nvml,
            _ => continue,
        };
        let slot = &mut seen.patched[kind as usize];
        if slot.is_some() {
            further_copy(kind, &library);
            continue;
        }
        *slot = Some(library.key());
        patch(kind, library);
    }
}

/// The patched copy has been unloaded. Further copies lead to it, so calls into them fail from now on.
fn unloaded(kind: Library) {
    let gone = match kind {
        Library::Cuda => {
            driver_calls::library::unloaded();
            driver_is_gone as *const c_void
        }
        Library::Nvml => nvml_is_gone as *const c_void,
    };
    let slots = hooks::all().filter(|hook| hook.library == kind).map(|hook| hook.slot);
    for slot in slots.filter(|slot| slot.is_set()) {
        slot.set(gone);
    }
    let is_nvml = kind == Library::Nvml;
    for (_, slot) in
        driver_calls::CALLS.iter().filter(|(name, _)| name.starts_with("nvml") == is_nvml)
    {
        slot.set(ptr::null());
    }
}

/// Stands in for a function whose arguments do not matter any more.
extern "C" fn driver_is_gone() -> CuResult {
    CuResult::DEINITIALIZED
}

extern "C" fn nvml_is_gone() -> NvmlReturn {
    NvmlReturn::UNINITIALIZED
}

fn patch(kind: Library, library: loader::Library) {
    let wanted: HashMap<&str, &hooks::Hook> =
        hooks::all().filter(|hook| hook.library == kind).map(|hook| (hook.symbol, hook)).collect();
    let own: HashMap<&str, &Slot> = driver_calls::CALLS.iter().copied().collect();
    let mut engine = hook::engine();
    let mut states: HashMap<&str, String> = HashMap::new();
    // The trampoline of each patched function. A function may have several names but is patched once: the
    // trampoline of a second patch would lead to the hook of the first.
    let mut ways_back: HashMap<*const c_void, *const c_void> = HashMap::new();
    library.functions(&mut |symbol| {
        let Some(hook) = wanted.get(symbol.name) else { return };
        let installed = match ways_back.get(&symbol.address) {
            Some(&way_back) => {
                hook.slot.set(way_back);
                Ok(())
            }
            None => install(engine.as_mut(), symbol.address, hook),
        };
        let state = match installed {
            Ok(()) => {
                ways_back.insert(symbol.address, hook.slot.get());
                "patched".to_owned()
            }
            Err(error) => {
                failed(format!("{}: {error}", hook.symbol));
                format!("failed:{}", error.reason)
            }
        };
        states.insert(hook.symbol, state);
    });
    library.functions(&mut |symbol| {
        if let Some(slot) = own.get(symbol.name) {
            slot.set(ways_back.get(&symbol.address).copied().unwrap_or(symbol.address));
        }
    });
    if kind == Library::Cuda {
        driver_calls::library::loaded(library.handle());
    }
    write_report(kind, &states);
}

/// A library is patched once in a process, because a hook has one trampoline. A further copy (another path,
/// another namespace of the loader) must not bypass the limits. So its hooked functions lead to the first
/// copy. The further copy is then never initialised, and its other functions only fail.
fn further_copy(kind: Library, library: &loader::Library) {
    let config = Config::from_env(&ProcessEnvironment);
    if config.as_ref().is_ok_and(|config| !config.keeps_account()) {
        return;
    }
    let copy = format!("a second {} was loaded from {}", kind.soname(), library.path());
    match kind {
        // Its handles mean nothing to the first copy.
        Library::Nvml => report::once(format_args!("{copy}: it shows the device, not the limits")),
        Library::Cuda if config.is_ok_and(|config| config.on_failure == OnFailure::Open) => {
            report::once(format_args!("{copy}: calls into it are NOT limited"));
        }
        Library::Cuda => {
            report::once(format_args!("{copy}: calls into it go to the first, or fail"));
            let mut engine = hook::engine();
            library.functions(&mut |symbol| {
                let hook =
                    hooks::all().find(|hook| hook.library == kind && hook.symbol == symbol.name);
                let Some(hook) = hook else { return };
                // SAFETY: as in `install`; nobody calls the original.
                let redirected =
                    unsafe { engine.install(symbol.address, hook.entry, &Slot::new()) };
                if let Err(error) = redirected {
                    failed(format!("{copy}: {}: {error}", hook.symbol));
                }
            });
        }
    }
}

/// Patches one function; a panic of the engine counts as a failure of this function only.
fn install(
    engine: &mut dyn HookEngine,
    target: *const c_void,
    hook: &hooks::Hook,
) -> Result<(), hook::HookError> {
    let install = AssertUnwindSafe(|| {
        // SAFETY: the library has just been loaded, so nobody executes it yet; the declaration of the
        // hook repeats the driver's signature.
        unsafe { engine.install(target, hook.entry, hook.slot) }
    });
    panic::catch_unwind(install).unwrap_or_else(|_| {
        Err(hook::HookError { address: target as usize, reason: "the engine panicked".to_owned() })
    })
}

fn write_report(kind: Library, states: &HashMap<&str, String>) {
    let Some(path) = std::env::var_os(REPORT_FILE).filter(|path| !path.is_empty()) else { return };
    let mut text = String::new();
    for hook in hooks::all().filter(|hook| hook.library == kind) {
        let state = states.get(hook.symbol).map_or("absent", String::as_str);
        text.push_str(&format!("{}\t{}\t{state}\n", kind.soname(), hook.symbol));
    }
    let written = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    if let Err(error) = written {
        report::once(format_args!("{REPORT_FILE}={}: {error}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(before: &[usize], now: &[usize]) -> Vec<usize> {
        let libraries: Vec<_> = before.iter().map(|&base| (base, 0)).collect();
        let mut before = Before { libraries: &libraries, next: 0 };
        now.iter().copied().filter(|&base| !before.has((base, 0))).collect()
    }

    #[test]
    fn only_new_libraries_are_fresh() {
        assert_eq!(fresh(&[], &[1, 2]), [1, 2]);
        assert_eq!(fresh(&[1, 2], &[1, 2, 3]), [3]);
        // One was unloaded, another loaded.
        assert_eq!(fresh(&[1, 2, 3, 4], &[1, 3, 4, 5]), [5]);
        // A namespace before the last one has grown.
        assert_eq!(fresh(&[1, 2, 8, 9], &[1, 2, 3, 8, 9]), [3]);
        // The loader itself is in the list of every namespace.
        assert_eq!(fresh(&[1, 2], &[1, 2, 8, 2]), [8]);
        assert_eq!(fresh(&[1, 2, 8, 2], &[1, 2, 8, 2, 9]), [9]);
        assert!(fresh(&[1, 2, 8, 2], &[1, 2]).is_empty());
        // Whatever the order.
        assert_eq!(fresh(&[1, 2, 3], &[3, 1, 4, 2]), [4]);
    }
}

//! Notices that a driver library has been loaded, and patches it before any thread can call it.

use crate::driver_calls::{self, library::Start};
use crate::environment;
use crate::hooks::{self, Library, cancellation};
use crate::per_process::Turnstile;
use crate::verdict::LimiterFailure;
use crate::{device, report, unpatched};
use config::{Config, OnFailure};
use core::ffi::c_void;
use core::ptr;
use driver::cuda::CuResult;
use driver::nvml::NvmlReturn;
use hook::loader;
use hook::{Patch, PatchBatch, Slot};
use std::collections::HashMap;
use std::ffi::CString;
use std::panic::{self, AssertUnwindSafe};

/// The libraries seen in the loader's list.
struct KnownLibraries {
    /// In the list's order.
    libraries: Vec<(usize, usize)>,
    patched: [Option<(usize, usize)>; 2],
    /// Where the stack ended when the driver was patched.
    stack: usize,
}

static SEEN: Turnstile<KnownLibraries> =
    Turnstile::new(KnownLibraries { libraries: Vec::new(), patched: [None; 2], stack: 0 });

fn failed(message: String) {
    unpatched::note(message);
    // From now on launches must be looked at even if no compute share is set.
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
            not_watched(&error);
        }
    });
}

/// Nobody tells of libraries that are loaded from now on. So the driver is loaded now, and patched.
fn not_watched(error: &loader::WatchError) {
    let config = configuration();
    let is_limited = may_be_limited(&config);
    let load = |library: Library| {
        let name = CString::new(library.soname()).unwrap_or_default();
        // SAFETY: a constructor may load libraries. Each stays loaded: its next load would not be noticed.
        unsafe { !libc::dlopen(name.as_ptr(), libc::RTLD_LAZY).is_null() }
    };
    // NVML may be missing.
    let [has_driver, _] = [Library::Cuda, Library::Nvml].map(|library| is_limited && load(library));
    on_change();
    if unpatched::failure().is_some() {
        // It was announced.
    } else if has_driver {
        report::once(format_args!("{error}; a driver loaded from another file is NOT limited"));
    } else if is_limited {
        cannot_refuse(&error.to_string(), &config);
    }
}

/// Calls of a driver that has not started neither arrive nor can be refused. The last resort is that it finds no device.
fn cannot_refuse(failure: &str, config: &Option<Config>) {
    if on_failure(config) == OnFailure::Open {
        let _ = LimiterFailure(failure.to_owned()).lets_pass(OnFailure::Open);
        return;
    }
    // SAFETY: constants. Other threads that read the environment at this moment are the C library's to deal with.
    unsafe { libc::setenv(c"CUDA_VISIBLE_DEVICES".as_ptr(), c"-1".as_ptr(), 1) };
    report::once(format_args!(
        "{failure}; CUDA_VISIBLE_DEVICES=-1 now hides all GPUs from this process; if the process changes that \
         variable, it is NOT limited"
    ));
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

/// Looks at the driver's patches, in a thread of the limiter's own.
fn check_again() {
    if unpatched::failure().is_some() || !driver_calls::library::is_kept() {
        return;
    }
    // SAFETY: it stays loaded.
    unsafe { hooks::look_at_patches(Library::Cuda) };
    if unpatched::failure().is_some() {
        // Says it where there is a limit.
        let _ = crate::process::get().cuda();
    }
}

/// What is configured; `None`: it cannot be read. Asked for only where something is not as it should be.
fn configuration() -> Option<Config> {
    environment::decided().ok().map(|decided| decided.config)
}

fn on_failure(config: &Option<Config>) -> OnFailure {
    config.as_ref().map_or(OnFailure::Closed, |config| config.on_failure)
}

/// Whether there is any limit. What cannot be read may hold one.
fn may_be_limited(config: &Option<Config>) -> bool {
    config.as_ref().is_none_or(|config| !config.control_disabled && device::is_limited(config))
}

/// Says that limits cannot be enforced when that is found out, and not only in the first call that fails. What has
/// no limit is left alone. `reached`: the program's calls arrive at least in `cuInit`, which then fails.
fn announce(reached: bool) {
    let Some(failure) = unpatched::failure() else { return };
    let config = configuration();
    if !may_be_limited(&config) {
        return;
    }
    if reached {
        let _ = LimiterFailure(failure.to_owned()).lets_pass(on_failure(&config));
    } else {
        cannot_refuse(failure, &config);
    }
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
    let here = (&raw const present).addr();
    seen.libraries = present;
    for (kind, key) in [Library::Cuda, Library::Nvml].into_iter().zip(&mut seen.patched) {
        if key.is_some_and(|key| !seen.libraries.contains(&key)) {
            *key = None;
            unloaded(kind);
        }
    }
    for library in fresh {
        let kind = match library.soname().as_deref() {
            Some(name) if name == Library::Cuda.soname() => Library::Cuda,
            Some(name) if name == Library::Nvml.soname() => Library::Nvml,
            _ => continue,
        };
        let slot = &mut seen.patched[kind as usize];
        if let Some(first) = *slot
            && !hands_on(kind, first, here < seen.stack)
        {
            further_copy(kind, &library);
            continue;
        }
        *slot = Some(library.key());
        if kind == Library::Cuda {
            // More than different ways to load a library take.
            seen.stack = here.saturating_sub(512);
        }
        patch(kind, library);
    }
    let before = unpatched::failure().is_some();
    for kind in [Library::Cuda, Library::Nvml] {
        if seen.patched[kind as usize].is_some() {
            // SAFETY: it is in the loader's list, whose lock is held.
            unsafe { hooks::look_at_patches(kind) };
        }
    }
    if !before {
        announce(true);
    }
}

/// The patched copy has been unloaded. Further copies lead to it, so calls into them fail from now on.
fn unloaded(kind: Library) {
    let gone = match kind {
        Library::Cuda => {
            driver_calls::library::unloaded();
            driver_is_gone as *const c_void
        }
        Library::Nvml => {
            driver_calls::library::nvml_unloaded();
            nvml_is_gone as *const c_void
        }
    };
    let slots = hooks::all().filter(|hook| hook.library == kind).map(|hook| hook.slot);
    for slot in slots.filter(|slot| slot.is_set()) {
        slot.set(gone);
    }
    hooks::all().filter(|hook| hook.library == kind).for_each(|hook| hook.patch.forget());
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

/// A hooked function that a library has.
struct Found {
    hook: &'static hooks::Hook,
    address: *const c_void,
    outcome: Result<(), hook::HookError>,
    /// Of the function that has the same address and was found before.
    same_as: Option<usize>,
}

/// What became of a library's functions.
struct Patched {
    engine: &'static str,
    found: Vec<Found>,
    patches: Vec<Patch>,
}

/// Patches the functions of a library, each once: it may have several names, and the trampoline of a second patch
/// would lead to the hook of the first. `slots`: whether the hooks lead back into this library. What an engine says
/// is not believed but verified.
fn patch_all(kind: Library, library: &loader::Library, slots: bool) -> Patched {
    let wanted: HashMap<&str, &'static hooks::Hook> =
        hooks::all().filter(|hook| hook.library == kind).map(|hook| (hook.symbol, hook)).collect();
    let unused = Slot::new();
    let mut batch = PatchBatch::begin(hook::engine);
    let mut found: Vec<Found> = Vec::new();
    let mut first: HashMap<*const c_void, usize> = HashMap::new();
    library.functions(&mut |symbol| {
        let (Some(&hook), address) = (wanted.get(symbol.name), symbol.address) else { return };
        let same_as = first.get(&address).copied();
        let outcome = match same_as.and_then(|index| found.get(index)) {
            Some(known) => known.outcome.clone(),
            None => {
                first.insert(address, found.len());
                let slot = if slots { hook.slot } else { &unused };
                // SAFETY: the library has just been loaded, so nobody executes it yet; the declaration of the
                // hook repeats the driver's signature.
                unsafe { batch.prepare(address, hook.entry, slot) }
            }
        };
        found.push(Found { hook, address, outcome, same_as });
    });
    let verified = batch.enable();
    let lost: HashMap<usize, &hook::Lost> =
        verified.lost.iter().map(|lost| (lost.error.address, lost)).collect();
    for index in 0..found.len() {
        let original = found[index].same_as.map(|first| found[first].hook.slot.get());
        let function = &mut found[index];
        if let (Ok(()), Some(lost)) = (&function.outcome, lost.get(&(function.address as usize))) {
            function.outcome = Err(lost.error.clone());
        }
        if let Some(original) = original.filter(|_| slots) {
            function.hook.slot.set(original);
        }
    }
    Patched { engine: verified.engine, found, patches: verified.patches }
}

fn patch(kind: Library, library: loader::Library) {
    let is_first = unpatched::failure().is_none();
    let Patched { engine, found, patches } = patch_all(kind, &library, true);
    let patches: HashMap<usize, &Patch> =
        patches.iter().map(|patch| (patch.address, patch)).collect();
    // The trampoline of each patched function.
    let mut ways_back: HashMap<*const c_void, *const c_void> = HashMap::new();
    let mut states: HashMap<&str, String> = HashMap::new();
    for function in &found {
        let state = match &function.outcome {
            Ok(()) => {
                if let Some(patch) = patches.get(&(function.address as usize)) {
                    function.hook.patch.record(patch);
                }
                "patched".to_owned()
            }
            Err(error) => {
                failed(format!("{}: {error}", function.hook.symbol));
                format!("failed:{}", error.reason)
            }
        };
        if function.hook.slot.is_set() {
            ways_back.insert(function.address, function.hook.slot.get());
        }
        states.insert(function.hook.symbol, state);
    }
    let own: HashMap<&str, &Slot> = driver_calls::CALLS.iter().copied().collect();
    library.functions(&mut |symbol| {
        if let Some(slot) = own.get(symbol.name) {
            slot.set(ways_back.get(&symbol.address).copied().unwrap_or(symbol.address));
        }
    });
    if kind == Library::Cuda {
        driver_calls::library::loaded(library.handle());
        unpatched::check_by(check_again);
    } else {
        driver_calls::library::nvml_loaded(library.handle());
    }
    write_report(kind, engine, &states);
    if kind == Library::Cuda && !states.contains_key("cuInit") {
        // Every driver has it: this one's table of symbols is not what it seems.
        failed(format!(
            "cuInit: not found among the symbols of {}, which therefore cannot be patched",
            library.path()
        ));
        announce(false);
    }
    close(&found, is_first);
}

/// Says at once what could not be patched. Where the hook of `cuInit` is among it, `cuInit` itself is made to
/// refuse: without it no other call works. `is_first`: nothing failed before, so what NVML lacks was not announced.
fn close(found: &[Found], is_first: bool) {
    if found.iter().all(|function| function.outcome.is_ok()) {
        return;
    }
    let init = found.iter().find(|function| function.hook.symbol == "cuInit");
    let is_driver = found.iter().any(|function| function.hook.library == Library::Cuda);
    let reached = init.is_none_or(|init| init.outcome.is_ok() || refuses(init));
    if is_driver || is_first {
        announce(reached);
    }
}

/// Makes a function refuse its calls, where the policy is to refuse them.
fn refuses(function: &Found) -> bool {
    let config = configuration();
    let closed = may_be_limited(&config) && on_failure(&config) == OnFailure::Closed;
    // SAFETY: as in `patch_all`; `cuInit` is longer than six bytes, and returns a CUresult.
    closed && unsafe { hook::refuse(function.address, CuResult::NOT_PERMITTED.0) }
}

/// Whether the first copy of the driver, which has not started, is loading the other: it hands calls on, as WSL's does.
/// The other is the driver then. The hooks of both lead into it, past the first: each call is counted once. `is_nested`: the
/// stack is longer than when the first was loaded, as in its constructors.
fn hands_on(kind: Library, first: (usize, usize), is_nested: bool) -> bool {
    let state = driver_calls::library::state();
    let may_load = state == Start::Begun || (state == Start::Not && is_nested);
    kind == Library::Cuda && may_load && loader::is_calling(first.0)
}

/// A library is patched once in a process, because a hook has one trampoline. A further copy (another path,
/// another namespace of the loader) must not bypass the limits. So its hooked functions lead to the first
/// copy. The further copy is then never initialised, and its other functions only fail.
fn further_copy(kind: Library, library: &loader::Library) {
    let config = configuration();
    if config.as_ref().is_some_and(|config| !config.keeps_account()) {
        return;
    }
    let copy = format!("a second {} was loaded from {}", kind.soname(), library.path());
    match kind {
        // Its handles mean nothing to the first copy.
        Library::Nvml => report::once(format_args!("{copy}: it shows the device, not the limits")),
        Library::Cuda if config.is_some_and(|config| config.on_failure == OnFailure::Open) => {
            report::once(format_args!("{copy}: calls into it are NOT limited"));
        }
        Library::Cuda => {
            report::once(format_args!("{copy}: calls into it go to the first, or fail"));
            let found = patch_all(kind, library, false).found;
            for function in &found {
                if let Err(error) = &function.outcome {
                    failed(format!("{copy}: {}: {error}", function.hook.symbol));
                }
            }
            close(&found, true);
        }
    }
}

fn write_report(kind: Library, engine: &str, states: &HashMap<&str, String>) {
    let line = |hook: &hooks::Hook| {
        let state = states.get(hook.symbol).map_or("absent", String::as_str);
        unpatched::line(kind.soname(), hook.symbol, state)
    };
    unpatched::write_report(|| {
        let functions = hooks::all().filter(|hook| hook.library == kind).map(line);
        unpatched::engine_line(kind.soname(), engine) + &functions.collect::<String>()
    });
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

//! Notices that a driver library has been loaded, and patches it before any thread can call it. The loader watch calls
//! this.

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

/// The libraries in the loader's list.
struct KnownLibraries {
    /// The whole list, in the loader's order.
    libraries: Vec<(usize, usize)>,
    /// The patched copies of driver and NVML.
    patched: [Option<(usize, usize)>; 2],
    /// The stack's end when the driver was patched.
    stack: usize,
}

static SEEN: Turnstile<KnownLibraries> =
    Turnstile::new(KnownLibraries { libraries: Vec::new(), patched: [None; 2], stack: 0 });

fn failed(message: String) {
    unpatched::note(message);
    // From now on every launch has to check, even without a compute share.
    crate::compute::set_gated(None);
}

/// Starts the loader watch, and patches the libraries that are already loaded.
///
/// # Safety
/// Must be called from a constructor.
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

/// Fallback without a loader watch: loads the driver now and patches it.
fn not_watched(error: &loader::WatchError) {
    let config = configuration();
    let is_limited = may_be_limited(&config);
    let load = |library: Library| {
        let name = CString::new(library.soname()).unwrap_or_default();
        // SAFETY: a constructor may load libraries. Each stays loaded: its next load would not be noticed.
        unsafe { !libc::dlopen(name.as_ptr(), libc::RTLD_LAZY).is_null() }
    };
    // A missing NVML is no failure.
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

/// Fallback when calls into the driver neither reach a hook nor can be refused: hides all devices from it.
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

/// Runs `work` inside the loader, through which nothing may unwind. A panic ends here.
fn not_cancelled(work: impl FnOnce()) {
    let before = cancellation::put_off();
    let _ = panic::catch_unwind(AssertUnwindSafe(work));
    cancellation::allow_again(before);
}

/// Called with the loader's lock held: must not load a library or wait for another thread.
fn on_change() {
    // The loader's lock keeps other threads out; a signal handler that loads libraries meanwhile is turned away.
    not_cancelled(|| SEEN.pass(look));
}

/// Checks the driver's patches, from a thread of the limiter.
fn check_again() {
    if unpatched::failure().is_some() || !driver_calls::library::is_kept() {
        return;
    }
    // SAFETY: it stays loaded.
    unsafe { hooks::look_at_patches(Library::Cuda) };
    if unpatched::failure().is_some() {
        // Reports the failure if there is a limit.
        let _ = crate::process::get().cuda();
    }
}

/// The configuration; `None`: unreadable. Read only when something is wrong.
fn configuration() -> Option<Config> {
    environment::decided().ok().map(|decided| decided.config)
}

fn on_failure(config: &Option<Config>) -> OnFailure {
    config.as_ref().map_or(OnFailure::Closed, |config| config.on_failure)
}

/// Whether there may be a limit; an unreadable configuration counts as one.
fn may_be_limited(config: &Option<Config>) -> bool {
    config.as_ref().is_none_or(|config| !config.control_disabled && device::is_limited(config))
}

/// Reports at once that limits cannot be enforced, instead of at the first call that fails. Does nothing without a
/// limit. `reached`: whether at least `cuInit` reaches its hook, which then fails.
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

/// The previous list, searched in order: a program may have hundreds of libraries and load them one by one.
struct Before<'a> {
    libraries: &'a [(usize, usize)],
    /// The position after the library found last.
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
            // More than the stack depth varies between the ways to load a library.
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

/// Makes further copies fail after the patched copy, to which they lead, has been unloaded.
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

/// Replaces any function of the unloaded driver; ignores the arguments.
extern "C" fn driver_is_gone() -> CuResult {
    CuResult::DEINITIALIZED
}

extern "C" fn nvml_is_gone() -> NvmlReturn {
    NvmlReturn::UNINITIALIZED
}

/// A hooked function of a library.
struct Found {
    hook: &'static hooks::Hook,
    address: *const c_void,
    outcome: Result<(), hook::HookError>,
    /// Index of the first function at the same address.
    same_as: Option<usize>,
}

/// The result of patching a library.
struct Patched {
    engine: &'static str,
    found: Vec<Found>,
    patches: Vec<Patch>,
}

/// Patches the functions of a library, each once: an address may have several names, and the trampoline of a second
/// patch would lead to the first hook. `slots`: whether the hooks lead back into this library. The result is verified,
/// whatever the engine reports.
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
    // The trampoline of each patched function, by address.
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
        // Every driver has `cuInit`, so this library's symbol table is not to be trusted.
        failed(format!(
            "cuInit: not found among the symbols of {}, which therefore cannot be patched",
            library.path()
        ));
        announce(false);
    }
    close(&found, is_first);
}

/// Reports at once which functions could not be patched. If the hook of `cuInit` is among them, makes `cuInit` itself
/// fail, without which no other call works. `is_first`: no earlier failure was reported.
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

/// Makes a function fail, if the process is set to fail closed; returns whether that was done.
fn refuses(function: &Found) -> bool {
    let config = configuration();
    let closed = may_be_limited(&config) && on_failure(&config) == OnFailure::Closed;
    // SAFETY: as in `patch_all`; `cuInit` is longer than six bytes, and returns a CUresult.
    closed && unsafe { hook::refuse(function.address, CuResult::NOT_PERMITTED.0) }
}

/// Whether the first copy of the driver, which is not initialised, is loading this one and forwards calls to it, as
/// WSL's does. This copy is then the driver: the hooks of both lead into it and count each call once. `is_nested`: the
/// stack is deeper than at the first copy's load, as in its constructors.
fn hands_on(kind: Library, first: (usize, usize), is_nested: bool) -> bool {
    let state = driver_calls::library::state();
    let may_load = state == Start::Begun || (state == Start::Not && is_nested);
    kind == Library::Cuda && may_load && loader::is_calling(first.0)
}

/// Redirects a further copy of a library (from another path or loader namespace) to the first one, because a hook has
/// only one trampoline and no copy may bypass the limits. The further copy is never initialised, so its other functions
/// fail.
fn further_copy(kind: Library, library: &loader::Library) {
    let config = configuration();
    if config.as_ref().is_some_and(|config| !config.keeps_account()) {
        return;
    }
    let copy = format!("a second {} was loaded from {}", kind.soname(), library.path());
    match kind {
        // The first copy does not know this copy's handles.
        Library::Nvml => report::once(format_args!(
            "{copy}: its functions report the device instead of the limits"
        )),
        Library::Cuda if config.is_some_and(|config| config.on_failure == OnFailure::Open) => {
            report::once(format_args!("{copy}: calls to it are NOT limited"));
        }
        Library::Cuda => {
            report::once(format_args!("{copy}: calls to it go to the first copy, or fail"));
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
        // One library was unloaded, another loaded.
        assert_eq!(fresh(&[1, 2, 3, 4], &[1, 3, 4, 5]), [5]);
        // A namespace before the last one has grown.
        assert_eq!(fresh(&[1, 2, 8, 9], &[1, 2, 3, 8, 9]), [3]);
        // The loader itself is in the list of every namespace.
        assert_eq!(fresh(&[1, 2], &[1, 2, 8, 2]), [8]);
        assert_eq!(fresh(&[1, 2, 8, 2], &[1, 2, 8, 2, 9]), [9]);
        assert!(fresh(&[1, 2, 8, 2], &[1, 2]).is_empty());
        // In any order.
        assert_eq!(fresh(&[1, 2, 3], &[3, 1, 4, 2]), [4]);
    }
}

//! Functions that could not be patched, or whose patches were lost: limits cannot be enforced then.

use crate::report;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;

/// File that gets a line for each symbol: see `sluice hooks`.
const REPORT_FILE: &str = "SLUICE_HOOK_REPORT";

/// The first function that exists but is not patched, with the reason. Static, because libraries are patched before the
/// process's first call; a forked child has the same code.
static FAILURE: OnceLock<String> = OnceLock::new();

/// Like [`FAILURE`], for a patch that was lost. It cannot be restored, because the code is in use.
static UNDONE: OnceLock<String> = OnceLock::new();

/// Checks whether the patches are still in place. Static, because [`patch`](super::patch) sets it and the reconciler,
/// a lower layer, calls it.
static CHECK: OnceLock<fn()> = OnceLock::new();

/// Sets the function that checks the patches.
pub(crate) fn check_by(check: fn()) {
    let _ = CHECK.set(check);
}

/// Checks whether the patches are still in place.
pub(crate) fn check() {
    if let Some(check) = CHECK.get() {
        check();
    }
}

/// Records a function that is not patched.
pub(crate) fn note(failure: String) {
    let _ = FAILURE.set(failure);
}

/// Records a function whose patch was lost: its calls neither reach the hook nor can be refused.
pub(crate) fn note_undone(failure: String) {
    let _ = UNDONE.set(failure.clone());
    note(failure);
}

/// Whether a failure is that of a lost patch.
pub(crate) fn is_undone(failure: &str) -> bool {
    UNDONE.get().is_some_and(|undone| undone == failure)
}

/// Records a function that is patched, but whose calls do not reach the hook.
pub(crate) fn missed(library: &str, symbol: &str) {
    let reason = "it is patched, but a call to it did not reach Sluice";
    note(format!("{symbol}: {reason}"));
    write_report(|| line(library, symbol, &format!("failed:{reason}")));
}

pub(crate) fn failure() -> Option<&'static str> {
    FAILURE.get().map(String::as_str)
}

/// A line of the report; `state` is `patched`, `absent` or `failed:REASON`.
pub(crate) fn line(library: &str, symbol: &str, state: &str) -> String {
    format!("{library}\t{symbol}\t{state}\n")
}

/// The report's line about the engine that patched a library.
pub(crate) fn engine_line(library: &str, engine: &str) -> String {
    line(library, "", &format!("engine:{engine}"))
}

/// Appends lines to the report, if one is wanted. If a function has two lines, the worse one counts.
pub(crate) fn write_report(text: impl FnOnce() -> String) {
    let Some(path) = std::env::var_os(REPORT_FILE).filter(|path| !path.is_empty()) else { return };
    let written = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text().as_bytes()));
    if let Err(error) = written {
        report::once(format_args!("{REPORT_FILE}={}: {error}", path.display()));
    }
}

//! What could not be patched, or is patched no longer. Limits cannot be enforced then.

use crate::report;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;

/// File that gets a line for each symbol: see `sluice hooks`.
const REPORT_FILE: &str = "SLUICE_HOOK_REPORT";

/// The first function that exists and is not patched, with the reason. A static, because libraries are patched
/// before the process's first call. It holds in a forked child too, whose code is the same.
static FAILURE: OnceLock<String> = OnceLock::new();

/// The same, where it was patched and is no longer. Nothing can stand in for it then: it is in use.
static UNDONE: OnceLock<String> = OnceLock::new();

/// Looks whether the patches are still there. A static, because it is known where libraries are patched, and called
/// by the reconciler.
static CHECK: OnceLock<fn()> = OnceLock::new();

/// Has `check` called from time to time.
pub(crate) fn check_by(check: fn()) {
    let _ = CHECK.set(check);
}

/// Looks whether the patches are still there.
pub(crate) fn check() {
    if let Some(check) = CHECK.get() {
        check();
    }
}

/// A function is not patched.
pub(crate) fn note(failure: String) {
    let _ = FAILURE.set(failure);
}

/// A function that was patched is so no longer: its calls neither arrive nor can be refused.
pub(crate) fn note_undone(failure: String) {
    let _ = UNDONE.set(failure.clone());
    note(failure);
}

/// Whether a failure is that of a function that was patched and is no longer.
pub(crate) fn is_undone(failure: &str) -> bool {
    UNDONE.get().is_some_and(|undone| undone == failure)
}

/// A function's entry leads to its hook, and a call of it did not arrive there.
pub(crate) fn missed(library: &str, symbol: &str) {
    let reason = "it is patched, but a call to it did not reach Sluice";
    note(format!("{symbol}: {reason}"));
    write_report(|| line(library, symbol, &format!("failed:{reason}")));
}

/// The first failure.
pub(crate) fn failure() -> Option<&'static str> {
    FAILURE.get().map(String::as_str)
}

/// A line of the report: `patched`, `absent` or `failed:REASON`.
pub(crate) fn line(library: &str, symbol: &str, state: &str) -> String {
    format!("{library}\t{symbol}\t{state}\n")
}

/// The line of the report with the engine that patched a library.
pub(crate) fn engine_line(library: &str, engine: &str) -> String {
    line(library, "", &format!("engine:{engine}"))
}

/// Appends lines to the report, if one is wanted. Of two lines for a function the worse one counts.
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

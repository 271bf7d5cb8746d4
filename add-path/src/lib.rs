//! `libadd_path.so`: preloaded into a process, adds entries to `PATH`, `LD_PRELOAD` and `LD_LIBRARY_PATH`. `TF_PATH`,
//! `TF_LD_PRELOAD` and `TF_LD_LIBRARY_PATH` name entries for the end, `TF_PREPEND_PATH`, `TF_PREPEND_LD_PRELOAD` and
//! `TF_PREPEND_LD_LIBRARY_PATH` for the front.
//!
//! The loader reads its own variables before any constructor runs. So a changed `LD_PRELOAD` or `LD_LIBRARY_PATH`
//! affects only the programs that the process starts, while `PATH` takes effect at once.
//!
//! The library prints nothing and exports nothing. If a variable cannot be set, the process continues with the old
//! value.

use core::ffi::CStr;
use std::ffi::CString;

mod merge;

use merge::{Position, Separators, merge};

/// One variable to which entries are added, and the variables that name them.
struct PathRule {
    target: &'static CStr,
    front: &'static CStr,
    back: &'static CStr,
    separators: Separators,
}

const RULES: [PathRule; 3] = [
    PathRule {
        target: c"PATH",
        front: c"TF_PREPEND_PATH",
        back: c"TF_PATH",
        separators: Separators::Colon,
    },
    PathRule {
        target: c"LD_PRELOAD",
        front: c"TF_PREPEND_LD_PRELOAD",
        back: c"TF_LD_PRELOAD",
        separators: Separators::ColonOrSpace,
    },
    PathRule {
        target: c"LD_LIBRARY_PATH",
        front: c"TF_PREPEND_LD_LIBRARY_PATH",
        back: c"TF_LD_LIBRARY_PATH",
        separators: Separators::ColonOrSemicolon,
    },
];

#[ctor::ctor(unsafe)]
fn add_paths() {
    // SAFETY: reads what the kernel passed.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // A setuid program, reached through /etc/ld.so.preload: its starter must not decide where it looks for
        // programs.
        return;
    }
    for rule in &RULES {
        // The front first: an entry that is named in both variables takes precedence.
        add(rule, rule.front, Position::Front);
        add(rule, rule.back, Position::Back);
    }
}

fn add(rule: &PathRule, source: &CStr, place: Position) {
    let Some(additions) = read(source) else { return };
    let current = read(rule.target).unwrap_or_default();
    if let Some(value) = merge(&current, &additions, place, rule.separators) {
        write(rule.target, value);
    }
}

/// A copy of the variable's value; `None` if it is not set.
fn read(name: &CStr) -> Option<Vec<u8>> {
    // SAFETY: `name` is NUL-terminated. The loader runs constructors of preloaded libraries
    // before `main`, while no other thread can change the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returned a NUL-terminated string. It stays valid until the variable is next
    // changed, and is copied before that.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes().to_vec())
}

fn write(name: &CStr, value: Vec<u8>) {
    // The parts come from C strings, so they contain no NUL.
    let Ok(value) = CString::new(value) else { return };
    // SAFETY: both are NUL-terminated and are copied by setenv; no other thread reads the
    // environment yet (see `read`). A failure (no memory) leaves the old value in place.
    unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
}

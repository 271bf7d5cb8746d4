//! How processes look from elsewhere: a process in a container is listed by the host's id, and some
//! drivers do not tell what it uses.

use std::sync::OnceLock;

use utils::driver::nvml::{NvmlReturn, VALUE_NOT_AVAILABLE};

use crate::ffi::Api;

/// Added to each process id, as if this library ran in a pid namespace of its own.
const OFFSET: &str = "SLUICE_FAKE_PID_OFFSET";
/// `0`: no process's memory is known.
const FIGURES: &str = "SLUICE_FAKE_PROCESS_MEMORY";

#[derive(Clone, Copy)]
struct View {
    offset: u32,
    figures: bool,
}

/// Read once; nonsense is an error of every call that lists processes.
fn view() -> Api<View> {
    static VIEW: OnceLock<Option<View>> = OnceLock::new();
    let read = || {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let offset = match variable(OFFSET) {
            None => 0,
            Some(value) => value.trim().parse().ok()?,
        };
        let figures = match variable(FIGURES).as_deref() {
            None | Some("1") => true,
            Some("0") => false,
            Some(_) => return None,
        };
        Some(View { offset, figures })
    };
    VIEW.get_or_init(read).ok_or(NvmlReturn::UNKNOWN)
}

/// A process's id as it is shown.
pub(crate) fn shown_pid(pid: u32) -> Api<u32> {
    Ok(pid.wrapping_add(view()?.offset))
}

/// A process's memory as it is shown.
pub(crate) fn shown_bytes(bytes: u64) -> Api<u64> {
    Ok(if view()?.figures { bytes } else { VALUE_NOT_AVAILABLE })
}

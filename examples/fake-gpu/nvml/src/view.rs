//! How NVML shows processes, by environment variables: with a host pid instead of the container's, without memory as by
//! some drivers, and with a delay per list.

use std::sync::OnceLock;
use std::time::Duration;

use driver::nvml::{NvmlReturn, VALUE_NOT_AVAILABLE};

use crate::ffi::Api;

/// Added to each process id, as if this library ran in a pid namespace of its own.
const OFFSET: &str = "SLUICE_FAKE_PID_OFFSET";
/// `0`: processes' memory is not reported.
const FIGURES: &str = "SLUICE_FAKE_PROCESS_MEMORY";
/// The duration of a query for processes, in microseconds; half of it passes before the list is made, half afterwards.
const LIST_US: &str = "SLUICE_FAKE_LIST_US";

#[derive(Clone, Copy)]
struct View {
    offset: u32,
    figures: bool,
    list_us: u64,
}

/// The settings, read once. An invalid value is an error of every query for processes.
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
        let list_us = match variable(LIST_US) {
            None => 0,
            Some(value) => value.trim().parse().ok()?,
        };
        Some(View { offset, figures, list_us })
    };
    VIEW.get_or_init(read).ok_or(NvmlReturn::UNKNOWN)
}

/// A process's id as reported.
pub(crate) fn shown_pid(pid: u32) -> Api<u32> {
    Ok(pid.wrapping_add(view()?.offset))
}

/// A process's memory as reported.
pub(crate) fn shown_bytes(bytes: u64) -> Api<u64> {
    Ok(if view()?.figures { bytes } else { VALUE_NOT_AVAILABLE })
}

/// Waits for half of a query's duration.
pub(crate) fn pass_half() -> Api {
    let us = view()?.list_us;
    if us > 0 {
        std::thread::sleep(Duration::from_micros(us / 2));
    }
    Ok(())
}

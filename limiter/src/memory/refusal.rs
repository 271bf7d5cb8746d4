//! Refused allocations.

use crate::ledger::DeviceLedger;
use crate::report;
use driver::cuda::CuResult;
use session::ledger::Placement;

/// Logs a refusal of memory that can only be on the device, and returns its error.
pub(super) fn refused(device: &DeviceLedger, asked: u64) -> CuResult {
    say_if_real_share_is_used_up(device, asked);
    declined(device, asked)
}

/// Logs a refusal, and returns its error.
pub(super) fn declined(device: &DeviceLedger, asked: u64) -> CuResult {
    let Some(opened) = device.open() else {
        return if device.is_denied() { CuResult::NOT_PERMITTED } else { CuResult::OUT_OF_MEMORY };
    };
    let (used, limit, real) = (opened.used(), opened.limit(), opened.real_limit());
    drop(opened);
    tracing::debug!(
        "device {}: {asked} bytes do not fit: {used} of {limit} bytes ({real} on the device itself) are in use",
        device.uuid()
    );
    CuResult::OUT_OF_MEMORY
}

/// Whether a session uses more than it may.
pub(super) fn is_over(device: &DeviceLedger) -> bool {
    device.open().is_some_and(|opened| {
        opened.used() > opened.limit() || opened.on_device() > opened.real_limit()
    })
}

/// Reports that an allocation would have fitted into the limit, but cannot be placed on the host.
fn say_if_real_share_is_used_up(device: &DeviceLedger, bytes: u64) {
    let Some(opened) = device.open() else { return };
    let (place, real) = (opened.place(bytes), opened.real_limit());
    drop(opened);
    if matches!(place, Ok(Placement::Host)) {
        report::once(format_args!(
            "device {}: the {} MiB of the memory limit that may be on the device are used up, and memory of graphs, arrays or cuMemCreate cannot be placed on the host; such allocations fail",
            device.uuid(),
            real >> 20,
        ));
    }
}

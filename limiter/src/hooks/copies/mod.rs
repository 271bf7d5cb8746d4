//! Hooks of copies and fills. Like kernels, these occupy the device's engines and memory bandwidth, and pass the same
//! gate.
//!
//! * A copy of zero bytes or within the host is no work for the device: the CPU does it before the call returns. If
//!   neither name nor descriptor tells where the memory is ([`cuMemcpy`](linear), unified addresses), the driver is
//!   queried, first for the source: if that is on a device, the destination does not matter. Batches are not queried:
//!   nothing guarantees that the CPU does their copies within the host.
//! * A copy between devices passes only the gate of its stream's device, whose engine moves the bytes. If it passed the
//!   other gate as well, it would hold one device's time while it waits for the other's, and two tenants that copy in
//!   opposite directions would block each other.
//! * A call may wait inside the driver for its work or for its stream's earlier work. Its time then counts as it
//!   passes, and its thread waits at a closed gate. The `Async` forms of fills and of copies within a device's memory
//!   never wait (CUDA driver API, API synchronization behavior): they pass like launches, and take an entry of the
//!   driver's queue as launches do. A copy between devices without peer access may take more than 34 entries.
//! * A call without a stream argument works in the default stream: the legacy one, or the calling thread's in the
//!   `_ptds` forms.

pub(super) mod batched;
pub(super) mod linear;
mod place;
pub(super) mod shaped;

use crate::compute::{self, Work};
use crate::hooks::Call;
use core::ffi::c_uint;
use core::ptr;
use driver::copy::{MEMORY_ARRAY, MEMORY_DEVICE};
use driver::cuda::{CuResult, Stream};

/// The stream of a call without a stream argument.
const DEFAULT: Stream = ptr::null_mut();

/// Transfers of one kind, whose time depends only on their size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CopyKind {
    code: u8,
    /// Bytes of one unit of the size.
    unit: u8,
    /// Whether the function's name, possibly with the descriptor, implies that only one device's memory is accessed.
    of_devices: bool,
}

impl CopyKind {
    const fn of(code: u8) -> Self {
        Self { code, unit: 1, of_devices: false }
    }

    const fn of_devices(code: u8, unit: u8) -> Self {
        Self { code, unit, of_devices: true }
    }

    const ANYWHERE: Self = Self::of(1);
    const TO_DEVICE: Self = Self::of(2);
    const TO_HOST: Self = Self::of(3);
    const WITHIN: Self = Self::of_devices(4, 1);
    const PEER: Self = Self::of(5);
    const HOST_TO_ARRAY: Self = Self::of(6);
    const ARRAY_TO_HOST: Self = Self::of(7);
    const DEVICE_TO_ARRAY: Self = Self::of(8);
    const ARRAY_TO_DEVICE: Self = Self::of(9);
    const ARRAY_TO_ARRAY: Self = Self::of(10);
    const BATCH: Self = Self::of(11);
    const BATCH_3D: Self = Self::of(12);
    const PREFETCH_TO_DEVICE: Self = Self::of(13);
    const PREFETCH_TO_HOST: Self = Self::of(14);
    const PREFETCH_BATCH: Self = Self::of(15);
    const DISCARD_AND_PREFETCH: Self = Self::of(16);
    const DECOMPRESS: Self = Self::of(17);
    const FILL_8: Self = Self::of_devices(18, 1);
    const FILL_16: Self = Self::of_devices(19, 2);
    const FILL_32: Self = Self::of_devices(20, 4);
    const FILL_ROWS_8: Self = Self::of_devices(21, 1);
    const FILL_ROWS_16: Self = Self::of_devices(22, 2);
    const FILL_ROWS_32: Self = Self::of_devices(23, 4);
    const ROWS: Self = Self::of_devices(0x40, 1);
    const LAYERS: Self = Self::of_devices(0x50, 1);
    const LAYERS_PEER: Self = Self::of(0x60);

    /// The kind for a pair of `CUmemorytype`s: [`CopyKind::ROWS`] or one of the codes after it.
    const fn between(self, from: c_uint, to: c_uint) -> Self {
        const fn is_device(side: c_uint) -> bool {
            matches!(side, MEMORY_DEVICE | MEMORY_ARRAY)
        }
        let code = self.code | (from as u8 & 3) << 2 | (to as u8 & 3);
        Self { code, of_devices: self.of_devices && is_device(from) && is_device(to), ..self }
    }

    /// The work of `size` units; `None` for zero units.
    fn work(self, size: u64) -> Option<Work> {
        (size > 0).then(|| Work::transfer(self.code, size.saturating_mul(u64::from(self.unit))))
    }

    /// Like [`CopyKind::work`], for a function whose name ends with `Async`.
    fn async_work(self, size: u64) -> Option<Work> {
        self.work(size).map(|work| if self.of_devices { work.at_once() } else { work })
    }
}

/// A size argument; 32 bits wide in the forms of CUDA 2.
trait CopySize: Copy {
    fn wide(self) -> u64;
}

impl CopySize for usize {
    fn wide(self) -> u64 {
        self as u64
    }
}

impl CopySize for c_uint {
    fn wide(self) -> u64 {
        u64::from(self)
    }
}

/// Runs a transferring call when the device's time allows it. `work` is evaluated only if the time counts; without work
/// the call passes.
#[inline]
fn transfer<F>(
    work: impl FnOnce() -> Option<Work>,
    stream: Stream,
    call: &Call<F>,
    original: impl FnOnce() -> CuResult,
) -> CuResult {
    if compute::is_ungated() {
        return original();
    }
    match work() {
        Some(work) => call.process.launch(work, stream, call.per_thread, original),
        None => original(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_told_apart_by_kind_and_bytes() {
        let works = [
            CopyKind::TO_DEVICE.work(4096),
            CopyKind::TO_HOST.work(4096),
            CopyKind::TO_DEVICE.work(8192),
            CopyKind::FILL_8.work(4096),
            CopyKind::FILL_32.work(4096),
            CopyKind::ROWS.between(1, 2).work(4096),
            CopyKind::ROWS.between(2, 1).work(4096),
            CopyKind::ROWS.between(2, 4).work(4096),
            CopyKind::LAYERS.between(1, 2).work(4096),
            CopyKind::LAYERS_PEER.between(1, 2).work(4096),
        ];
        for (index, work) in works.iter().enumerate() {
            assert!(work.is_some());
            assert!(!works[..index].contains(work), "{index}");
        }
        assert_eq!(CopyKind::FILL_32.work(1024), Some(Work::transfer(20, 4096)));
        assert_eq!(CopyKind::FILL_32.work(u64::MAX), Some(Work::transfer(20, u64::MAX)));
        assert_eq!(CopyKind::WITHIN.work(0), None);
    }

    #[test]
    fn only_what_is_of_device_memory_returns_at_once() {
        let fills = [CopyKind::FILL_8, CopyKind::FILL_16, CopyKind::FILL_32];
        let rows = [CopyKind::FILL_ROWS_8, CopyKind::FILL_ROWS_16, CopyKind::FILL_ROWS_32];
        for kind in fills.into_iter().chain(rows).chain([CopyKind::WITHIN]) {
            assert_eq!(kind.async_work(64), kind.work(64).map(Work::at_once), "{kind:?}");
        }
        let others = [CopyKind::ANYWHERE, CopyKind::TO_DEVICE, CopyKind::TO_HOST, CopyKind::PEER];
        for kind in others.into_iter().chain([CopyKind::DECOMPRESS, CopyKind::HOST_TO_ARRAY]) {
            assert_eq!(kind.async_work(64), kind.work(64), "{kind:?}");
        }
    }
}

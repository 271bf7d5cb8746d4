//! Hooks of copies of rows and layers, which a descriptor describes.

use super::place::are_on_host;
use super::{CopyKind, DEFAULT, transfer};
use crate::compute::Work;
use crate::hooks::Call;
use crate::hooks::pointers::read;
use core::ffi::c_uint;
use driver::copy::{Copy2d, Copy2dV1, Copy3d, Copy3dV1, MEMORY_HOST, MEMORY_UNIFIED};
use driver::cuda::{CuResult, DevicePtr, Stream};

macros::hooks! {
    /// CUDA driver API, Memory Management: copies and fills.
    library Cuda;

    fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds | cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds (copy: *const Copy2d) -> CuResult = described(CopyKind::ROWS);
    fn cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz (copy: *const Copy2d, stream: Stream) -> CuResult = described_async(CopyKind::ROWS);
    fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds (copy: *const Copy3d) -> CuResult = described(CopyKind::LAYERS);
    fn cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz (copy: *const Copy3d, stream: Stream) -> CuResult = described_async(CopyKind::LAYERS);
    /// Passes the gate of the current device only.
    fn cuMemcpy3DPeer | cuMemcpy3DPeer_ptds (copy: *const Copy3d) -> CuResult = described(CopyKind::LAYERS_PEER);
    /// Passes the gate of its stream's device only.
    fn cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz (copy: *const Copy3d, stream: Stream) -> CuResult = described_async(CopyKind::LAYERS_PEER);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpy2D | cuMemcpy2DUnaligned (copy: *const Copy2dV1) -> CuResult = described(CopyKind::ROWS);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpy2DAsync(copy: *const Copy2dV1, stream: Stream) -> CuResult = described_async(CopyKind::ROWS);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpy3D(copy: *const Copy3dV1) -> CuResult = described(CopyKind::LAYERS);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpy3DAsync(copy: *const Copy3dV1, stream: Stream) -> CuResult = described_async(CopyKind::LAYERS);
}

/// The fields of a copy's descriptor that determine its work.
trait Descriptor: Copy {
    /// `CUmemorytype` of source and destination, each with its address if that is a device or unified address.
    fn sides(&self) -> [(c_uint, DevicePtr); 2];
    /// Bytes per row, rows, layers.
    fn extent(&self) -> [u64; 3];
}

impl Descriptor for Copy2d {
    fn sides(&self) -> [(c_uint, DevicePtr); 2] {
        [(self.from.kind, self.from.device), (self.to.kind, self.to.device)]
    }
    fn extent(&self) -> [u64; 3] {
        [self.width as u64, self.height as u64, 1]
    }
}

impl Descriptor for Copy2dV1 {
    fn sides(&self) -> [(c_uint, DevicePtr); 2] {
        [(self.from_kind, self.from_device.into()), (self.to_kind, self.to_device.into())]
    }
    fn extent(&self) -> [u64; 3] {
        [u64::from(self.width), u64::from(self.height), 1]
    }
}

impl Descriptor for Copy3d {
    fn sides(&self) -> [(c_uint, DevicePtr); 2] {
        [(self.from.kind, self.from.device), (self.to.kind, self.to.device)]
    }
    fn extent(&self) -> [u64; 3] {
        [self.width as u64, self.height as u64, self.depth as u64]
    }
}

impl Descriptor for Copy3dV1 {
    fn sides(&self) -> [(c_uint, DevicePtr); 2] {
        [(self.from.kind, self.from.device.into()), (self.to.kind, self.to.device.into())]
    }
    fn extent(&self) -> [u64; 3] {
        [u64::from(self.width), u64::from(self.height), u64::from(self.depth)]
    }
}

/// The work of a described copy. `work_of`: maps a kind and its bytes to work.
fn described_work<D: Descriptor>(
    kind: CopyKind,
    copy: *const D,
    work_of: fn(CopyKind, u64) -> Option<Work>,
) -> Option<Work> {
    // SAFETY: null, which the driver refuses, or what the driver is about to read.
    let copy = unsafe { read(copy) }?;
    let [from, to] = copy.sides();
    let bytes = copy.extent().into_iter().fold(1, u64::saturating_mul);
    let work = work_of(kind.between(from.0, to.0), bytes)?;
    let within_host = match (from, to) {
        ((MEMORY_HOST, _), (MEMORY_HOST, _)) => true,
        ((MEMORY_UNIFIED, from), (MEMORY_HOST, _)) => are_on_host([from]),
        ((MEMORY_HOST, _), (MEMORY_UNIFIED, to)) => are_on_host([to]),
        ((MEMORY_UNIFIED, from), (MEMORY_UNIFIED, to)) => are_on_host([from, to]),
        _ => false,
    };
    (!within_host).then_some(work)
}

fn work<D: Descriptor>(kind: CopyKind, copy: *const D) -> Option<Work> {
    described_work(kind, copy, CopyKind::work)
}

/// Like [`described_work`], for a function whose name ends with `Async`.
fn async_work<D: Descriptor>(kind: CopyKind, copy: *const D) -> Option<Work> {
    described_work(kind, copy, CopyKind::async_work)
}

fn described<D: Descriptor>(
    call: Call<unsafe extern "C" fn(*const D) -> CuResult>,
    kind: CopyKind,
    copy: *const D,
) -> CuResult {
    transfer(
        || work(kind, copy),
        DEFAULT,
        &call,
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(copy) }
        },
    )
}

fn described_async<D: Descriptor>(
    call: Call<unsafe extern "C" fn(*const D, Stream) -> CuResult>,
    kind: CopyKind,
    copy: *const D,
    stream: Stream,
) -> CuResult {
    transfer(
        || async_work(kind, copy),
        stream,
        &call,
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(copy, stream) }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::zeroed;
    use driver::copy::{MEMORY_ARRAY, MEMORY_DEVICE};

    #[test]
    fn every_form_of_a_descriptor_is_the_same_work() {
        // SAFETY: numbers and null pointers.
        let (mut rows, mut old_rows) = unsafe { (zeroed::<Copy2d>(), zeroed::<Copy2dV1>()) };
        (rows.from.kind, rows.to.kind, rows.width, rows.height) = (1, 2, 100, 7);
        (old_rows.from_kind, old_rows.to_kind) = (1, 2);
        (old_rows.width, old_rows.height) = (100, 7);
        let expected = Some(Work::transfer(0x40 | 1 << 2 | 2, 700));
        assert_eq!(work(CopyKind::ROWS, &raw const rows), expected);
        assert_eq!(work(CopyKind::ROWS, &raw const old_rows), expected);

        // SAFETY: as above.
        let (mut layers, mut old_layers) = unsafe { (zeroed::<Copy3d>(), zeroed::<Copy3dV1>()) };
        (layers.from.kind, layers.to.kind) = (3, 2);
        (layers.width, layers.height, layers.depth) = (100, 7, 3);
        (old_layers.from.kind, old_layers.to.kind) = (3, 2);
        (old_layers.width, old_layers.height, old_layers.depth) = (100, 7, 3);
        let expected = Some(Work::transfer(0x50 | 3 << 2 | 2, 2100));
        assert_eq!(work(CopyKind::LAYERS, &raw const layers), expected);
        assert_eq!(work(CopyKind::LAYERS, &raw const old_layers), expected);

        layers.depth = 0;
        assert_eq!(work(CopyKind::LAYERS, &raw const layers), None);
        assert_eq!(work::<Copy2d>(CopyKind::ROWS, core::ptr::null()), None);
    }

    #[test]
    fn only_copies_of_device_memory_return_at_once() {
        // SAFETY: numbers and null pointers.
        let mut rows = unsafe { zeroed::<Copy2d>() };
        (rows.width, rows.height) = (100, 7);
        for from in [MEMORY_HOST, MEMORY_DEVICE, MEMORY_ARRAY, MEMORY_UNIFIED] {
            for to in [MEMORY_HOST, MEMORY_DEVICE, MEMORY_ARRAY, MEMORY_UNIFIED] {
                (rows.from.kind, rows.to.kind) = (from, to);
                let within =
                    [from, to].iter().all(|side| [MEMORY_DEVICE, MEMORY_ARRAY].contains(side));
                let plain = work(CopyKind::ROWS, &raw const rows);
                let between = work(CopyKind::LAYERS_PEER, &raw const rows);
                assert_eq!(async_work(CopyKind::LAYERS_PEER, &raw const rows), between);
                let expected = if within { plain.map(Work::at_once) } else { plain };
                assert_eq!(async_work(CopyKind::ROWS, &raw const rows), expected, "{from} to {to}");
            }
        }
    }

    #[test]
    fn copies_within_the_host_are_no_work() {
        // SAFETY: numbers and null pointers.
        let mut rows = unsafe { zeroed::<Copy2d>() };
        (rows.from.kind, rows.to.kind, rows.width, rows.height) = (1, 1, 100, 7);
        assert_eq!(work(CopyKind::ROWS, &raw const rows), None);
        rows.to.kind = 4;
        assert!(
            work(CopyKind::ROWS, &raw const rows).is_some(),
            "a unified address that nothing is known of"
        );
    }
}

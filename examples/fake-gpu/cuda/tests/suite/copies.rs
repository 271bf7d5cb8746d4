//! Copies and fills: contents, checks of parameters, time.

use std::ffi::c_void;

use crate::support::*;
use driver::copy::{
    ArrayOperand, BatchedCopy3d, Copy2d, Copy3d, CopyAttributes, Extent, MEMORY_ARRAY,
    MEMORY_DEVICE, MEMORY_HOST, MEMORY_UNIFIED, OPERAND_ARRAY, OPERAND_POINTER, Operand,
    OperandBody, PointerOperand, Side2d, Side3d,
};
use driver::cuda::{Array3dDescriptor, ArrayDescriptor, MemLocation};

const WIDTH: usize = 64;
const HEIGHT: usize = 16;
const DEPTH: usize = 4;
const BYTES: usize = WIDTH * HEIGHT * DEPTH;
/// `CU_AD_FORMAT_UNSIGNED_INT16`.
const U16: u32 = 2;

fn alloc(size: usize) -> u64 {
    let mut address = 0;
    ok(cuMemAlloc_v2(&mut address, size));
    address
}

/// A three-dimensional array of 16-bit elements, as large as these tests' buffers.
fn solid() -> Ptr {
    let descriptor = Array3dDescriptor {
        width: WIDTH / 2,
        height: HEIGHT,
        depth: DEPTH,
        format: U16,
        num_channels: 1,
        flags: 0,
    };
    let mut array = null();
    ok(cuArray3DCreate_v2(&mut array, (&raw const descriptor).cast()));
    array
}

fn line(elements: usize) -> Ptr {
    let descriptor = ArrayDescriptor { width: elements, height: 0, format: U16, num_channels: 1 };
    let mut array = null();
    ok(cuArrayCreate_v2(&mut array, (&raw const descriptor).cast()));
    array
}

fn side(kind: u32, address: u64) -> Side3d {
    Side3d {
        x: 0,
        y: 0,
        z: 0,
        lod: 0,
        kind,
        host: if kind == MEMORY_HOST { address as *const c_void } else { null() },
        device: if kind == MEMORY_ARRAY { 0 } else { address },
        array: if kind == MEMORY_ARRAY { address as Ptr } else { null() },
        context: null(),
        pitch: WIDTH,
        height: HEIGHT,
    }
}

fn at(side: Side3d, x: usize, y: usize, z: usize) -> Side3d {
    Side3d { x, y, z, ..side }
}

fn copy(from: Side3d, to: Side3d) -> Copy3d {
    Copy3d { from, to, width: 40, height: 9, depth: 3 }
}

/// The expected result of `copy` from `from` to `to`, computed without the driver.
fn expected(from: &[u8], to: &[u8], copy: &Copy3d) -> Vec<u8> {
    let mut bytes = to.to_vec();
    let index = |side: &Side3d, x, y, z| ((side.z + z) * HEIGHT + side.y + y) * WIDTH + side.x + x;
    for (z, y) in (0..copy.depth).flat_map(|z| (0..copy.height).map(move |y| (z, y))) {
        for x in 0..copy.width {
            bytes[index(&copy.to, x, y, z)] = from[index(&copy.from, x, y, z)];
        }
    }
    bytes
}

fn pattern(factor: usize) -> Vec<u8> {
    (0..BYTES).map(|n| (n * factor + n / 255) as u8).collect()
}

fn read(address: u64) -> Vec<u8> {
    let mut bytes = vec![0_u8; BYTES];
    ok(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, BYTES));
    bytes
}

/// Allocates device memory that holds `bytes`.
fn loaded(bytes: &[u8]) -> u64 {
    let address = alloc(bytes.len());
    ok(cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()));
    address
}

#[test]
fn boxes_arrive_whatever_their_sides() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let (first, second) = (pattern(7), pattern(3));
        let (device, array) = (loaded(&second), solid());
        let host = at(side(MEMORY_HOST, first.as_ptr() as u64), 6, 1, 1);
        let in_array = at(side(MEMORY_ARRAY, array as u64), 8, 3, 0);
        let on_device = at(side(MEMORY_DEVICE, device), 5, 7, 1);

        let up = copy(host, in_array);
        ok(cuMemcpy3D_v2(&up));
        let in_the_array = expected(&first, &[0; BYTES], &up);
        let across = Copy3d { width: 32, ..copy(in_array, on_device) };
        ok(cuMemcpy3D_v2(&across));
        let on_the_device = expected(&in_the_array, &second, &across);
        assert_eq!(read(device), on_the_device);

        let mut back = second.clone();
        let down = copy(
            at(side(MEMORY_UNIFIED, device), 0, 2, 1),
            side(MEMORY_UNIFIED, back.as_mut_ptr() as u64),
        );
        let brought = expected(&on_the_device, &second, &down);
        ok(cuMemcpy3D_v2(&down));
        assert_eq!(back, brought);

        // Copies between contexts; here, both are the same context.
        let named = |side: Side3d| Side3d { context: gpu.context, ..side };
        let other = loaded(&first);
        let peer = copy(named(on_device), named(at(side(MEMORY_DEVICE, other), 1, 1, 1)));
        ok(cuMemcpy3DPeer(&peer));
        assert_eq!(read(other), expected(&on_the_device, &first, &peer));
    });
}

#[test]
fn wrong_boxes_are_refused() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let (device, other, array) = (alloc(BYTES), alloc(BYTES), solid());
        let (from, to) = (side(MEMORY_DEVICE, device), side(MEMORY_ARRAY, array as u64));
        let good = copy(from, to);
        ok(cuMemcpy3D_v2(&good));
        let device_side = |from: Side3d| Copy3d { from, ..good };
        let array_side = |to: Side3d| Copy3d { to, ..good };
        for (what, wrong) in [
            ("a pitch below the width", device_side(Side3d { pitch: 39, ..from })),
            ("a pitch below width and offset", device_side(Side3d { x: 30, ..from })),
            ("a pitch beyond the largest", device_side(Side3d { pitch: 1 << 31, ..from })),
            ("a height below the rows", device_side(Side3d { height: 8, ..from })),
            ("layers without a height", device_side(Side3d { height: 0, ..from })),
            ("a level of detail", device_side(Side3d { lod: 1, ..from })),
            ("a context", device_side(Side3d { context: gpu.context, ..from })),
            ("no kind of memory", device_side(Side3d { kind: 0, ..from })),
            ("an unknown kind", device_side(Side3d { kind: 5, ..from })),
            ("null", device_side(Side3d { device: 0, ..from })),
            ("beyond the memory", device_side(Side3d { z: 2, ..from })),
            ("half an element", array_side(Side3d { x: 1, ..to })),
            ("beyond a row", array_side(Side3d { x: 26, ..to })),
            ("beyond a layer", array_side(Side3d { y: 8, ..to })),
            ("beyond the layers", array_side(Side3d { z: 2, ..to })),
            ("a width of half an element", Copy3d { width: 39, ..good }),
            ("too many layers", Copy3d { depth: 5, ..good }),
        ] {
            assert_eq!(cuMemcpy3D_v2(&wrong), INVALID_VALUE, "{what}");
        }
        assert_eq!(cuMemcpy3D_v2(&array_side(side(MEMORY_ARRAY, device))), INVALID_HANDLE);
        ok(cuMemcpy3D_v2(&Copy3d { depth: 0, ..good }));
        // A copy between contexts has to name both.
        let peer = copy(from, side(MEMORY_DEVICE, other));
        assert_eq!(cuMemcpy3DPeer(&peer), INVALID_CONTEXT);
    });
}

#[test]
fn lines_of_arrays() {
    isolated(&[], || {
        let _gpu = Gpu::open();
        let (bytes, array, device) = (pattern(5), line(100), loaded(&pattern(3)));
        ok(cuMemcpyHtoA_v2(array, 20, bytes.as_ptr().cast(), 180));
        ok(cuMemcpyAtoD_v2(device, array, 30, 170));
        let mut wanted = pattern(3);
        wanted[..170].copy_from_slice(&bytes[10..180]);
        assert_eq!(read(device), wanted);
        assert_eq!(cuMemcpyAtoD_v2(device, array, 31, 100), INVALID_VALUE, "half an element");
        assert_eq!(cuMemcpyAtoD_v2(device, array, 30, 172), INVALID_VALUE, "beyond the end");
        assert_eq!(cuMemcpyAtoD_v2(device, array, usize::MAX - 1, 4), INVALID_VALUE);
        assert_eq!(cuMemcpyAtoD_v2(device, solid(), 0, 64), INVALID_VALUE, "not a line");
        assert_eq!(cuMemcpyAtoD_v2(device, null(), 0, 64), INVALID_HANDLE);
    });
}

#[test]
fn batches_are_made_whole_or_not_at_all() {
    isolated(&[], || {
        let _gpu = Gpu::open();
        let on = stream();
        let (bytes, device) = (pattern(5), loaded(&pattern(3)));
        let to = [device, device + 100];
        let from = [bytes.as_ptr() as u64, bytes.as_ptr() as u64 + 500];
        let sizes = [100, 200];
        let nowhere = MemLocation::default();
        let how = CopyAttributes { order: 1, from_hint: nowhere, to_hint: nowhere, flags: 0 };
        let batch = |to: &[u64; 2], how: &[CopyAttributes], firsts: &[usize], on: Ptr| {
            let mut failed = 99;
            let (to, from, sizes) = (to.as_ptr(), from.as_ptr(), sizes.as_ptr());
            let (list, firsts, count) = (how.as_ptr(), firsts.as_ptr(), how.len());
            let failed_at = &mut failed;
            let code = cuMemcpyBatchAsync(to, from, sizes, 2, list, firsts, count, failed_at, on);
            (code, failed)
        };
        // The second copy ends beyond its allocation.
        assert_eq!(batch(&[device, device + 3900], &[how], &[0], on), (INVALID_VALUE, 1));
        assert_eq!(read(device), pattern(3), "the first was not made either");
        let none = usize::MAX;
        assert_eq!(
            batch(&to, &[how], &[1], on),
            (INVALID_VALUE, none),
            "copies without attributes"
        );
        assert_eq!(batch(&to, &[how, how], &[0, 0], on), (INVALID_VALUE, none), "not in order");
        assert_eq!(
            batch(&to, &[how, how], &[0, 2], on),
            (INVALID_VALUE, none),
            "beyond the copies"
        );
        assert_eq!(batch(&to, &[], &[], on), (INVALID_VALUE, none), "no attributes");
        let unordered = CopyAttributes { order: 0, ..how };
        assert_eq!(batch(&to, &[unordered], &[0], on), (INVALID_VALUE, none));
        assert_eq!(batch(&to, &[how], &[0], null()), (INVALID_VALUE, none), "the legacy stream");
        assert_eq!(batch(&to, &[how, how], &[0, 1], on), (SUCCESS, 99));
        ok(cuStreamSynchronize(on));
        let mut wanted = pattern(3);
        wanted[..100].copy_from_slice(&bytes[..100]);
        wanted[100..300].copy_from_slice(&bytes[500..700]);
        assert_eq!(read(device), wanted);
    });
}

#[test]
fn batches_of_boxes_count_in_elements() {
    isolated(&[], || {
        let _gpu = Gpu::open();
        let (on, bytes, array) = (stream(), pattern(5), solid());
        let hint = MemLocation::default();
        let pointer = |address: u64, row, height| Operand {
            kind: OPERAND_POINTER,
            body: OperandBody { pointer: PointerOperand { address, row, height, hint } },
        };
        let in_array = |offset| Operand {
            kind: OPERAND_ARRAY,
            body: OperandBody { array: ArrayOperand { array, offset } },
        };
        let extent = Extent { width: 20, height: 9, depth: 3 };
        let up = BatchedCopy3d {
            from: pointer(bytes.as_ptr() as u64, WIDTH / 2, HEIGHT),
            to: in_array([4, 3, 0]),
            extent,
            order: 1,
            flags: 0,
        };
        ok(cuMemcpy3DBatchAsync_v2(1, &raw const up, 0, on));
        let device = loaded(&pattern(3));
        // Rows and layers are packed.
        let down = BatchedCopy3d { from: in_array([4, 3, 0]), to: pointer(device, 0, 0), ..up };
        ok(cuMemcpy3DBatchAsync_v2(1, &raw const down, 0, on));
        ok(cuStreamSynchronize(on));
        let mut wanted = pattern(3);
        for (row, (z, y)) in (0..3).flat_map(|z| (0..9).map(move |y| (z, y))).enumerate() {
            let from = (z * HEIGHT + y) * WIDTH;
            wanted[row * 40..][..40].copy_from_slice(&bytes[from..][..40]);
        }
        assert_eq!(read(device), wanted);
        for (what, wrong) in [
            ("beyond a row", BatchedCopy3d { to: in_array([13, 3, 0]), ..up }),
            ("beyond the layers", BatchedCopy3d { to: in_array([4, 3, 2]), ..up }),
            ("a row below the width", BatchedCopy3d { to: pointer(device, 19, 0), ..up }),
            ("no width", BatchedCopy3d { extent: Extent { width: 0, ..extent }, ..up }),
            ("no order", BatchedCopy3d { order: 0, ..up }),
        ] {
            assert_eq!(
                cuMemcpy3DBatchAsync_v2(1, &raw const wrong, 0, on),
                INVALID_VALUE,
                "{what}"
            );
        }
        assert_eq!(cuMemcpy3DBatchAsync_v2(1, &raw const up, 1, on), INVALID_VALUE, "a flag");
        assert_eq!(cuMemcpy3DBatchAsync_v2(0, &raw const up, 0, on), INVALID_VALUE, "nothing");
    });
}

#[test]
fn fills_of_rows_are_aligned() {
    isolated(&[], || {
        let _gpu = Gpu::open();
        let device = loaded(&pattern(3));
        ok(cuMemsetD2D16_v2(device + 2, WIDTH, 0xa55a, 3, 2));
        let mut wanted = pattern(3);
        for start in [2, WIDTH + 2] {
            wanted[start..start + 6].copy_from_slice(&[0x5a, 0xa5, 0x5a, 0xa5, 0x5a, 0xa5]);
        }
        assert_eq!(read(device), wanted);
        assert_eq!(cuMemsetD2D16_v2(device + 1, WIDTH, 0, 3, 2), INVALID_VALUE);
        assert_eq!(cuMemsetD2D16_v2(device, WIDTH - 1, 0, 3, 2), INVALID_VALUE);
        assert_eq!(cuMemsetD2D16_v2(device, 4, 0, 3, 2), INVALID_VALUE, "rows overlap");
    });
}

/// Device time between two events around `work`, in microseconds, on a busy stream.
fn microseconds(gpu: &Gpu, on: Ptr, work: impl FnOnce()) -> f32 {
    let (start, end) = (event(), event());
    gpu.launch(on, 100_000);
    ok(cuEventRecord(start, on));
    work();
    ok(cuEventRecord(end, on));
    ok(cuEventSynchronize(end));
    let mut ms = 0.0;
    ok(cuEventElapsedTime(&mut ms, start, end));
    ms * 1000.0
}

#[test]
fn time_is_the_route_s() {
    isolated(&[], || {
        const SIZE: usize = 1_000_000;
        let gpu = Gpu::open();
        let mut other = null();
        ok(cuDevicePrimaryCtxRetain(&mut other, 1));
        ok(cuCtxSetCurrent(other));
        let far = alloc(SIZE);
        ok(cuCtxSetCurrent(gpu.context));
        let (on, here, there) = (stream(), alloc(SIZE), alloc(SIZE));
        let (bytes, mut back) = (vec![1_u8; SIZE], vec![0_u8; SIZE]);
        let near = |us: f32, wanted: f32| assert!((us - wanted).abs() < 0.1, "{us}, not {wanted}");

        near(microseconds(&gpu, on, || ok(cuMemcpyDtoDAsync_v2(here, there, SIZE, on))), 501.0);
        let up = || ok(cuMemcpyHtoDAsync_v2(here, bytes.as_ptr().cast(), SIZE, on));
        near(microseconds(&gpu, on, up), 1001.0);
        let across = || ok(cuMemcpyPeerAsync(far, other, here, gpu.context, SIZE, on));
        near(microseconds(&gpu, on, across), 1001.0);
        assert_eq!(cuMemcpyPeerAsync(far, null(), here, gpu.context, 1, on), INVALID_CONTEXT);

        // A copy within host memory uses no device, and the call waits. Page-locked memory counts as host memory.
        let plain = |host: *const u8, device: u64| Side2d {
            x: 0,
            y: 0,
            kind: if device == 0 { MEMORY_HOST } else { MEMORY_DEVICE },
            host: host.cast(),
            device,
            array: null(),
            pitch: 0,
        };
        let rows = |from, to| Copy2d { from, to, width: SIZE, height: 1 };
        let within = rows(plain(bytes.as_ptr(), 0), plain(back.as_mut_ptr(), 0));
        let waited_for = || {
            ok(cuMemcpy2DAsync_v2(&within, on));
            ok(cuStreamQuery(on));
        };
        // The remaining time is the thread's own until it records the second event.
        let quickest = (0..5).map(|_| microseconds(&gpu, on, waited_for)).fold(f32::MAX, f32::min);
        assert!(quickest < 500.0, "{quickest}");
        assert_eq!(back, bytes);
        let mut locked = null();
        ok(cuMemHostAlloc(&mut locked, SIZE, 0));
        let down = rows(plain(null().cast(), here), plain(null().cast(), locked as u64));
        near(microseconds(&gpu, on, || ok(cuMemcpy2DAsync_v2(&down, on))), 1001.0);
    });
}

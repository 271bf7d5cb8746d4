//! Device memory: exact to the byte for every allocation function.

use std::ffi::c_void;

use crate::support::*;
use driver::cuda::{AccessDesc, AllocationProp, Array3dDescriptor, ArrayDescriptor, MemLocation};

pub(crate) const SMALL: &[(&str, &str)] =
    &[("SLUICE_FAKE_MEMORY", "1GiB"), ("SLUICE_FAKE_CONTEXT", "128MiB")];

pub(crate) fn alloc(size: u64) -> (u32, u64) {
    let mut address = 0;
    (cuMemAlloc_v2(&mut address, size as usize), address)
}

pub(crate) fn location() -> MemLocation {
    MemLocation { kind: 1, id: 0 }
}

#[test]
fn allocates_to_the_last_byte() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        assert_eq!(free_memory(), 896 * MIB);
        let (code, large) = alloc(894 * MIB);
        ok(code);
        let mut small = Vec::new();
        loop {
            match alloc(512) {
                (SUCCESS, address) => small.push(address),
                (code, _) => {
                    assert_eq!(code, OUT_OF_MEMORY);
                    break;
                }
            }
        }
        assert_eq!(small.len() as u64, 2 * MIB / 512);
        assert_eq!(free_memory(), 0);
        ok(cuMemFree_v2(small.pop().unwrap()));
        assert_eq!(free_memory(), 512);
        assert_eq!(alloc(513).0, OUT_OF_MEMORY);
        ok(alloc(1).0);
        ok(cuMemFree_v2(large));
        assert_eq!(cuMemFree_v2(large), INVALID_VALUE);
        assert_eq!(free_memory(), 894 * MIB);
    });
}

#[test]
fn sizes_are_rounded_as_by_the_driver() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        for (asked, taken) in
            [(1, 512), (4096, 4096), (MIB - 1, MIB), (MIB, 2 * MIB), (2 * MIB + 1, 4 * MIB)]
        {
            let before = free_memory();
            let (code, address) = alloc(asked);
            ok(code);
            assert_eq!(before - free_memory(), taken, "{asked}");
            ok(cuMemFree_v2(address));
            assert_eq!(free_memory(), before);
        }
        let (mut address, mut pitch) = (0, 0);
        ok(cuMemAllocPitch_v2(&mut address, &mut pitch, 1000, 10, 4));
        assert_eq!(pitch, 1024);
        ok(cuMemFree_v2(address));
        let mut low = 0;
        ok(cuMemAlloc(&mut low, 4096));
        assert_ne!(low, 0);
        ok(cuMemFree(low));
        assert_eq!(free_memory(), 896 * MIB);
        assert_eq!(alloc(0).0, INVALID_VALUE);
        assert_eq!(alloc(1 << 60).0, OUT_OF_MEMORY);
    });
}

#[test]
fn bytes_arrive() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        let (a, b) = (alloc(4096).1, alloc(4096).1);
        let data: Vec<u8> = (0..4096).map(|n| (n * 7) as u8).collect();
        let mut back = vec![0_u8; 4096];
        ok(cuMemcpyHtoD_v2(a, data.as_ptr().cast(), 4096));
        ok(cuMemcpyDtoD_v2(b, a, 4096));
        ok(cuMemsetD8_v2(b + 10, 0xab, 5));
        ok(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), b, 4096));
        assert_eq!(back[..10], data[..10]);
        assert_eq!(back[10..15], [0xab; 5]);
        assert_eq!(back[15..], data[15..]);
        assert_eq!(cuMemcpyHtoD_v2(a, data.as_ptr().cast(), 4097), INVALID_VALUE);
        assert_eq!(cuMemcpyHtoD_v2(16, data.as_ptr().cast(), 1), INVALID_VALUE);
        assert_eq!(cuMemsetD32_v2(a + 2, 0, 1), INVALID_VALUE);
        let (mut base, mut size) = (0, 0);
        ok(cuMemGetAddressRange_v2(&mut base, &mut size, a + 100));
        assert_eq!((base, size), (a, 4096));
    });
}

#[test]
fn pools_reserve_chunks_and_give_back_at_a_synchronisation() {
    isolated(SMALL, || {
        let gpu = Gpu::open();
        let on = stream();
        let before = free_memory();
        let mut address = 0;
        ok(cuMemAllocAsync(&mut address, 1000, on));
        assert_eq!(before - free_memory(), 32 * MIB);
        ok(cuMemFreeAsync(address, on));
        assert_eq!(before - free_memory(), 32 * MIB);
        ok(cuStreamSynchronize(on));
        assert_eq!(free_memory(), before);
        let mut pool = null();
        ok(cuDeviceGetDefaultMemPool(&mut pool, gpu.device));
        let keep = 64 * MIB;
        ok(cuMemPoolSetAttribute(pool, 4, &keep));
        ok(cuMemAllocAsync(&mut address, 60 << 20, on));
        ok(cuMemFreeAsync(address, on));
        ok(cuCtxSynchronize());
        assert_eq!(before - free_memory(), 64 * MIB);
        // The driver gives up unused pool memory before another allocation fails.
        let (code, all) = alloc(before);
        ok(code);
        ok(cuMemFree_v2(all));
        // Until less than a whole chunk is free.
        let mut granted = 0;
        while cuMemAllocAsync(&mut address, 10 << 20, on) == SUCCESS {
            granted += 10 * MIB;
        }
        // Three allocations fit into a chunk; a fourth does not.
        let (chunks, rest) = (before / (32 * MIB), before % (32 * MIB));
        assert_eq!(granted, chunks * 30 * MIB + rest / (10 * MIB) * 10 * MIB);
    });
}

#[test]
fn pools_fragment() {
    isolated(SMALL, || {
        let gpu = Gpu::open();
        let on = stream();
        let mut pool = null();
        ok(cuDeviceGetDefaultMemPool(&mut pool, gpu.device));
        let keep = u64::MAX;
        ok(cuMemPoolSetAttribute(pool, 4, &keep));
        let before = free_memory();
        let mut held = [0; 8];
        for address in &mut held {
            ok(cuMemAllocAsync(address, 16 << 20, on));
        }
        for &address in held.iter().step_by(2) {
            ok(cuMemFreeAsync(address, on));
        }
        ok(cuCtxSynchronize());
        assert_eq!(before - free_memory(), 128 * MIB);
        // 64 MiB are free, but not contiguous.
        let mut large = 0;
        ok(cuMemAllocAsync(&mut large, 32 << 20, on));
        assert_eq!(before - free_memory(), 160 * MIB);
        ok(cuMemAllocAsync(&mut held[0], 16 << 20, on));
        assert_eq!(before - free_memory(), 160 * MIB);
        // Trimming frees only chunks without allocations.
        ok(cuMemFreeAsync(large, on));
        ok(cuMemPoolTrimTo(pool, 0));
        assert_eq!(before - free_memory(), 128 * MIB);
        ok(cuMemFreeAsync(held[1], on));
        ok(cuMemFreeAsync(held[0], on));
        ok(cuMemPoolTrimTo(pool, 0));
        assert_eq!(before - free_memory(), 96 * MIB);
    });
}

#[test]
fn physical_memory_is_charged_until_it_is_released_and_unmapped() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        let before = free_memory();
        let prop = AllocationProp {
            kind: 1,
            handle_types: 0,
            location: location(),
            win32_handle_meta_data: null(),
            alloc_flags: [0; 8],
        };
        let prop = (&raw const prop).cast::<c_void>();
        let (mut handle, size) = (0, 4 << 20);
        assert_eq!(cuMemCreate(&mut handle, size + 1, prop, 0), INVALID_VALUE);
        assert_eq!(cuMemCreate(&mut handle, 0, prop, 0), INVALID_VALUE);
        assert_eq!(cuMemCreate(&mut handle, size, std::ptr::null(), 0), INVALID_VALUE);
        ok(cuMemCreate(&mut handle, size, prop, 0));
        assert_eq!(before - free_memory(), 4 * MIB);
        let mut base = 0;
        ok(cuMemAddressReserve(&mut base, 2 * size, 0, 0, 0));
        ok(cuMemMap(base, size, 0, handle, 0));
        ok(cuMemMap(base + size as u64, size, 0, handle, 0));
        assert_eq!(cuMemMap(base, size, 0, handle, 0), INVALID_VALUE);
        // Mapped memory is inaccessible until `cuMemSetAccess`.
        assert_eq!(cuMemsetD8_v2(base, 1, 1), INVALID_VALUE);
        let access = AccessDesc { location: location(), flags: 3 };
        ok(cuMemSetAccess(base, 2 * size, (&raw const access).cast(), 1));
        ok(cuMemsetD8_v2(base + 5, 0x77, 1));
        let mut seen = 0_u8;
        ok(cuMemcpyDtoH_v2((&raw mut seen).cast(), base + size as u64 + 5, 1));
        assert_eq!(seen, 0x77, "two mappings show the same bytes");
        ok(cuMemRelease(handle));
        assert_eq!(cuMemRelease(handle), INVALID_VALUE);
        assert_eq!(before - free_memory(), 4 * MIB);
        assert_eq!(cuMemAddressFree(base, 2 * size), INVALID_VALUE);
        ok(cuMemUnmap(base, size));
        assert_eq!(before - free_memory(), 4 * MIB);
        ok(cuMemUnmap(base + size as u64, size));
        assert_eq!(free_memory(), before);
        ok(cuMemAddressFree(base, 2 * size));
    });
}

#[test]
fn arrays_take_what_their_shape_needs() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        let before = free_memory();
        let mut array = null();
        let flat = ArrayDescriptor { width: 1024, height: 0, format: 0x20, num_channels: 4 };
        ok(cuArrayCreate_v2(&mut array, (&raw const flat).cast()));
        // A single row occupies as much as eight.
        assert_eq!(before - free_memory(), 8 * 16384);
        ok(cuArrayDestroy(array));
        assert_eq!(cuArrayDestroy(array), INVALID_HANDLE);
        let bad = ArrayDescriptor { num_channels: 3, ..flat };
        assert_eq!(cuArrayCreate_v2(&mut array, (&raw const bad).cast()), INVALID_VALUE);
        let solid = Array3dDescriptor {
            width: 256,
            height: 256,
            depth: 16,
            format: 0x10,
            num_channels: 1,
            flags: 0,
        };
        ok(cuArray3DCreate_v2(&mut array, (&raw const solid).cast()));
        assert_eq!(before - free_memory(), 2 * MIB);
        ok(cuArrayDestroy(array));
        let image = Array3dDescriptor { depth: 0, format: 0x20, ..solid };
        let mut mipmap = null();
        ok(cuMipmappedArrayCreate(&mut mipmap, (&raw const image).cast(), 100));
        // 256x256 down to 1x1, in floats, each level at least eight rows of 64 bytes.
        let levels: u64 = (0..9).map(|l| (4_u64 << l).max(64) * (1_u64 << l).max(8)).sum();
        assert_eq!(before - free_memory(), levels);
        ok(cuMipmappedArrayDestroy(mipmap));
        assert_eq!(free_memory(), before);
    });
}

#[test]
fn managed_memory_counts_where_it_is() {
    isolated(SMALL, || {
        let gpu = Gpu::open();
        let before = free_memory();
        let mut address = 0;
        ok(cuMemAllocManaged(&mut address, 2 << 30, 1));
        assert_eq!(free_memory(), before);
        let mut other = 0;
        ok(cuMemAllocManaged(&mut other, 100 << 20, 1));
        ok(cuMemPrefetchAsync(other, 100 << 20, gpu.device, null()));
        assert_eq!(before - free_memory(), 100 * MIB);
        let (code, all) = alloc(before);
        assert_eq!(code, SUCCESS, "managed memory makes room");
        ok(cuMemFree_v2(all));
        assert_eq!(cuMemAllocManaged(&mut other, 4096, 0), INVALID_VALUE);
        ok(cuMemFree_v2(other));
        ok(cuMemFree_v2(address));
    });
}

#[test]
fn managed_memory_that_belongs_on_the_host_stays_there() {
    isolated(SMALL, || {
        let gpu = Gpu::open();
        let (before, size) = (free_memory(), 100 << 20);
        let mut address = 0;
        ok(cuMemAllocManaged(&mut address, size, 1));
        let fill = || ok(cuMemsetD8_v2(address, 1, size));
        // Advise host memory as the preferred location, and access by the device.
        ok(cuMemAdvise(address, size, 3, -1));
        ok(cuMemAdvise(address, size, 5, gpu.device));
        fill();
        assert_eq!(free_memory(), before);
        // A prefetch moves the memory regardless of the advice; advice alone moves nothing.
        ok(cuMemPrefetchAsync(address, size, gpu.device, null()));
        assert_eq!(before - free_memory(), 100 * MIB);
        ok(cuMemAdvise(address, size, 3, -1));
        assert_eq!(before - free_memory(), 100 * MIB);
        ok(cuMemPrefetchAsync(address, size, -1, null()));
        assert_eq!(free_memory(), before);
        ok(cuMemAdvise_v2(address, size, 4, MemLocation { kind: 0, id: 0 }));
        fill();
        assert_eq!(before - free_memory(), 100 * MIB);
        let missing = MemLocation { kind: 1, id: 9 };
        assert_eq!(cuMemAdvise_v2(address, size, 3, missing), INVALID_DEVICE);
        assert_eq!(cuMemAdvise(address, size + 1, 3, -1), INVALID_VALUE);
        assert_eq!(cuMemAdvise(address, size, 7, -1), INVALID_VALUE);
        ok(cuMemFree_v2(address));
        assert_eq!(free_memory(), before);
    });
}

#[test]
fn wrong_calls_get_the_drivers_answers() {
    isolated(SMALL, || {
        let (mut device, mut address) = (0, 0);
        assert_eq!(cuDeviceGet(&mut device, 0), NOT_INITIALIZED);
        assert_eq!(cuMemAlloc_v2(&mut address, 4), NOT_INITIALIZED);
        assert_eq!(cuInit(1), INVALID_VALUE);
        ok(cuInit(0));
        ok(cuInit(0));
        assert_eq!(cuDeviceGet(&mut device, 2), INVALID_DEVICE);
        assert_eq!(cuDeviceGet(&mut device, -1), INVALID_DEVICE);
        assert_eq!(cuMemAlloc_v2(&mut address, 4), INVALID_CONTEXT);
        assert_eq!(cuCtxSetCurrent(8 as Ptr), INVALID_CONTEXT);
        let gpu = Gpu::open();
        assert_eq!(cuStreamSynchronize(0x1234 as Ptr), INVALID_HANDLE);
        assert_eq!(cuEventQuery(0x1234 as Ptr), INVALID_HANDLE);
        assert_eq!(cuMemFree_v2(0x1000), INVALID_VALUE);
        let mut module = null();
        assert_eq!(cuModuleLoadData(&mut module, c"nonsense".as_ptr().cast()), INVALID_IMAGE);
        let mut function = null();
        let missing = cuModuleGetFunction(&mut function, gpu.module, c"other".as_ptr());
        assert_eq!(missing, NOT_FOUND);
        let no_params = std::ptr::null_mut();
        let launch = |f, grid, block, params| {
            cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, null(), params, no_params)
        };
        let mut ns = 1000_u64;
        let mut params = [(&raw mut ns).cast::<c_void>()];
        assert_eq!(launch(gpu.spin, 0, 1, params.as_mut_ptr()), INVALID_VALUE);
        assert_eq!(launch(gpu.spin, 1, 1025, params.as_mut_ptr()), INVALID_VALUE);
        assert_eq!(launch(gpu.spin, 1, 1, no_params), INVALID_VALUE);
        assert_eq!(launch(0x4321 as Ptr, 1, 1, params.as_mut_ptr()), INVALID_HANDLE);
        let mut ms = 0.0;
        let (a, b) = (event(), event());
        assert_eq!(cuEventElapsedTime(&mut ms, a, b), INVALID_HANDLE);
        ok(cuModuleUnload(gpu.module));
        assert_eq!(launch(gpu.spin, 1, 1, params.as_mut_ptr()), INVALID_HANDLE);
    });
}

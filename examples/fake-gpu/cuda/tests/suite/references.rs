//! Memory that stays allocated because another object refers to it: multicast objects, sparse arrays, external memory,
//! green contexts.

use std::os::fd::IntoRawFd;

use crate::support::*;
use driver::cuda::{
    AccessDesc, AllocationProp, Array3dDescriptor, ArrayMapInfo, DEV_RESOURCE_SM, DevResource,
    DevSmResource, EXTERNAL_MEMORY_OPAQUE_FD, ExternalMemoryBufferDesc, ExternalMemoryHandleDesc,
    ExternalMemoryMipmapDesc, GREEN_DEFAULT_STREAM, MemLocation, MulticastProp, RESOURCE_ARRAY,
    SparseProperties,
};

const SMALL: &[(&str, &str)] = &[("SLUICE_FAKE_MEMORY", "1GiB"), ("SLUICE_FAKE_CONTEXT", "128MiB")];
const SIZE: u64 = 4 * MIB;

fn location() -> MemLocation {
    MemLocation { kind: 1, id: 0 }
}

/// Allocates physical memory on device 0 (`cuMemCreate`). `usage` is 1 for tiles of sparse arrays.
fn physical(usage: u8) -> u64 {
    let prop = AllocationProp {
        kind: 1,
        handle_types: 0,
        location: location(),
        win32_handle_meta_data: null(),
        alloc_flags: [0, 0, usage, 0, 0, 0, 0, 0],
    };
    let mut handle = 0;
    ok(cuMemCreate(&mut handle, SIZE as usize, (&raw const prop).cast(), 0));
    handle
}

#[test]
fn what_is_bound_to_a_multicast_object_stays() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        let before = free_memory();
        let size = SIZE as usize;
        let prop = MulticastProp { num_devices: 1, size: 2 * size, handle_types: 0, flags: 0 };
        let none = MulticastProp { num_devices: 0, ..prop };
        let (mut team, mut unit) = (0, 0);
        assert_eq!(cuMulticastCreate(&mut team, (&raw const none).cast()), INVALID_VALUE);
        ok(cuMulticastGetGranularity(&mut unit, (&raw const prop).cast(), 0));
        assert_eq!(unit as u64, 2 * MIB);
        ok(cuMulticastCreate(&mut team, (&raw const prop).cast()));
        assert_eq!(free_memory(), before, "it takes nothing");
        ok(cuMulticastAddDevice(team, 0));
        assert_eq!(cuMulticastAddDevice(team, 0), INVALID_VALUE);
        let (memory, mut address) = (physical(0), 0);
        assert_eq!(cuMulticastBindMem(team, 1, memory, 0, size, 0), INVALID_VALUE);
        ok(cuMulticastBindMem(team, 0, memory, 0, size, 0));
        assert_eq!(cuMulticastBindMem(team, 0, memory, 0, size, 0), INVALID_VALUE);
        ok(cuMemRelease(memory));
        assert_eq!(before - free_memory(), SIZE, "bound");
        ok(cuMulticastUnbind(team, 0, 0, size));
        assert_eq!(cuMulticastUnbind(team, 0, 0, size), INVALID_VALUE);
        assert_eq!(free_memory(), before);
        // Bound by address this time. Destroying the multicast object releases the memory.
        let memory = physical(0);
        ok(cuMemAddressReserve(&mut address, size, 0, 0, 0));
        ok(cuMemMap(address, size, 0, memory, 0));
        ok(cuMemRelease(memory));
        ok(cuMulticastBindAddr(team, size, address, size, 0));
        ok(cuMemUnmap(address, size));
        assert_eq!(before - free_memory(), SIZE);
        ok(cuMemAddressFree(address, size));
        ok(cuMemAddressReserve(&mut address, 2 * size, 0, 0, 0));
        ok(cuMemMap(address, 2 * size, 0, team, 0));
        let access = AccessDesc { location: location(), flags: 3 };
        ok(cuMemSetAccess(address, 2 * size, (&raw const access).cast(), 1));
        ok(cuMemsetD8_v2(address, 1, 100));
        ok(cuMemRelease(team));
        assert_eq!(before - free_memory(), SIZE, "still mapped");
        ok(cuMemUnmap(address, 2 * size));
        assert_eq!(free_memory(), before);
    });
}

#[test]
fn what_is_mapped_into_a_sparse_array_stays() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        let (before, on) = (free_memory(), stream());
        let image = Array3dDescriptor {
            width: 512,
            height: 512,
            depth: 0,
            format: 0x20,
            num_channels: 1,
            flags: 0x40,
        };
        let mut array = null();
        ok(cuArray3DCreate_v2(&mut array, (&raw const image).cast()));
        assert_eq!(free_memory(), before, "it takes nothing");
        let mut told = SparseProperties::default();
        ok(cuArrayGetSparseProperties((&raw mut told).cast(), array));
        assert_eq!(told.tile_extent, [128, 128, 1]);
        let (plain, tiles) = (physical(0), physical(1));
        let mut info = ArrayMapInfo {
            resource_type: RESOURCE_ARRAY,
            resource: array,
            subresource_type: 0,
            padding: 0,
            subresource: [0, 0, 0, 0, 0, 256, 128, 1],
            mem_operation_type: 1,
            mem_handle_type: 0,
            mem_handle: plain,
            offset: 0,
            device_bit_mask: 1,
            flags: 0,
            reserved: [0; 2],
        };
        let call = |info: &ArrayMapInfo| cuMemMapArrayAsync((&raw const *info).cast(), 1, on);
        assert_eq!(call(&info), INVALID_VALUE, "no tile pool");
        info.mem_handle = tiles;
        info.subresource[5] = 100;
        assert_eq!(call(&info), INVALID_VALUE, "no whole tile");
        info.subresource[5] = 256;
        ok(call(&info));
        ok(cuMemRelease(plain));
        ok(cuMemRelease(tiles));
        assert_eq!(before - free_memory(), SIZE);
        // Unmap one of the two tiles, then the other.
        (info.mem_operation_type, info.mem_handle) = (2, 0);
        info.subresource[5] = 128;
        ok(call(&info));
        assert_eq!(before - free_memory(), SIZE);
        info.subresource[2] = 128;
        ok(call(&info));
        assert_eq!(free_memory(), before);
        // Destroying the array releases its tiles, too.
        let tiles = physical(1);
        (info.mem_operation_type, info.mem_handle) = (1, tiles);
        ok(call(&info));
        ok(call(&info));
        ok(cuMemRelease(tiles));
        assert_eq!(before - free_memory(), SIZE);
        ok(cuArrayDestroy(array));
        assert_eq!(free_memory(), before);
    });
}

#[test]
fn external_memory_counts_until_nothing_uses_it() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        let before = free_memory();
        let open = || std::fs::File::open("/dev/null").unwrap().into_raw_fd();
        let mut desc = ExternalMemoryHandleDesc {
            kind: 9,
            padding: 0,
            fd: open(),
            rest: [0; 3],
            size: 5 * MIB,
            flags: 0,
            reserved: [0; 16],
        };
        let mut memory = null();
        let import = |memory: &mut Ptr, desc: &ExternalMemoryHandleDesc| {
            cuImportExternalMemory(memory, (&raw const *desc).cast())
        };
        assert_eq!(import(&mut memory, &desc), 801);
        desc.kind = EXTERNAL_MEMORY_OPAQUE_FD;
        ok(import(&mut memory, &desc));
        assert_eq!(before - free_memory(), 6 * MIB);
        // SAFETY: asks whether the number is an open descriptor.
        assert_eq!(unsafe { libc::fcntl(desc.fd, libc::F_GETFD) }, -1, "the driver's own now");
        let part = ExternalMemoryBufferDesc {
            offset: 100,
            size: 5 * MIB - 100,
            flags: 0,
            reserved: [0; 16],
        };
        let (mut one, mut two, mut mipmap) = (0, 0, null());
        ok(cuExternalMemoryGetMappedBuffer(&mut one, memory, (&raw const part).cast()));
        ok(cuExternalMemoryGetMappedBuffer(&mut two, memory, (&raw const part).cast()));
        let far = ExternalMemoryBufferDesc { offset: 101, ..part };
        let refused = cuExternalMemoryGetMappedBuffer(&mut two, memory, (&raw const far).cast());
        assert_eq!(refused, INVALID_VALUE);
        ok(cuMemsetD8_v2(one, 0x42, 8));
        let mut byte = 0_u8;
        ok(cuMemcpyDtoH_v2((&raw mut byte).cast(), two + 7, 1));
        assert_eq!(byte, 0x42);
        let image = ExternalMemoryMipmapDesc {
            offset: 0,
            array: Array3dDescriptor {
                width: 256,
                height: 256,
                depth: 0,
                format: 0x20,
                num_channels: 1,
                flags: 0,
            },
            num_levels: 3,
            reserved: [0; 16],
        };
        let image = (&raw const image).cast();
        ok(cuExternalMemoryGetMappedMipmappedArray(&mut mipmap, memory, image));
        assert_eq!(before - free_memory(), 6 * MIB);
        ok(cuMemFree_v2(one));
        ok(cuDestroyExternalMemory(memory));
        assert_eq!(cuDestroyExternalMemory(memory), INVALID_HANDLE);
        ok(cuMemFree_v2(two));
        assert_eq!(before - free_memory(), 6 * MIB);
        ok(cuMipmappedArrayDestroy(mipmap));
        assert_eq!(free_memory(), before);
        (desc.fd, desc.size) = (open(), 2 * GIB);
        assert_eq!(import(&mut memory, &desc), OUT_OF_MEMORY);
    });
}

#[test]
fn green_contexts_take_some_memory() {
    isolated(SMALL, || {
        let gpu = Gpu::open();
        let before = free_memory();
        let empty = DevResource {
            kind: 0,
            padding: [0; 92],
            sm: DevSmResource {
                sm_count: 0,
                min_sm_partition_size: 0,
                sm_coscheduled_alignment: 0,
            },
            rest: [0; 36],
        };
        let (mut all, mut rest, mut parts, mut groups) = (empty, empty, [empty; 4], 0);
        assert_eq!(cuDeviceGetDevResource(0, (&raw mut all).cast(), 7), 914);
        ok(cuDeviceGetDevResource(0, (&raw mut all).cast(), DEV_RESOURCE_SM));
        assert_eq!(all.sm.sm_count, 132);
        let (none, nowhere) = (std::ptr::null_mut(), std::ptr::null_mut());
        ok(cuDevSmResourceSplitByCount(none, &mut groups, &all, nowhere, 0, 30));
        assert_eq!(groups, 4);
        groups = 2;
        ok(cuDevSmResourceSplitByCount(parts.as_mut_ptr(), &mut groups, &all, &mut rest, 0, 30));
        assert_eq!((groups, parts[1].sm.sm_count, rest.sm.sm_count), (2, 32, 68));
        let (mut desc, mut green, mut context, mut on) = (null(), null(), null(), null());
        let mixed = [all, parts[0]];
        assert_eq!(cuDevResourceGenerateDesc(&mut desc, mixed.as_ptr(), 2), 915);
        ok(cuDevResourceGenerateDesc(&mut desc, parts.as_ptr(), 2));
        assert_eq!(cuGreenCtxCreate(&mut green, desc, 0, 0), INVALID_VALUE);
        ok(cuGreenCtxCreate(&mut green, desc, 0, GREEN_DEFAULT_STREAM));
        assert_eq!(before - free_memory(), 8 * MIB);
        ok(cuCtxFromGreenCtx(&mut context, green));
        assert_eq!(cuCtxDestroy_v2(context), INVALID_CONTEXT);
        ok(cuGreenCtxStreamCreate(&mut on, green, 1, 0));
        let mut found = null();
        ok(cuStreamGetGreenCtx(on, &mut found));
        assert_eq!(found, green);
        // Modules and memory belong to the primary context, not to the green context.
        gpu.launch(on, 10);
        ok(cuStreamSynchronize(on));
        ok(cuCtxSetCurrent(context));
        let mut address = 0;
        ok(cuMemAlloc_v2(&mut address, 2 << 20));
        ok(cuStreamDestroy_v2(on));
        ok(cuGreenCtxDestroy(green));
        assert_eq!(cuGreenCtxDestroy(green), INVALID_CONTEXT);
        ok(cuCtxSetCurrent(gpu.context));
        assert_eq!(before - free_memory(), 2 * MIB);
        ok(cuMemFree_v2(address));
        // A green context keeps the primary context alive after its release.
        ok(cuGreenCtxCreate(&mut green, desc, 0, GREEN_DEFAULT_STREAM));
        ok(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(before - free_memory(), 8 * MIB);
        let mut drawing = null();
        ok(cuGLCtxCreate_v2(&mut drawing, 0, 0));
        assert_eq!(before - free_memory(), 136 * MIB);
        ok(cuGreenCtxDestroy(green));
        assert_eq!(free_memory(), before);
        ok(cuCtxDestroy_v2(drawing));
    });
}

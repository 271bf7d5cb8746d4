//! Device memory: exact to the byte, for every way to allocate it.

use std::ffi::c_void;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::*;
use driver::cuda::{
    AccessDesc, AllocationProp, Array3dDescriptor, ArrayDescriptor, MemAllocNodeParams,
    MemLocation, PoolProps,
};

const SMALL: &[(&str, &str)] = &[("SLUICE_FAKE_MEMORY", "1GiB"), ("SLUICE_FAKE_CONTEXT", "128MiB")];

fn alloc(size: u64) -> (u32, u64) {
    let mut address = 0;
    (cuMemAlloc_v2(&mut address, size as usize), address)
}

fn location() -> MemLocation {
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
        // Memory that no allocation uses is given up before another allocation fails.
        let (code, all) = alloc(before);
        ok(code);
        ok(cuMemFree_v2(all));
        // To the end of the memory, where no whole chunk is left.
        let mut granted = 0;
        while cuMemAllocAsync(&mut address, 10 << 20, on) == SUCCESS {
            granted += 10 * MIB;
        }
        // Three fit into a chunk, and its end is too short for a fourth.
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
        // 64 MiB are free, but not in one piece.
        let mut large = 0;
        ok(cuMemAllocAsync(&mut large, 32 << 20, on));
        assert_eq!(before - free_memory(), 160 * MIB);
        ok(cuMemAllocAsync(&mut held[0], 16 << 20, on));
        assert_eq!(before - free_memory(), 160 * MIB);
        // Only chunks without allocations are given back.
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
        // It is not accessible before access is set.
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
        // A single row takes as much as eight.
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
        // To the host, where the device can access it.
        ok(cuMemAdvise(address, size, 3, -1));
        ok(cuMemAdvise(address, size, 5, gpu.device));
        fill();
        assert_eq!(free_memory(), before);
        // A prefetch moves it all the same; advice moves nothing.
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

/// Text of a module with three MiB of code.
fn large_image() -> Vec<u8> {
    let mut image = b".version 8.0\n.visible .entry k() { ret; }\n".to_vec();
    image.resize(3 << 20, b'\n');
    image.push(0);
    image
}

#[test]
fn code_takes_memory_once_something_in_it_is_used() {
    isolated(SMALL, || {
        let gpu = Gpu::open();
        let (before, image) = (free_memory(), large_image());
        let (image, none) = (image.as_ptr().cast(), std::ptr::null());
        let (mut module, mut function, mut library, mut kernel) = (null(), null(), null(), null());
        ok(cuModuleLoadData(&mut module, image));
        assert_eq!(free_memory(), before);
        ok(cuModuleGetFunction(&mut function, module, c"k".as_ptr()));
        ok(cuModuleGetFunction(&mut function, module, c"k".as_ptr()));
        assert_eq!(before - free_memory(), 4 * MIB);
        ok(cuModuleUnload(module));
        assert_eq!(free_memory(), before);
        // A library is loaded in each context that uses it.
        ok(cuLibraryLoadData(&mut library, image, none, none, 0, none, none, 0));
        ok(cuLibraryGetKernel(&mut kernel, library, c"k".as_ptr()));
        assert_eq!(free_memory(), before);
        let no = std::ptr::null_mut();
        ok(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, null(), no, no));
        assert_eq!(before - free_memory(), 4 * MIB);
        let (mut context, mut loaded) = (null(), 2);
        ok(cuCtxCreate_v2(&mut context, 0, gpu.device));
        ok(cuFuncIsLoaded(&mut loaded, kernel));
        assert_eq!(loaded, 0);
        ok(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, null(), no, no));
        ok(cuFuncIsLoaded(&mut loaded, kernel));
        assert_eq!(loaded, 1);
        assert_eq!(before - free_memory(), (128 + 8) * MIB);
        ok(cuCtxDestroy_v2(context));
        assert_eq!(before - free_memory(), 4 * MIB);
        ok(cuLibraryUnload(library));
        assert_eq!(free_memory(), before);
        // There has to be enough memory.
        ok(cuModuleLoadData(&mut module, image));
        ok(alloc(before - MIB).0);
        assert_eq!(cuModuleGetFunction(&mut function, module, c"k".as_ptr()), OUT_OF_MEMORY);
    });
}

#[test]
fn graph_memory_is_taken_at_launch_and_kept_until_it_is_trimmed() {
    isolated(SMALL, || {
        let gpu = Gpu::open();
        let on = stream();
        let before = free_memory();
        let mut params = MemAllocNodeParams {
            pool_props: PoolProps {
                kind: 1,
                handle_types: 0,
                location: location(),
                win32_security_attributes: null(),
                max_size: 0,
                usage: 0,
                reserved: [0; 54],
            },
            access_descs: std::ptr::null(),
            access_desc_count: 0,
            bytesize: 64 << 20,
            dptr: 0,
        };
        let (mut graph, mut node, mut free) = (null(), null(), null());
        ok(cuGraphCreate(&mut graph, 0));
        let none = std::ptr::null();
        ok(cuGraphAddMemAllocNode(&mut node, graph, none, 0, (&raw mut params).cast()));
        assert_ne!(params.dptr, 0);
        ok(cuGraphAddMemFreeNode(&mut free, graph, &node, 1, params.dptr));
        let mut exec = null();
        ok(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        assert_eq!(free_memory(), before);
        for _ in 0..3 {
            ok(cuGraphLaunch(exec, on));
            ok(cuStreamSynchronize(on));
            assert_eq!(before - free_memory(), 64 * MIB);
        }
        let mut reserved = 0;
        ok(cuDeviceGetGraphMemAttribute(gpu.device, 2, &mut reserved));
        assert_eq!(reserved, 64 * MIB);
        ok(cuDeviceGraphMemTrim(gpu.device));
        assert_eq!(free_memory(), before);
        ok(cuGraphExecDestroy(exec));
        ok(cuGraphDestroy(graph));
    });
}

#[test]
fn contexts_cost_and_take_their_memory_along() {
    isolated(SMALL, || {
        let gpu = Gpu::open();
        let before = free_memory();
        let mut context = null();
        ok(cuCtxCreate_v2(&mut context, 0, gpu.device));
        assert_eq!(before - free_memory(), 128 * MIB);
        let (code, _) = alloc(10 * MIB);
        ok(code);
        ok(cuCtxDestroy_v2(context));
        let mut current = null();
        ok(cuCtxGetCurrent(&mut current));
        assert_eq!(current, gpu.context);
        assert_eq!(free_memory(), before);
        ok(alloc(10 * MIB).0);
        ok(cuDevicePrimaryCtxReset_v2(gpu.device));
        let mut address = 0;
        assert_eq!(cuMemAlloc_v2(&mut address, 4), 709);
        let mut context = null();
        ok(cuDevicePrimaryCtxRetain(&mut context, gpu.device));
        assert_eq!(context, gpu.context);
        assert_eq!(free_memory(), before);
        for _ in 0..7 {
            ok(cuCtxCreate_v2(&mut context, 0, gpu.device));
        }
        assert_eq!(cuCtxCreate_v2(&mut context, 0, gpu.device), OUT_OF_MEMORY);
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

#[test]
fn a_forked_child_starts_clean() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        ok(alloc(100 * MIB).0);
        let before = free_memory();
        // SAFETY: the child only makes driver calls and leaves with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut address = 0;
            let mut good = cuMemAlloc_v2(&mut address, 4) == NOT_INITIALIZED;
            let mut context = null();
            good &= cuInit(0) == 0 && cuMemAlloc_v2(&mut address, 4) == INVALID_CONTEXT;
            good &= cuDevicePrimaryCtxRetain(&mut context, 0) == 0;
            good &= cuCtxSetCurrent(context) == 0 && free_memory() == before - 128 * MIB;
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert_eq!(free_memory(), before);
    });
}

#[test]
fn a_child_does_not_keep_its_parents_memory() {
    isolated(SMALL, || {
        if part().is_some() {
            let _gpu = Gpu::open();
            ok(alloc(100 * MIB).0);
            // SAFETY: the child only sleeps; it ends with its own alarm.
            if unsafe { libc::fork() } == 0 {
                std::thread::sleep(std::time::Duration::from_secs(3));
                // SAFETY: ends the child without running exit handlers.
                unsafe { libc::_exit(0) };
            }
            println!("ready");
            std::thread::sleep(std::time::Duration::from_secs(60));
            return;
        }
        let _gpu = Gpu::open();
        let before = free_memory();
        let mut other = start_part("other");
        eventually(|| free_memory() == before - 228 * MIB);
        std::thread::sleep(std::time::Duration::from_millis(100));
        let begin = std::time::Instant::now();
        other.kill().unwrap();
        other.wait().unwrap();
        eventually(|| free_memory() == before);
        assert!(begin.elapsed().as_millis() < 1000, "{:?}", begin.elapsed());
    });
}

#[test]
fn a_program_that_executes_another_one_is_gone() {
    isolated(SMALL, || {
        if part().is_some() {
            let _gpu = Gpu::open();
            ok(alloc(100 * MIB).0);
            println!("ready");
            std::io::stdin().read_exact(&mut [0]).unwrap();
            let error = Command::new("sleep").arg("30").exec();
            panic!("{error}");
        }
        let _gpu = Gpu::open();
        let before = free_memory();
        let mut child = start_part("other");
        eventually(|| free_memory() == before - 228 * MIB);
        child.stdin.take().unwrap().write_all(b"g").unwrap();
        eventually(|| free_memory() == before);
        assert!(child.try_wait().unwrap().is_none(), "the process itself lives on");
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

#[test]
fn visible_devices_are_honoured() {
    let two = "GPU-5a1ce000-0000-4000-8000-000000000001,0";
    isolated(&[("CUDA_VISIBLE_DEVICES", two)], || {
        let _gpu = Gpu::open();
        let mut count = 0;
        ok(cuDeviceGetCount(&mut count));
        assert_eq!(count, 2);
        ok(alloc(64 * MIB).0);
        // Ordinal 0 is the node's device 1. Another process, which sees the devices in order, finds
        // the memory missing on that one.
        if part().is_none() {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "second_device_from_outside", "--nocapture", "--ignored"])
                .env("CUDA_VISIBLE_DEVICES", "1")
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        }
    });
}

#[test]
#[ignore = "a part of visible_devices_are_honoured"]
fn second_device_from_outside() {
    let _gpu = Gpu::open();
    // Two contexts of 512 MiB, and what the other process allocated.
    assert_eq!(free_memory(), 16 * GIB - GIB - 64 * MIB);
}

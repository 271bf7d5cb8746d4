//! Memory that the driver allocates by itself: for code, graphs and contexts.

use crate::memory::{SMALL, alloc, location};
use crate::support::*;
use driver::cuda::{MemAllocNodeParams, PoolProps};

/// A module in PTX, padded to 3 MiB.
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
        // Each context that uses a library loads its own copy.
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
        // Loading fails when not enough memory is free.
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

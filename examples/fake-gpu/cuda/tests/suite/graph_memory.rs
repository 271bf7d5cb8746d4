//! Memory that graphs allocate.

use std::ffi::c_void;

use crate::support::*;
use driver::cuda::{
    AccessDesc, CHILD_MOVE, ChildGraphNodeParams, GraphNodeBody, GraphNodeParams,
    MemAllocNodeParams, MemLocation, NODE_GRAPH, PoolProps,
};

const SMALL: &[(&str, &str)] = &[("SLUICE_FAKE_MEMORY", "1GiB"), ("SLUICE_FAKE_CONTEXT", "128MiB")];
const NOT_SUPPORTED: u32 = 801;

fn params(size: u64) -> MemAllocNodeParams {
    MemAllocNodeParams {
        pool_props: PoolProps {
            kind: 1,
            handle_types: 0,
            location: MemLocation { kind: 1, id: 0 },
            win32_security_attributes: null(),
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        },
        access_descs: std::ptr::null(),
        access_desc_count: 0,
        bytesize: size as usize,
        dptr: 0,
    }
}

fn graph() -> Ptr {
    let mut graph = null();
    ok(cuGraphCreate(&mut graph, 0));
    graph
}

fn add_alloc(graph: Ptr, after: &[Ptr], size: u64) -> (Ptr, u64) {
    let (mut node, mut params) = (null(), params(size));
    let params_at = (&raw mut params).cast();
    ok(cuGraphAddMemAllocNode(&mut node, graph, after.as_ptr(), after.len(), params_at));
    (node, params.dptr)
}

fn add_free(graph: Ptr, after: &[Ptr], address: u64) -> Ptr {
    let mut node = null();
    ok(cuGraphAddMemFreeNode(&mut node, graph, after.as_ptr(), after.len(), address));
    node
}

fn instantiate(graph: Ptr, flags: u64) -> Ptr {
    let mut exec = null();
    ok(cuGraphInstantiateWithFlags(&mut exec, graph, flags));
    exec
}

/// Graph memory of device 0: bytes used and their peak, bytes reserved and their peak.
fn figures() -> [u64; 4] {
    let mut all = [0; 4];
    for (attribute, value) in all.iter_mut().enumerate() {
        ok(cuDeviceGetGraphMemAttribute(0, attribute as u32, value));
    }
    all
}

#[test]
fn chunks_are_reserved_for_the_height_of_a_graph() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        let (on, before, graph) = (stream(), free_memory(), graph());
        // 40 MiB are freed before 20 MiB are allocated: at most 40 MiB at a time.
        let (first, address) = add_alloc(graph, &[], 40 * MIB);
        let freed = add_free(graph, &[first], address);
        let (_, left) = add_alloc(graph, &[freed], 20 * MIB);
        let exec = instantiate(graph, 0);
        assert_eq!(figures(), [0; 4]);
        assert_eq!(free_memory(), before);
        ok(cuGraphUpload(exec, on));
        assert_eq!(figures(), [0, 0, 64 * MIB, 64 * MIB]);
        assert_eq!(before - free_memory(), 64 * MIB);
        ok(cuGraphLaunch(exec, on));
        ok(cuStreamSynchronize(on));
        assert_eq!(figures(), [20 * MIB, 40 * MIB, 64 * MIB, 64 * MIB]);
        assert_eq!(cuGraphLaunch(exec, on), INVALID_VALUE, "its memory is not free");
        ok(cuDeviceGraphMemTrim(0));
        assert_eq!(before - free_memory(), 20 * MIB);
        ok(cuMemFreeAsync(left, on));
        assert_eq!(cuMemFreeAsync(left, on), INVALID_VALUE);
        assert_eq!(before - free_memory(), 20 * MIB, "kept for the next launch");
        ok(cuDeviceGraphMemTrim(0));
        assert_eq!(free_memory(), before);
        ok(cuDeviceSetGraphMemAttribute(0, 1, &0));
        ok(cuDeviceSetGraphMemAttribute(0, 3, &0));
        assert_eq!(figures(), [0; 4]);
        assert_eq!(cuDeviceSetGraphMemAttribute(0, 1, &5), INVALID_VALUE);
        assert_eq!(cuDeviceSetGraphMemAttribute(0, 2, &0), INVALID_VALUE);
        ok(cuGraphLaunch(exec, on));
        ok(cuMemFree_v2(left));
        ok(cuGraphExecDestroy(exec));
        ok(cuGraphDestroy(graph));
    });
}

#[test]
fn memory_of_a_running_graph_is_neither_trimmed_nor_shared() {
    isolated(SMALL, || {
        let gpu = Gpu::open();
        let (one, two, before) = (stream(), stream(), free_memory());
        let make = || {
            let graph = graph();
            let (node, address) = add_alloc(graph, &[], 32 * MIB);
            add_free(graph, &[node], address);
            instantiate(graph, 0)
        };
        let (a, b) = (make(), make());
        gpu.launch(one, 100_000);
        ok(cuGraphLaunch(a, one));
        ok(cuGraphLaunch(b, one));
        assert_eq!(before - free_memory(), 32 * MIB, "one after the other");
        gpu.launch(two, 1000);
        ok(cuGraphLaunch(b, two));
        assert_eq!(before - free_memory(), 64 * MIB, "side by side");
        ok(cuDeviceGraphMemTrim(0));
        assert_eq!(before - free_memory(), 64 * MIB);
        assert_eq!(figures()[0], 64 * MIB);
        ok(cuStreamSynchronize(one));
        ok(cuStreamSynchronize(two));
        ok(cuDeviceGraphMemTrim(0));
        assert_eq!(free_memory(), before);
    });
}

#[test]
fn automatic_frees_and_captured_allocations() {
    isolated(SMALL, || {
        let gpu = Gpu::open();
        let (on, before) = (stream(), free_memory());
        let (mut address, mut graph) = (0, null());
        ok(cuStreamBeginCapture_v2(on, 0));
        ok(cuMemAllocAsync(&mut address, 32 << 20, on));
        gpu.launch(on, 10);
        ok(cuStreamEndCapture(on, &mut graph));
        let (mut nodes, mut count, mut kind) = ([null(); 4], 4, -1);
        ok(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
        assert_eq!(count, 2);
        ok(cuGraphNodeGetType(nodes[0], &mut kind));
        assert_eq!(kind, 10);
        let mut told = params(1);
        ok(cuGraphMemAllocNodeGetParams(nodes[0], (&raw mut told).cast()));
        assert_eq!((told.dptr, told.bytesize), (address, 32 << 20));
        assert_eq!(cuGraphMemAllocNodeGetParams(nodes[1], (&raw mut told).cast()), INVALID_VALUE);
        let exec = instantiate(graph, 1);
        let mut second = null();
        assert_eq!(cuGraphInstantiateWithFlags(&mut second, graph, 0), NOT_SUPPORTED);
        for _ in 0..3 {
            ok(cuGraphLaunch(exec, on));
        }
        assert_eq!(before - free_memory(), 32 * MIB);
        // Another graph may free the allocation.
        let other = self::graph();
        let node = add_free(other, &[], address);
        let mut freed = 0;
        ok(cuGraphMemFreeNodeGetParams(node, &mut freed));
        assert_eq!(freed, address);
        let mut twice = null();
        let none = std::ptr::null();
        assert_eq!(cuGraphAddMemFreeNode(&mut twice, other, none, 0, address), INVALID_VALUE);
        assert_eq!(cuGraphAddMemFreeNode(&mut twice, graph, none, 0, address), INVALID_VALUE);
        let release = instantiate(other, 0);
        ok(cuGraphLaunch(release, on));
        assert_eq!(cuGraphLaunch(release, on), INVALID_VALUE, "freed already");
        ok(cuStreamSynchronize(on));
        ok(cuDeviceGraphMemTrim(0));
        assert_eq!(free_memory(), before);
        ok(cuGraphExecDestroy(exec));
        ok(cuGraphDestroy(graph));
    });
}

#[test]
fn clones_and_child_graphs() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        let (on, before) = (stream(), free_memory());
        let (plain, none) = (graph(), std::ptr::null());
        let mut node = null();
        ok(cuGraphAddEmptyNode(&mut node, plain, none, 0));
        let (mut clone, mut found, mut owned) = (null(), null(), null());
        ok(cuGraphClone(&mut clone, plain));
        ok(cuGraphNodeFindInClone(&mut found, node, clone));
        assert_ne!(found, node);
        assert_eq!(cuGraphNodeFindInClone(&mut owned, found, plain), INVALID_VALUE);
        let parent = graph();
        ok(cuGraphAddChildGraphNode(&mut node, parent, none, 0, plain));
        ok(cuGraphChildGraphNodeGetGraph(node, &mut owned));
        assert_ne!(owned, plain);
        assert_eq!(cuGraphDestroy(owned), INVALID_VALUE, "it belongs to the node");
        // A graph that allocates can be moved into a child node, but not copied.
        let child = graph();
        let (first, address) = add_alloc(child, &[], 32 * MIB);
        add_free(child, &[first], address);
        assert_eq!(cuGraphClone(&mut clone, child), NOT_SUPPORTED);
        assert_eq!(cuGraphAddChildGraphNode(&mut node, parent, none, 0, child), NOT_SUPPORTED);
        let mut wanted = GraphNodeParams {
            kind: NODE_GRAPH,
            reserved0: [0; 3],
            body: GraphNodeBody { reserved1: [0; 29] },
            reserved2: 0,
        };
        wanted.body.child = ChildGraphNodeParams { graph: child, ownership: CHILD_MOVE };
        let wanted = (&raw mut wanted).cast::<c_void>();
        ok(cuGraphAddNode_v2(&mut node, parent, none, std::ptr::null(), 0, wanted));
        ok(cuGraphChildGraphNodeGetGraph(node, &mut owned));
        assert_eq!(owned, child);
        let exec = instantiate(parent, 0);
        ok(cuGraphLaunch(exec, on));
        assert_eq!(before - free_memory(), 32 * MIB);
        ok(cuGraphExecDestroy(exec));
        ok(cuGraphDestroy(parent));
        assert_eq!(cuGraphDestroy(child), INVALID_VALUE);
        ok(cuCtxSynchronize());
        ok(cuDeviceGraphMemTrim(0));
        assert_eq!(free_memory(), before);
        assert_eq!(cuMemFree_v2(address), INVALID_VALUE);
    });
}

#[test]
fn the_last_bytes_of_a_device_serve_a_graph() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        let (on, graph, mut address) = (stream(), graph(), 0);
        ok(cuMemAlloc_v2(&mut address, (free_memory() - 10 * MIB) as usize));
        let access = AccessDesc { location: MemLocation { kind: 1, id: 0 }, flags: 3 };
        let (mut node, mut told) = (null(), params(10 * MIB));
        (told.access_descs, told.access_desc_count) = (&raw const access, 1);
        ok(cuGraphAddMemAllocNode(&mut node, graph, std::ptr::null(), 0, (&raw mut told).cast()));
        told.access_desc_count = 0;
        ok(cuGraphMemAllocNodeGetParams(node, (&raw mut told).cast()));
        assert_eq!(told.access_desc_count, 1);
        let exec = instantiate(graph, 0);
        ok(cuGraphLaunch(exec, on));
        assert_eq!(free_memory(), 0);
        ok(cuMemFree_v2(told.dptr));
        // The driver gives up memory that no graph uses before another allocation fails.
        ok(cuStreamSynchronize(on));
        let mut other = 0;
        ok(cuMemAlloc_v2(&mut other, 10 << 20));
        assert_eq!(cuGraphLaunch(exec, on), OUT_OF_MEMORY);
        ok(cuMemFree_v2(other));
        ok(cuGraphLaunch(exec, on));
    });
}

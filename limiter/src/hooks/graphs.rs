//! Hooks of executable graphs and their memory.

use super::Call;
use super::pointers::written;
use crate::process::Process;
use core::ffi::{c_char, c_void};
use driver::cuda::{CuResult, Device, Graph, GraphExec, GraphNode, Stream};

macros::hooks! {
    /// CUDA driver API, Graph Management: allocation nodes are charged by what the driver reserves for
    /// graphs, when an executable graph is instantiated, uploaded or launched.
    library Cuda;
    changes memory;

    fn cuGraphInstantiate | cuGraphInstantiate_v2 (exec: *mut GraphExec, graph: Graph, error: *mut GraphNode, log: *mut c_char, size: usize) -> CuResult = instantiate;
    fn cuGraphInstantiateWithFlags(exec: *mut GraphExec, graph: Graph, flags: u64) -> CuResult = instantiate_with_flags;
    fn cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz (exec: *mut GraphExec, graph: Graph, params: *mut c_void) -> CuResult = instantiate_with_params;
    fn cuGraphUpload | cuGraphUpload_ptsz (exec: GraphExec, stream: Stream) -> CuResult = upload;
    fn cuGraphExecDestroy(exec: GraphExec) -> CuResult = destroy;
    fn cuDeviceGraphMemTrim(device: Device) -> CuResult = trim;
}

/// Runs a call that instantiates a graph.
fn instantiated(
    process: &'static Process,
    graph: Graph,
    exec: impl Fn() -> GraphExec,
    original: impl FnOnce() -> CuResult,
) -> CuResult {
    let limited = |ordinal| process.device(ordinal).map(|device| &device.memory).limited();
    process.memory.instantiate(graph, limited, exec, original)
}

fn instantiate(
    call: Call<signature::cuGraphInstantiate>,
    exec: *mut GraphExec,
    graph: Graph,
    error: *mut GraphNode,
    log: *mut c_char,
    size: usize,
) -> CuResult {
    // SAFETY: read after success only, when the driver has written there.
    let handle = || unsafe { written(exec) };
    // SAFETY: the program's own arguments.
    instantiated(call.process, graph, handle, || unsafe {
        (call.original)(exec, graph, error, log, size)
    })
}

fn instantiate_with_flags(
    call: Call<signature::cuGraphInstantiateWithFlags>,
    exec: *mut GraphExec,
    graph: Graph,
    flags: u64,
) -> CuResult {
    // SAFETY: read after success only, when the driver has written there.
    let handle = || unsafe { written(exec) };
    // SAFETY: the program's own arguments.
    instantiated(call.process, graph, handle, || unsafe { (call.original)(exec, graph, flags) })
}

fn instantiate_with_params(
    call: Call<signature::cuGraphInstantiateWithParams>,
    exec: *mut GraphExec,
    graph: Graph,
    params: *mut c_void,
) -> CuResult {
    // SAFETY: read after success only, when the driver has written there.
    let handle = || unsafe { written(exec) };
    // SAFETY: the program's own arguments.
    instantiated(call.process, graph, handle, || unsafe { (call.original)(exec, graph, params) })
}

fn upload(call: Call<signature::cuGraphUpload>, exec: GraphExec, stream: Stream) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process.memory.launch_graph(exec, || unsafe { (call.original)(exec, stream) })
}

fn destroy(call: Call<signature::cuGraphExecDestroy>, exec: GraphExec) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process.memory.graphs().destroy(exec, || unsafe { (call.original)(exec) })
}

fn trim(call: Call<signature::cuDeviceGraphMemTrim>, device: Device) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process.memory.graphs().trim(device, || unsafe { (call.original)(device) })
}

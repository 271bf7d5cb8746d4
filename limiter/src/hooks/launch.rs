//! Hooks of launches, captures and the end of streams.

use super::Call;
use super::pointers::read;
use super::tail_jump::Arguments;
use crate::compute::{self, Launched, Work};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use driver::cuda::{
    CuResult, Function, Graph, GraphExec, GraphNode, LaunchConfig, LaunchParams, Stream,
};

macros::hooks! {
    /// CUDA driver API, Execution Control / Graph Management.
    library Cuda;

    fn cuLaunchKernel | cuLaunchKernel_ptsz (f: Function, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, params: *mut *mut c_void, extra: *mut *mut c_void) -> CuResult = kernel jumps if passes;
    fn cuLaunchKernelEx | cuLaunchKernelEx_ptsz (config: *const LaunchConfig, f: Function, params: *mut *mut c_void, extra: *mut *mut c_void) -> CuResult = kernel_ex jumps if passes_ex;
    fn cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz (f: Function, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, params: *mut *mut c_void) -> CuResult = cooperative jumps if passes;
    /// Passes the gate of the first stream's device only.
    fn cuLaunchCooperativeKernelMultiDevice(list: *mut LaunchParams, count: c_uint, flags: c_uint) -> CuResult = cooperative_multi;
    fn cuGraphLaunch | cuGraphLaunch_ptsz (graph: GraphExec, stream: Stream) -> CuResult = graph;
    /// Stream Management: nothing may be recorded into a destroyed stream.
    fn cuStreamDestroy | cuStreamDestroy_v2 (stream: Stream) -> CuResult = stream_destroy;
    /// Launches into a captured stream are free; the launch of its graph is not.
    fn cuStreamBeginCapture | cuStreamBeginCapture_ptsz (stream: Stream) -> CuResult = begin_capture;
    fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz (stream: Stream, mode: c_uint) -> CuResult = begin_capture_v2;
    fn cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz (stream: Stream, graph: Graph, dependencies: *const GraphNode, edges: *const c_void, count: usize, mode: c_uint) -> CuResult = begin_capture_to_graph;
    fn cuStreamEndCapture | cuStreamEndCapture_ptsz (stream: Stream, graph: *mut Graph) -> CuResult = end_capture;
    /// The forms of CUDA 2.
    fn cuLaunch(f: Function) -> CuResult = legacy;
    fn cuLaunchGrid(f: Function, width: c_int, height: c_int) -> CuResult = legacy_grid;
    fn cuLaunchGridAsync(f: Function, width: c_int, height: c_int, stream: Stream) -> CuResult = legacy_grid_async;
}

/// Whether a launch may jump to the driver; for `cuLaunchKernel` and functions with the same first nine arguments.
#[inline]
fn passes(arguments: &Arguments, per_thread: bool) -> bool {
    // SAFETY: function, grid, block, shared memory, stream.
    let [f, gx, gy, gz, bx, by, bz, _, stream] =
        core::array::from_fn(|n| unsafe { arguments.nth(n) });
    // Written out by hand for every launch: one closure per argument might not be inlined.
    let grid = [gx as c_uint, gy as c_uint, gz as c_uint];
    let block = [bx as c_uint, by as c_uint, bz as c_uint];
    let (f, stream) = (ptr::with_exposed_provenance_mut(f as usize), stream as usize as Stream);
    compute::passes(Work::kernel(f, grid, block), stream, per_thread)
}

#[inline]
fn passes_ex(arguments: &Arguments, per_thread: bool) -> bool {
    // SAFETY: the configuration and the function.
    let [config, f] = core::array::from_fn(|n| unsafe { arguments.nth(n) });
    let config = ptr::with_exposed_provenance::<LaunchConfig>(config as usize);
    // SAFETY: null, or what the driver is about to read.
    let Some(config) = (unsafe { read(config) }) else { return false };
    let f = ptr::with_exposed_provenance_mut(f as usize);
    compute::passes(Work::kernel(f, config.grid, config.block), config.stream, per_thread)
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
fn kernel(
    call: Call<signature::cuLaunchKernel>,
    f: Function,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    stream: Stream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    call.process.launch(
        Launched::kernel(f, [gx, gy, gz], [bx, by, bz]),
        stream,
        call.per_thread,
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra) }
        },
    )
}

fn kernel_ex(
    call: Call<signature::cuLaunchKernelEx>,
    config: *const LaunchConfig,
    f: Function,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    // SAFETY: null, or what the driver is about to read.
    let known = unsafe { read(config) };
    let stream = known.map_or(ptr::null_mut(), |config| config.stream);
    let work =
        known.map_or(Work::UNKNOWN.into(), |config| Launched::kernel(f, config.grid, config.block));
    call.process.launch(work, stream, call.per_thread, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(config, f, params, extra) }
    })
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
fn cooperative(
    call: Call<signature::cuLaunchCooperativeKernel>,
    f: Function,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    stream: Stream,
    params: *mut *mut c_void,
) -> CuResult {
    call.process.launch(
        Launched::kernel(f, [gx, gy, gz], [bx, by, bz]),
        stream,
        call.per_thread,
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(f, gx, gy, gz, bx, by, bz, shared, stream, params) }
        },
    )
}

fn cooperative_multi(
    call: Call<signature::cuLaunchCooperativeKernelMultiDevice>,
    list: *mut LaunchParams,
    count: c_uint,
    flags: c_uint,
) -> CuResult {
    // SAFETY: null, or what the driver is about to read, if the list is not empty.
    let first = if count == 0 { None } else { unsafe { read(list) } };
    let stream = first.map_or(ptr::null_mut(), |first| first.stream);
    call.process.launch(Work::UNKNOWN, stream, call.per_thread, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(list, count, flags) }
    })
}

fn graph(call: Call<signature::cuGraphLaunch>, graph: GraphExec, stream: Stream) -> CuResult {
    call.process.launch(Work::graph(graph), stream, call.per_thread, || {
        // SAFETY: the program's own arguments.
        call.process.memory.launch_graph(graph, || unsafe { (call.original)(graph, stream) })
    })
}

fn stream_destroy(call: Call<signature::cuStreamDestroy>, stream: Stream) -> CuResult {
    compute::stream_ends(&call.process.guard.governors, call.process.gates(), stream);
    // SAFETY: the program's own arguments.
    unsafe { (call.original)(stream) }
}

fn begin_capture(call: Call<signature::cuStreamBeginCapture>, stream: Stream) -> CuResult {
    // SAFETY: the program's own arguments.
    compute::capture_begins(&call.process.guard.governors, || unsafe { (call.original)(stream) })
}

fn begin_capture_v2(
    call: Call<signature::cuStreamBeginCapture_v2>,
    stream: Stream,
    mode: c_uint,
) -> CuResult {
    // SAFETY: the program's own arguments.
    compute::capture_begins(&call.process.guard.governors, || unsafe {
        (call.original)(stream, mode)
    })
}

fn begin_capture_to_graph(
    call: Call<signature::cuStreamBeginCaptureToGraph>,
    stream: Stream,
    graph: Graph,
    dependencies: *const GraphNode,
    edges: *const c_void,
    count: usize,
    mode: c_uint,
) -> CuResult {
    compute::capture_begins(&call.process.guard.governors, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(stream, graph, dependencies, edges, count, mode) }
    })
}

fn end_capture(
    call: Call<signature::cuStreamEndCapture>,
    stream: Stream,
    graph: *mut Graph,
) -> CuResult {
    // SAFETY: the program's own arguments.
    compute::capture_ends(|| unsafe { (call.original)(stream, graph) })
}

fn legacy(call: Call<signature::cuLaunch>, f: Function) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process.launch(Launched::kernel(f, [1; 3], [0; 3]), ptr::null_mut(), false, || unsafe {
        (call.original)(f)
    })
}

fn legacy_grid(
    call: Call<signature::cuLaunchGrid>,
    f: Function,
    width: c_int,
    height: c_int,
) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process.launch(
        Launched::kernel(f, [width.cast_unsigned(), height.cast_unsigned(), 1], [0; 3]),
        ptr::null_mut(),
        false,
        || unsafe { (call.original)(f, width, height) },
    )
}

fn legacy_grid_async(
    call: Call<signature::cuLaunchGridAsync>,
    f: Function,
    width: c_int,
    height: c_int,
    stream: Stream,
) -> CuResult {
    call.process.launch(
        Launched::kernel(f, [width.cast_unsigned(), height.cast_unsigned(), 1], [0; 3]),
        stream,
        false,
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(f, width, height, stream) }
        },
    )
}

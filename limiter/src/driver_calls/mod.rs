//! The driver functions that the limiter itself calls, past its own hooks.
//!
//! Addresses are found when a library is patched. A function that a driver lacks answers
//! `CUDA_ERROR_NOT_FOUND`, so that callers need one kind of error handling only.

mod context;
pub(crate) mod library;
pub(crate) mod nvml;

pub(crate) use context::{current_context, never_disturb, undisturbing, within};

use core::ffi::{c_char, c_int, c_uint, c_void};
use driver::cuda::{
    AllocationHandle, AllocationProp, Context, CuResult, Device, DevicePtr, Event, Function, Graph,
    GraphExec, GraphNode, GreenContext, MemAllocNodeParams, MemoryPool, Stream, StreamOperation,
    Uuid,
};
use driver::nvml::{Memory, NvmlDevice, NvmlReturn, ProcessInfoV2};
use hook::Slot;

macro_rules! driver_calls {
    ($(#[doc = $doc:literal] $symbol:literal => fn $name:ident($($arg:ident: $ty:ty),*) -> $result:ident else $missing:ident;)*) => {
        mod slot {
            $(#[allow(non_upper_case_globals)] pub(super) static $name: hook::Slot = hook::Slot::new();)*
        }

        /// Symbol and slot of each.
        pub(crate) static CALLS: &[(&str, &Slot)] = &[$(($symbol, &slot::$name)),*];

        $(
            #[doc = $doc]
            ///
            /// Pointers are the driver's to check or, where it does not, the caller's to get right.
            pub(crate) fn $name($($arg: $ty),*) -> $result {
                let address = slot::$name.get();
                if address.is_null() {
                    return $result::$missing;
                }
                // SAFETY: the slot holds the address of the function of this name, or the way back
                // into it, and this is its signature.
                unsafe {
                    core::mem::transmute::<*const c_void, unsafe extern "C" fn($($ty),*) -> $result>(
                        address,
                    )($($arg),*)
                }
            }
        )*
    };
}

driver_calls! {
    /// Device of the current context.
    "cuCtxGetDevice" => fn ctx_get_device(device: *mut Device) -> CuResult else NOT_FOUND;
    /// The current context.
    "cuCtxGetCurrent" => fn ctx_get_current(context: *mut Context) -> CuResult else NOT_FOUND;
    /// Makes a context current.
    "cuCtxPushCurrent_v2" => fn ctx_push_current(context: Context) -> CuResult else NOT_FOUND;
    /// Undoes `ctx_push_current`.
    "cuCtxPopCurrent_v2" => fn ctx_pop_current(context: *mut Context) -> CuResult else NOT_FOUND;
    /// Number of devices that the program sees.
    "cuDeviceGetCount" => fn device_get_count(count: *mut c_int) -> CuResult else NOT_FOUND;
    /// A device's memory.
    "cuDeviceTotalMem_v2" => fn device_total_mem(bytes: *mut usize, device: Device) -> CuResult else NOT_FOUND;
    /// What the current context's device has left.
    "cuMemGetInfo_v2" => fn mem_get_info(free: *mut usize, total: *mut usize) -> CuResult else NOT_FOUND;
    /// A property of a device.
    "cuDeviceGetAttribute" => fn device_get_attribute(value: *mut c_int, attribute: c_uint, device: Device) -> CuResult else NOT_FOUND;
    /// A device's UUID.
    "cuDeviceGetUuid_v2" => fn device_get_uuid_v2(uuid: *mut Uuid, device: Device) -> CuResult else NOT_FOUND;
    /// A device's UUID, in drivers before 11.4.
    "cuDeviceGetUuid" => fn device_get_uuid(uuid: *mut Uuid, device: Device) -> CuResult else NOT_FOUND;
    /// Whether the primary context exists.
    "cuDevicePrimaryCtxGetState" => fn primary_ctx_get_state(device: Device, flags: *mut c_uint, active: *mut c_int) -> CuResult else NOT_FOUND;
    /// Takes a reference to the primary context.
    "cuDevicePrimaryCtxRetain" => fn primary_ctx_retain(context: *mut Context, device: Device) -> CuResult else NOT_FOUND;
    /// The context that stands for a green one.
    "cuCtxFromGreenCtx" => fn ctx_from_green(context: *mut Context, green: GreenContext) -> CuResult else NOT_FOUND;
    /// Destroys a green context.
    "cuGreenCtxDestroy" => fn green_ctx_destroy(context: GreenContext) -> CuResult else NOT_FOUND;
    /// Beginning and size of the allocation that an address is in.
    "cuMemGetAddressRange_v2" => fn mem_address_range(base: *mut DevicePtr, bytes: *mut usize, address: DevicePtr) -> CuResult else NOT_FOUND;
    /// What the driver knows about an address; zeros where it does not know it.
    "cuPointerGetAttributes" => fn pointer_attributes(count: c_uint, attributes: *mut c_uint, values: *mut *mut c_void, address: DevicePtr) -> CuResult else NOT_FOUND;
    /// What an allocation handle stands for.
    "cuMemGetAllocationPropertiesFromHandle" => fn allocation_properties(prop: *mut AllocationProp, handle: AllocationHandle) -> CuResult else NOT_FOUND;
    /// A function's name.
    "cuFuncGetName" => fn func_get_name(name: *mut *const c_char, function: Function) -> CuResult else NOT_FOUND;
    /// The name of a kernel of a library, which may be launched in a function's place.
    "cuKernelGetName" => fn kernel_get_name(name: *mut *const c_char, kernel: Function) -> CuResult else NOT_FOUND;
    /// Gives a reference to the primary context back.
    "cuDevicePrimaryCtxRelease_v2" => fn primary_ctx_release(device: Device) -> CuResult else NOT_FOUND;
    /// Destroys a context.
    "cuCtxDestroy_v2" => fn ctx_destroy(context: Context) -> CuResult else NOT_FOUND;
    /// Makes an event.
    "cuEventCreate" => fn event_create(event: *mut Event, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Records an event.
    "cuEventRecord" => fn event_record(event: Event, stream: Stream) -> CuResult else NOT_FOUND;
    /// Whether an event has happened.
    "cuEventQuery" => fn event_query(event: Event) -> CuResult else NOT_FOUND;
    /// Milliseconds between two events that have happened.
    "cuEventElapsedTime" => fn event_elapsed(ms: *mut f32, start: Event, end: Event) -> CuResult else NOT_FOUND;
    /// Whether all work of a stream is done.
    "cuStreamQuery" => fn stream_query(stream: Stream) -> CuResult else NOT_FOUND;
    /// Waits until all work of a stream is done.
    "cuStreamSynchronize" => fn stream_synchronize(stream: Stream) -> CuResult else NOT_FOUND;
    /// Has a stream wait for a word in memory.
    "cuStreamWaitValue32_v2" => fn stream_wait_value(stream: Stream, at: DevicePtr, value: u32, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Has a stream write a word in memory.
    "cuStreamWriteValue32_v2" => fn stream_write_value(stream: Stream, at: DevicePtr, value: u32, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Has a stream do several of these, one after the other: all, or none.
    "cuStreamBatchMemOp_v2" => fn stream_operations(stream: Stream, count: c_uint, operations: *mut StreamOperation, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Makes host memory visible to the device.
    "cuMemHostRegister_v2" => fn mem_host_register(memory: *mut c_void, bytes: usize, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Where the device sees host memory.
    "cuMemHostGetDevicePointer_v2" => fn mem_host_device_pointer(pointer: *mut DevicePtr, memory: *mut c_void, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Gives an event back.
    "cuEventDestroy_v2" => fn event_destroy(event: Event) -> CuResult else NOT_FOUND;
    /// A stream's context.
    "cuStreamGetCtx" => fn stream_get_ctx(stream: Stream, context: *mut Context) -> CuResult else NOT_FOUND;
    /// With which flags a stream was made.
    "cuStreamGetFlags" => fn stream_get_flags(stream: Stream, flags: *mut c_uint) -> CuResult else NOT_FOUND;
    /// Whether a stream is being captured.
    "cuStreamIsCapturing" => fn stream_is_capturing(stream: Stream, status: *mut c_uint) -> CuResult else NOT_FOUND;
    /// Changes the calling thread's rules about captures in other threads.
    "cuThreadExchangeStreamCaptureMode" => fn exchange_capture_mode(mode: *mut c_uint) -> CuResult else NOT_FOUND;
    /// The pool that a device's stream-ordered allocations come from.
    "cuDeviceGetMemPool" => fn device_get_mem_pool(pool: *mut MemoryPool, device: Device) -> CuResult else NOT_FOUND;
    /// A device's first pool.
    "cuDeviceGetDefaultMemPool" => fn device_get_default_mem_pool(pool: *mut MemoryPool, device: Device) -> CuResult else NOT_FOUND;
    /// A pool's figures.
    "cuMemPoolGetAttribute" => fn pool_get_attribute(pool: MemoryPool, attribute: c_uint, value: *mut c_void) -> CuResult else NOT_FOUND;
    /// Has a pool give back what it does not use.
    "cuMemPoolTrimTo" => fn pool_trim_to(pool: MemoryPool, keep: usize) -> CuResult else NOT_FOUND;
    /// A graph's nodes.
    "cuGraphGetNodes" => fn graph_nodes(graph: Graph, nodes: *mut GraphNode, count: *mut usize) -> CuResult else NOT_FOUND;
    /// What a node does.
    "cuGraphNodeGetType" => fn graph_node_type(node: GraphNode, kind: *mut c_uint) -> CuResult else NOT_FOUND;
    /// The graph that a node stands for.
    "cuGraphChildGraphNodeGetGraph" => fn graph_child(node: GraphNode, graph: *mut Graph) -> CuResult else NOT_FOUND;
    /// What an allocation node allocates.
    "cuGraphMemAllocNodeGetParams" => fn graph_alloc_params(node: GraphNode, params: *mut MemAllocNodeParams) -> CuResult else NOT_FOUND;
    /// Destroys an executable graph.
    "cuGraphExecDestroy" => fn graph_exec_destroy(exec: GraphExec) -> CuResult else NOT_FOUND;
    /// Figures of a device's pool for graphs.
    "cuDeviceGetGraphMemAttribute" => fn graph_mem_attribute(device: Device, attribute: c_uint, value: *mut c_void) -> CuResult else NOT_FOUND;
    /// Has a device's pool for graphs give back what it does not use.
    "cuDeviceGraphMemTrim" => fn graph_mem_trim(device: Device) -> CuResult else NOT_FOUND;
    /// Allocates managed memory.
    "cuMemAllocManaged" => fn mem_alloc_managed(pointer: *mut DevicePtr, bytes: usize, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Says where managed memory is to be.
    "cuMemAdvise" => fn mem_advise(at: DevicePtr, bytes: usize, advice: c_uint, device: Device) -> CuResult else NOT_FOUND;
    /// Frees.
    "cuMemFree_v2" => fn mem_free(pointer: DevicePtr) -> CuResult else NOT_FOUND;
    /// Frees in the order of a stream.
    "cuMemFreeAsync" => fn mem_free_async(pointer: DevicePtr, stream: Stream) -> CuResult else NOT_FOUND;
    /// Starts NVML.
    "nvmlInit_v2" => fn nvml_init() -> NvmlReturn else NOT_FOUND;
    /// How many devices the node shows.
    "nvmlDeviceGetCount_v2" => fn nvml_count(count: *mut c_uint) -> NvmlReturn else NOT_FOUND;
    /// A device by UUID.
    "nvmlDeviceGetHandleByUUID" => fn nvml_by_uuid(uuid: *const c_char, device: *mut NvmlDevice) -> NvmlReturn else NOT_FOUND;
    /// A device by its number.
    "nvmlDeviceGetHandleByIndex_v2" => fn nvml_by_index(index: c_uint, device: *mut NvmlDevice) -> NvmlReturn else NOT_FOUND;
    /// A device's UUID.
    "nvmlDeviceGetUUID" => fn nvml_uuid(device: NvmlDevice, uuid: *mut c_char, length: c_uint) -> NvmlReturn else NOT_FOUND;
    /// A device's index on the host.
    "nvmlDeviceGetIndex" => fn nvml_index(device: NvmlDevice, index: *mut c_uint) -> NvmlReturn else NOT_FOUND;
    /// A device's memory.
    "nvmlDeviceGetMemoryInfo" => fn nvml_memory(device: NvmlDevice, memory: *mut Memory) -> NvmlReturn else NOT_FOUND;
    /// The processes that have a context on a device.
    "nvmlDeviceGetComputeRunningProcesses_v2" => fn nvml_processes_v2(device: NvmlDevice, count: *mut c_uint, list: *mut ProcessInfoV2) -> NvmlReturn else NOT_FOUND;
    /// The same, in drivers from 510 on.
    "nvmlDeviceGetComputeRunningProcesses_v3" => fn nvml_processes(device: NvmlDevice, count: *mut c_uint, list: *mut ProcessInfoV2) -> NvmlReturn else NOT_FOUND;
}

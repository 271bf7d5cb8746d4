//! The driver functions that the limiter itself calls, bypassing its own hooks.
//!
//! Addresses are resolved when a library is patched. A function that the driver lacks returns `CUDA_ERROR_NOT_FOUND`,
//! so callers need only one kind of error handling.

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

        /// Symbol and slot of each function.
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
    /// The current context's device.
    "cuCtxGetDevice" => fn ctx_get_device(device: *mut Device) -> CuResult else NOT_FOUND;
    /// The current context.
    "cuCtxGetCurrent" => fn ctx_get_current(context: *mut Context) -> CuResult else NOT_FOUND;
    /// Makes a context current.
    "cuCtxPushCurrent_v2" => fn ctx_push_current(context: Context) -> CuResult else NOT_FOUND;
    /// Undoes `ctx_push_current`.
    "cuCtxPopCurrent_v2" => fn ctx_pop_current(context: *mut Context) -> CuResult else NOT_FOUND;
    /// Number of devices that the program sees.
    "cuDeviceGetCount" => fn device_get_count(count: *mut c_int) -> CuResult else NOT_FOUND;
    /// Total memory of a device, in bytes.
    "cuDeviceTotalMem_v2" => fn device_total_mem(bytes: *mut usize, device: Device) -> CuResult else NOT_FOUND;
    /// Free and total memory of the current context's device, in bytes.
    "cuMemGetInfo_v2" => fn mem_get_info(free: *mut usize, total: *mut usize) -> CuResult else NOT_FOUND;
    /// One attribute of a device.
    "cuDeviceGetAttribute" => fn device_get_attribute(value: *mut c_int, attribute: c_uint, device: Device) -> CuResult else NOT_FOUND;
    /// A device's UUID.
    "cuDeviceGetUuid_v2" => fn device_get_uuid_v2(uuid: *mut Uuid, device: Device) -> CuResult else NOT_FOUND;
    /// A device's UUID, in drivers before 11.4.
    "cuDeviceGetUuid" => fn device_get_uuid(uuid: *mut Uuid, device: Device) -> CuResult else NOT_FOUND;
    /// Whether the primary context exists.
    "cuDevicePrimaryCtxGetState" => fn primary_ctx_get_state(device: Device, flags: *mut c_uint, active: *mut c_int) -> CuResult else NOT_FOUND;
    /// Retains the primary context.
    "cuDevicePrimaryCtxRetain" => fn primary_ctx_retain(context: *mut Context, device: Device) -> CuResult else NOT_FOUND;
    /// The context of a green context.
    "cuCtxFromGreenCtx" => fn ctx_from_green(context: *mut Context, green: GreenContext) -> CuResult else NOT_FOUND;
    /// Destroys a green context.
    "cuGreenCtxDestroy" => fn green_ctx_destroy(context: GreenContext) -> CuResult else NOT_FOUND;
    /// Start and size of the allocation that contains an address.
    "cuMemGetAddressRange_v2" => fn mem_address_range(base: *mut DevicePtr, bytes: *mut usize, address: DevicePtr) -> CuResult else NOT_FOUND;
    /// Attributes of an address; zeros if the driver does not know it.
    "cuPointerGetAttributes" => fn pointer_attributes(count: c_uint, attributes: *mut c_uint, values: *mut *mut c_void, address: DevicePtr) -> CuResult else NOT_FOUND;
    /// Properties of an allocation handle.
    "cuMemGetAllocationPropertiesFromHandle" => fn allocation_properties(prop: *mut AllocationProp, handle: AllocationHandle) -> CuResult else NOT_FOUND;
    /// A function's name.
    "cuFuncGetName" => fn func_get_name(name: *mut *const c_char, function: Function) -> CuResult else NOT_FOUND;
    /// The name of a library's kernel, which may be launched in place of a function.
    "cuKernelGetName" => fn kernel_get_name(name: *mut *const c_char, kernel: Function) -> CuResult else NOT_FOUND;
    /// Releases a reference to the primary context.
    "cuDevicePrimaryCtxRelease_v2" => fn primary_ctx_release(device: Device) -> CuResult else NOT_FOUND;
    /// Destroys a context.
    "cuCtxDestroy_v2" => fn ctx_destroy(context: Context) -> CuResult else NOT_FOUND;
    /// Creates an event.
    "cuEventCreate" => fn event_create(event: *mut Event, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Records an event.
    "cuEventRecord" => fn event_record(event: Event, stream: Stream) -> CuResult else NOT_FOUND;
    /// Whether an event has completed.
    "cuEventQuery" => fn event_query(event: Event) -> CuResult else NOT_FOUND;
    /// Milliseconds between two completed events.
    "cuEventElapsedTime" => fn event_elapsed(ms: *mut f32, start: Event, end: Event) -> CuResult else NOT_FOUND;
    /// Whether all work of a stream has completed.
    "cuStreamQuery" => fn stream_query(stream: Stream) -> CuResult else NOT_FOUND;
    /// Waits until all work of a stream has completed.
    "cuStreamSynchronize" => fn stream_synchronize(stream: Stream) -> CuResult else NOT_FOUND;
    /// Makes a stream wait for a word in memory.
    "cuStreamWaitValue32_v2" => fn stream_wait_value(stream: Stream, at: DevicePtr, value: u32, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Makes a stream write a word in memory.
    "cuStreamWriteValue32_v2" => fn stream_write_value(stream: Stream, at: DevicePtr, value: u32, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Queues several memory operations in a stream, in order: all or none.
    "cuStreamBatchMemOp_v2" => fn stream_operations(stream: Stream, count: c_uint, operations: *mut StreamOperation, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Registers host memory with the driver.
    "cuMemHostRegister_v2" => fn mem_host_register(memory: *mut c_void, bytes: usize, flags: c_uint) -> CuResult else NOT_FOUND;
    /// The device address of registered host memory.
    "cuMemHostGetDevicePointer_v2" => fn mem_host_device_pointer(pointer: *mut DevicePtr, memory: *mut c_void, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Destroys an event.
    "cuEventDestroy_v2" => fn event_destroy(event: Event) -> CuResult else NOT_FOUND;
    /// A stream's context.
    "cuStreamGetCtx" => fn stream_get_ctx(stream: Stream, context: *mut Context) -> CuResult else NOT_FOUND;
    /// The flags with which a stream was created.
    "cuStreamGetFlags" => fn stream_get_flags(stream: Stream, flags: *mut c_uint) -> CuResult else NOT_FOUND;
    /// Whether a stream is being captured.
    "cuStreamIsCapturing" => fn stream_is_capturing(stream: Stream, status: *mut c_uint) -> CuResult else NOT_FOUND;
    /// Changes how captures restrict the calling thread.
    "cuThreadExchangeStreamCaptureMode" => fn exchange_capture_mode(mode: *mut c_uint) -> CuResult else NOT_FOUND;
    /// A device's current pool for stream-ordered allocations.
    "cuDeviceGetMemPool" => fn device_get_mem_pool(pool: *mut MemoryPool, device: Device) -> CuResult else NOT_FOUND;
    /// A device's default pool.
    "cuDeviceGetDefaultMemPool" => fn device_get_default_mem_pool(pool: *mut MemoryPool, device: Device) -> CuResult else NOT_FOUND;
    /// One attribute of a pool.
    "cuMemPoolGetAttribute" => fn pool_get_attribute(pool: MemoryPool, attribute: c_uint, value: *mut c_void) -> CuResult else NOT_FOUND;
    /// Makes a pool release unused memory, down to `keep` bytes.
    "cuMemPoolTrimTo" => fn pool_trim_to(pool: MemoryPool, keep: usize) -> CuResult else NOT_FOUND;
    /// A graph's nodes.
    "cuGraphGetNodes" => fn graph_nodes(graph: Graph, nodes: *mut GraphNode, count: *mut usize) -> CuResult else NOT_FOUND;
    /// A node's type.
    "cuGraphNodeGetType" => fn graph_node_type(node: GraphNode, kind: *mut c_uint) -> CuResult else NOT_FOUND;
    /// The graph of a child-graph node.
    "cuGraphChildGraphNodeGetGraph" => fn graph_child(node: GraphNode, graph: *mut Graph) -> CuResult else NOT_FOUND;
    /// The parameters of an allocation node.
    "cuGraphMemAllocNodeGetParams" => fn graph_alloc_params(node: GraphNode, params: *mut MemAllocNodeParams) -> CuResult else NOT_FOUND;
    /// Destroys an executable graph.
    "cuGraphExecDestroy" => fn graph_exec_destroy(exec: GraphExec) -> CuResult else NOT_FOUND;
    /// One attribute of a device's graph pool.
    "cuDeviceGetGraphMemAttribute" => fn graph_mem_attribute(device: Device, attribute: c_uint, value: *mut c_void) -> CuResult else NOT_FOUND;
    /// Makes a device's graph pool release unused memory.
    "cuDeviceGraphMemTrim" => fn graph_mem_trim(device: Device) -> CuResult else NOT_FOUND;
    /// Allocates managed memory.
    "cuMemAllocManaged" => fn mem_alloc_managed(pointer: *mut DevicePtr, bytes: usize, flags: c_uint) -> CuResult else NOT_FOUND;
    /// Advises the driver on the placement of managed memory.
    "cuMemAdvise" => fn mem_advise(at: DevicePtr, bytes: usize, advice: c_uint, device: Device) -> CuResult else NOT_FOUND;
    /// Frees memory.
    "cuMemFree_v2" => fn mem_free(pointer: DevicePtr) -> CuResult else NOT_FOUND;
    /// Frees memory in stream order.
    "cuMemFreeAsync" => fn mem_free_async(pointer: DevicePtr, stream: Stream) -> CuResult else NOT_FOUND;
    /// Initialises NVML.
    "nvmlInit_v2" => fn nvml_init() -> NvmlReturn else NOT_FOUND;
    /// Number of devices of the node.
    "nvmlDeviceGetCount_v2" => fn nvml_count(count: *mut c_uint) -> NvmlReturn else NOT_FOUND;
    /// A device's handle by UUID.
    "nvmlDeviceGetHandleByUUID" => fn nvml_by_uuid(uuid: *const c_char, device: *mut NvmlDevice) -> NvmlReturn else NOT_FOUND;
    /// A device's handle by index.
    "nvmlDeviceGetHandleByIndex_v2" => fn nvml_by_index(index: c_uint, device: *mut NvmlDevice) -> NvmlReturn else NOT_FOUND;
    /// A device's UUID.
    "nvmlDeviceGetUUID" => fn nvml_uuid(device: NvmlDevice, uuid: *mut c_char, length: c_uint) -> NvmlReturn else NOT_FOUND;
    /// A device's index on the host.
    "nvmlDeviceGetIndex" => fn nvml_index(device: NvmlDevice, index: *mut c_uint) -> NvmlReturn else NOT_FOUND;
    /// A device's memory, in bytes.
    "nvmlDeviceGetMemoryInfo" => fn nvml_memory(device: NvmlDevice, memory: *mut Memory) -> NvmlReturn else NOT_FOUND;
    /// The processes that have a context on a device.
    "nvmlDeviceGetComputeRunningProcesses_v2" => fn nvml_processes_v2(device: NvmlDevice, count: *mut c_uint, list: *mut ProcessInfoV2) -> NvmlReturn else NOT_FOUND;
    /// The processes that have a context on a device, in drivers from 510 on.
    "nvmlDeviceGetComputeRunningProcesses_v3" => fn nvml_processes(device: NvmlDevice, count: *mut c_uint, list: *mut ProcessInfoV2) -> NvmlReturn else NOT_FOUND;
}

//! The driver's functions, found like a statically linked CUDA runtime finds them: `dlopen` of `libcuda.so.1`, `dlsym`
//! of `cuGetProcAddress_v2`, and every other function through that.

#![allow(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "the driver's own names and arguments"
)]

use core::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};

use driver::copy::{Copy2d, Copy3d};
use driver::cuda::{
    AllocationHandle, AllocationProp, Array, Array3dDescriptor, ArrayDescriptor, Context, CuResult,
    Device, DevicePtr, Event, Function, Graph, GraphExec, GraphNode, LaunchConfig,
    MemAllocNodeParams, MemoryPool, MipmappedArray, Module, PROC_ADDRESS_PER_THREAD_STREAM,
    PoolProps, Stream, Uuid,
};

use super::DriverError;

/// Requested CUDA version of the functions: 12.0.
const CUDA_VERSION: c_int = 12_000;

type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint) -> CuResult;

/// Declares the table and, for each function, an unsafe method of the same name that converts the driver's result to a
/// `Result`.
macro_rules! functions {
    ($($name:ident($($arg:ident: $kind:ty),*);)*) => {
        /// The functions that the driver has, with their types in `cuda.h`.
        pub(super) struct Table {
            $($name: Option<unsafe extern "C" fn($($kind),*) -> CuResult>,)*
        }

        impl Table {
            fn fill(find: impl Fn(*const c_char) -> *mut c_void) -> Self {
                Self {
                    $($name: {
                        let address = find(concat!(stringify!($name), "\0").as_ptr().cast());
                        // SAFETY: null becomes None; anything else is the driver's function of
                        // this name, whose C type at this CUDA version is the field's.
                        unsafe {
                            core::mem::transmute::<
                                *mut c_void,
                                Option<unsafe extern "C" fn($($kind),*) -> CuResult>,
                            >(address)
                        }
                    },)*
                }
            }

            $(
                /// Calls the driver's function of this name.
                ///
                /// # Safety
                /// The arguments must be what the CUDA driver API requires for this function.
                pub(super) unsafe fn $name(&self, $($arg: $kind),*) -> Result<(), DriverError> {
                    let Some(function) = self.$name else {
                        return Err(DriverError::Missing(stringify!($name)));
                    };
                    // SAFETY: passed on to the caller.
                    match unsafe { function($($arg),*) } {
                        CuResult::SUCCESS => Ok(()),
                        result => Err(DriverError::Call { call: stringify!($name), result }),
                    }
                }
            )*
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut Device, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, length: c_int, device: Device);
    cuDeviceGetUuid(uuid: *mut Uuid, device: Device);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: Device);
    cuDevicePrimaryCtxRetain(context: *mut Context, device: Device);
    cuDevicePrimaryCtxRelease(device: Device);
    cuCtxSetCurrent(context: Context);

    cuModuleLoadData(module: *mut Module, image: *const c_void);
    cuModuleUnload(module: Module);
    cuModuleGetFunction(function: *mut Function, module: Module, name: *const c_char);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: Function, threads: c_int, shared_mem: usize
    );
    cuLaunchKernel(
        function: Function, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_mem: c_uint, stream: Stream,
        params: *mut *mut c_void, extra: *mut *mut c_void
    );
    cuLaunchKernelEx(
        config: *const LaunchConfig, function: Function,
        params: *mut *mut c_void, extra: *mut *mut c_void
    );
    cuLaunchCooperativeKernel(
        function: Function, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_mem: c_uint, stream: Stream,
        params: *mut *mut c_void
    );

    cuStreamCreate(stream: *mut Stream, flags: c_uint);
    cuStreamDestroy(stream: Stream);
    cuStreamSynchronize(stream: Stream);
    cuStreamBeginCapture(stream: Stream, mode: c_uint);
    cuStreamEndCapture(stream: Stream, graph: *mut Graph);
    cuEventCreate(event: *mut Event, flags: c_uint);
    cuEventDestroy(event: Event);
    cuEventRecord(event: Event, stream: Stream);
    cuStreamWaitEvent(stream: Stream, event: Event, flags: c_uint);
    cuEventQuery(event: Event);
    cuEventSynchronize(event: Event);
    cuEventElapsedTime(milliseconds: *mut f32, start: Event, end: Event);

    cuGraphCreate(graph: *mut Graph, flags: c_uint);
    cuGraphDestroy(graph: Graph);
    cuGraphAddMemAllocNode(
        node: *mut GraphNode, graph: Graph, dependencies: *const GraphNode, count: usize,
        params: *mut MemAllocNodeParams
    );
    cuGraphInstantiateWithFlags(exec: *mut GraphExec, graph: Graph, flags: u64);
    cuGraphLaunch(exec: GraphExec, stream: Stream);
    cuGraphExecDestroy(exec: GraphExec);

    cuMemGetInfo(free: *mut usize, total: *mut usize);
    cuMemAlloc(address: *mut DevicePtr, bytes: usize);
    cuMemAllocPitch(
        address: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: c_uint
    );
    cuMemAllocManaged(address: *mut DevicePtr, bytes: usize, flags: c_uint);
    cuMemFree(address: DevicePtr);
    cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemFreeHost(address: *mut c_void);
    cuMemHostRegister(address: *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostGetDevicePointer(to: *mut DevicePtr, address: *mut c_void, flags: c_uint);
    cuMemcpyAsync(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream);
    cuMemcpyHtoD(to: DevicePtr, from: *const c_void, bytes: usize);
    cuMemcpyHtoDAsync(to: DevicePtr, from: *const c_void, bytes: usize, stream: Stream);
    cuMemcpyDtoH(to: *mut c_void, from: DevicePtr, bytes: usize);
    cuMemcpyDtoHAsync(to: *mut c_void, from: DevicePtr, bytes: usize, stream: Stream);
    cuMemcpyDtoDAsync(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream);
    cuMemcpy2DAsync(copy: *const Copy2d, stream: Stream);
    cuMemcpy3DAsync(copy: *const Copy3d, stream: Stream);
    cuMemsetD8Async(to: DevicePtr, value: c_uchar, count: usize, stream: Stream);
    cuMemsetD32(to: DevicePtr, value: c_uint, count: usize);
    cuMemAllocAsync(address: *mut DevicePtr, bytes: usize, stream: Stream);
    cuMemFreeAsync(address: DevicePtr, stream: Stream);
    cuMemPoolCreate(pool: *mut MemoryPool, props: *const PoolProps);
    cuMemPoolDestroy(pool: MemoryPool);
    cuMemAllocFromPoolAsync(
        address: *mut DevicePtr, bytes: usize, pool: MemoryPool, stream: Stream
    );
    cuMemGetAllocationGranularity(
        bytes: *mut usize, props: *const AllocationProp, option: c_uint
    );
    cuMemCreate(
        handle: *mut AllocationHandle, bytes: usize, props: *const AllocationProp, flags: u64
    );
    cuMemRelease(handle: AllocationHandle);
    cuArrayCreate(array: *mut Array, descriptor: *const ArrayDescriptor);
    cuArray3DCreate(array: *mut Array, descriptor: *const Array3dDescriptor);
    cuArrayDestroy(array: Array);
    cuMipmappedArrayCreate(
        array: *mut MipmappedArray, descriptor: *const Array3dDescriptor, levels: c_uint
    );
    cuMipmappedArrayDestroy(array: MipmappedArray);
}

impl Table {
    /// Loads the driver, which stays loaded until the process ends.
    ///
    /// # Errors
    /// [`DriverError::Load`] without a usable `libcuda.so.1`.
    pub(super) fn load(per_thread_streams: bool) -> Result<Self, DriverError> {
        // SAFETY: loading the driver runs its constructors, as in every CUDA program.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err(load_error());
        }
        // SAFETY: the handle came from dlopen and is never closed.
        let find = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
        let newest = find(c"cuGetProcAddress_v2");
        // CUDA 11 drivers only have the first version.
        let symbol = if newest.is_null() { find(c"cuGetProcAddress") } else { newest };
        // SAFETY: null becomes None; else it is the function of this name with its type in cuda.h. The first form has
        // no last argument, which a caller may pass all the same in this calling convention.
        let look_up =
            unsafe { core::mem::transmute::<*mut c_void, Option<GetProcAddress>>(symbol) };
        let look_up = look_up.ok_or_else(load_error)?;
        let flags = if per_thread_streams { PROC_ADDRESS_PER_THREAD_STREAM } else { 0 };
        Ok(Self::fill(|name| {
            let mut address = core::ptr::null_mut();
            let mut status = 0;
            // SAFETY: `name` is NUL-terminated, both results are written to live variables.
            let result = unsafe { look_up(name, &mut address, CUDA_VERSION, flags, &mut status) };
            if result.is_ok() { address } else { core::ptr::null_mut() }
        }))
    }
}

/// The dynamic loader's last error.
fn load_error() -> DriverError {
    // SAFETY: dlerror gives null or a string that stays until this thread's next dl call.
    let text = unsafe { libc::dlerror() };
    let text = if text.is_null() {
        "no reason given".into()
    } else {
        // SAFETY: not null, NUL-terminated, copied here.
        unsafe { CStr::from_ptr(text) }.to_string_lossy()
    };
    let text = text.strip_prefix("libcuda.so.1: ").unwrap_or(&text);
    DriverError::Load(text.to_owned())
}

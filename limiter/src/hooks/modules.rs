//! Hooks of calls after which the driver's own memory may have changed: modules, libraries, functions, context limits,
//! streams. NVML is queried afterwards.

use super::pointers::written;
use super::{Call, image};
use crate::compute;
use crate::memory::{Loaded, Much};
use crate::process::Process;
use core::ffi::{c_char, c_int, c_uint, c_void};
use driver::cuda::{CuResult, DevicePtr, Function, Module, Stream};

macros::hooks! {
    /// CUDA driver API, Module / Library / Context / Stream Management: headroom is kept for the code of
    /// images; what the driver takes for code, variables, stacks and heaps is read from NVML afterwards.
    library Cuda;

    fn cuModuleLoad(module: *mut Module, file: *const c_char) -> CuResult = load;
    fn cuModuleLoadData | cuModuleLoadFatBinary (module: *mut Module, image: *const c_void) -> CuResult = load_data;
    fn cuModuleLoadDataEx(module: *mut Module, image: *const c_void, count: c_uint, options: *mut c_uint, values: *mut *mut c_void) -> CuResult = load_data_ex;
    fn cuModuleUnload | cuLibraryUnload (module: Module) -> CuResult = unload;
    fn cuModuleGetFunction(function: *mut Function, module: Module, name: *const c_char) -> CuResult = get_function;
    fn cuFuncLoad(function: Function) -> CuResult = load_function;
    fn cuKernelGetFunction(function: *mut Function, kernel: Function) -> CuResult = kernel_function;
    fn cuLibraryLoadData(library: *mut Module, image: *const c_void, options: *mut c_uint, values: *mut *mut c_void, count: c_uint, library_options: *mut c_uint, library_values: *mut *mut c_void, library_count: c_uint) -> CuResult = load_library(image::bytes);
    fn cuLibraryLoadFromFile(library: *mut Module, file: *const c_char, options: *mut c_uint, values: *mut *mut c_void, count: c_uint, library_options: *mut c_uint, library_values: *mut *mut c_void, library_count: c_uint) -> CuResult = load_library(image::file_bytes);
    fn cuLibraryGetModule(module: *mut Module, library: Module) -> CuResult = library_module;
    fn cuLibraryGetGlobal | cuLibraryGetManaged (pointer: *mut DevicePtr, bytes: *mut usize, library: Module, name: *const c_char) -> CuResult = library_variable;
    fn cuLibraryGetUnifiedFunction(function: *mut *mut c_void, library: Module, name: *const c_char) -> CuResult = library_function;
    fn cuCtxSetLimit(limit: c_uint, value: usize) -> CuResult = set_limit;
    fn cuStreamCreate(stream: *mut Stream, flags: c_uint) -> CuResult = stream_create;
    fn cuStreamCreateWithPriority(stream: *mut Stream, flags: c_uint, priority: c_int) -> CuResult = stream_create_with_priority;
}

/// `cuLibraryLoadData` or `cuLibraryLoadFromFile`.
type LoadLibrary<T> = unsafe extern "C" fn(
    *mut Module,
    *const T,
    *mut c_uint,
    *mut *mut c_void,
    c_uint,
    *mut c_uint,
    *mut *mut c_void,
    c_uint,
) -> CuResult;

/// Runs a call after which the reconciler should check.
fn looked_after(process: &Process, call: impl FnOnce() -> CuResult) -> CuResult {
    let result = call();
    if result.is_ok() {
        process.memory.ring();
    }
    result
}

/// Runs a call that may place code on the device.
fn placing(process: &'static Process, call: impl FnOnce() -> CuResult) -> CuResult {
    let result = compute::load(process.gates(), call);
    if result.is_ok() {
        process.driver_may_have_taken(Much::Perhaps);
    }
    result
}

/// Runs a call that gives the driver an image.
fn loading(
    process: &'static Process,
    bytes: u64,
    loaded_as: Loaded,
    to: *mut Module,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    // SAFETY: read after success, when the driver has written there.
    let handle = || unsafe { written(to) } as usize;
    placing(process, || match process.current_memory().limited() {
        Some(device) if bytes > 0 => process.memory.load(device, (bytes, loaded_as), call, handle),
        _ => call(),
    })
}

fn load(call: Call<signature::cuModuleLoad>, module: *mut Module, file: *const c_char) -> CuResult {
    // SAFETY: the program's own arguments, here and below.
    let bytes = unsafe { image::file_bytes(file) };
    // SAFETY: as above.
    loading(call.process, bytes, Loaded::Module, module, || unsafe {
        (call.original)(module, file)
    })
}

fn load_data(
    call: Call<signature::cuModuleLoadData>,
    module: *mut Module,
    image: *const c_void,
) -> CuResult {
    // SAFETY: the program's own arguments, here and below.
    let bytes = unsafe { image::bytes(image) };
    // SAFETY: as above.
    loading(call.process, bytes, Loaded::Module, module, || unsafe {
        (call.original)(module, image)
    })
}

fn load_data_ex(
    call: Call<signature::cuModuleLoadDataEx>,
    module: *mut Module,
    image: *const c_void,
    count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the program's own arguments, here and below.
    let bytes = unsafe { image::bytes(image) };
    // SAFETY: as above.
    let original = || unsafe { (call.original)(module, image, count, options, values) };
    loading(call.process, bytes, Loaded::Module, module, original)
}

fn unload(call: Call<signature::cuModuleUnload>, module: Module) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(module) };
    looked_after(call.process, || call.process.memory.images().unload(module as usize, original))
}

fn get_function(
    call: Call<signature::cuModuleGetFunction>,
    function: *mut Function,
    module: Module,
    name: *const c_char,
) -> CuResult {
    // SAFETY: the program's own arguments.
    placing(call.process, || unsafe { (call.original)(function, module, name) })
}

fn load_function(call: Call<signature::cuFuncLoad>, function: Function) -> CuResult {
    // SAFETY: the program's own arguments.
    placing(call.process, || unsafe { (call.original)(function) })
}

fn kernel_function(
    call: Call<signature::cuKernelGetFunction>,
    function: *mut Function,
    kernel: Function,
) -> CuResult {
    // SAFETY: the program's own arguments.
    placing(call.process, || unsafe { (call.original)(function, kernel) })
}

/// `bytes` returns the size of the code image at `from`.
#[allow(clippy::too_many_arguments, reason = "the driver's own signature")]
fn load_library<T>(
    call: Call<LoadLibrary<T>>,
    bytes: unsafe fn(*const T) -> u64,
    library: *mut Module,
    from: *const T,
    options: *mut c_uint,
    values: *mut *mut c_void,
    count: c_uint,
    library_options: *mut c_uint,
    library_values: *mut *mut c_void,
    library_count: c_uint,
) -> CuResult {
    // SAFETY: the program's own arguments, here and below.
    let bytes = unsafe { bytes(from) };
    loading(call.process, bytes, Loaded::Library, library, || {
        // SAFETY: as above.
        unsafe {
            (call.original)(
                library,
                from,
                options,
                values,
                count,
                library_options,
                library_values,
                library_count,
            )
        }
    })
}

fn library_module(
    call: Call<signature::cuLibraryGetModule>,
    module: *mut Module,
    library: Module,
) -> CuResult {
    // SAFETY: the program's own arguments.
    placing(call.process, || unsafe { (call.original)(module, library) })
}

fn library_variable(
    call: Call<signature::cuLibraryGetGlobal>,
    pointer: *mut DevicePtr,
    bytes: *mut usize,
    library: Module,
    name: *const c_char,
) -> CuResult {
    // SAFETY: the program's own arguments.
    placing(call.process, || unsafe { (call.original)(pointer, bytes, library, name) })
}

fn library_function(
    call: Call<signature::cuLibraryGetUnifiedFunction>,
    function: *mut *mut c_void,
    library: Module,
    name: *const c_char,
) -> CuResult {
    // SAFETY: the program's own arguments.
    placing(call.process, || unsafe { (call.original)(function, library, name) })
}

fn set_limit(call: Call<signature::cuCtxSetLimit>, limit: c_uint, value: usize) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(limit, value) };
    if result.is_ok() {
        call.process.driver_may_have_taken(Much::Surely);
    }
    result
}

fn stream_create(
    call: Call<signature::cuStreamCreate>,
    stream: *mut Stream,
    flags: c_uint,
) -> CuResult {
    // SAFETY: the program's own arguments.
    placing(call.process, || unsafe { (call.original)(stream, flags) })
}

fn stream_create_with_priority(
    call: Call<signature::cuStreamCreateWithPriority>,
    stream: *mut Stream,
    flags: c_uint,
    priority: c_int,
) -> CuResult {
    // SAFETY: the program's own arguments.
    placing(call.process, || unsafe { (call.original)(stream, flags, priority) })
}

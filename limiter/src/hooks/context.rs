//! Hooks of initialisation, contexts, primary contexts and green contexts.

use super::Call;
use super::pointers::written;
use crate::device::Device as LimitedDevice;
use crate::process::Process;
use crate::verdict::Verdict;
use crate::{compute, driver_calls, unpatched};
use core::cell::Cell;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use driver::cuda::{Context, CuResult, Device, GreenContext};

macros::hooks! {
    /// CUDA driver API, Initialization / Primary Context Management / Context Management.
    library Cuda;
    changes memory;

    /// Fails in a process whose limits cannot be enforced.
    fn cuInit(flags: c_uint) -> CuResult = init;

    /// A context takes device memory.
    fn cuDevicePrimaryCtxRetain(context: *mut Context, device: Device) -> CuResult = primary_retain;
    fn cuDevicePrimaryCtxRelease | cuDevicePrimaryCtxRelease_v2 (device: Device) -> CuResult = primary_release;
    fn cuDevicePrimaryCtxReset | cuDevicePrimaryCtxReset_v2 (device: Device) -> CuResult = primary_reset;
    fn cuCtxCreate | cuCtxCreate_v2 (context: *mut Context, flags: c_uint, device: Device) -> CuResult = create;
    fn cuCtxCreate_v3(context: *mut Context, affinity: *mut c_void, count: c_int, flags: c_uint, device: Device) -> CuResult = create_v3;
    fn cuCtxCreate_v4(context: *mut Context, params: *mut c_void, flags: c_uint, device: Device) -> CuResult = create_v4;
    /// A context for OpenGL.
    fn cuGLCtxCreate | cuGLCtxCreate_v2 (context: *mut Context, flags: c_uint, device: Device) -> CuResult = create_gl;
    /// A context for VDPAU.
    fn cuVDPAUCtxCreate | cuVDPAUCtxCreate_v2 (context: *mut Context, flags: c_uint, device: Device, vdpau: c_uint, get_address: *mut c_void) -> CuResult = create_vdpau;
    /// A green context retains the primary context, and takes little memory itself.
    fn cuGreenCtxCreate(green: *mut GreenContext, resources: *mut c_void, device: Device, flags: c_uint) -> CuResult = create_green;
    fn cuGreenCtxDestroy(green: GreenContext) -> CuResult = destroy_green;
    fn cuCtxDestroy | cuCtxDestroy_v2 | cuCtxDetach (context: Context) -> CuResult = destroy;
}

fn init(call: Call<signature::cuInit>, flags: c_uint) -> CuResult {
    // SAFETY: the driver is being called.
    unsafe { super::look_at_patches(super::Library::Cuda) };
    if let Verdict::Denied = call.process.cuda() {
        return CuResult::NOT_PERMITTED;
    }
    compute::driver_starts();
    // SAFETY: the program's own arguments.
    let result = call.process.driver_starts(|| unsafe { (call.original)(flags) });
    if result.is_ok() && !super::info::calls_arrive() {
        unpatched::missed(super::Library::Cuda.soname(), "cuDriverGetVersion");
        if let Verdict::Denied = call.process.cuda() {
            return CuResult::NOT_PERMITTED;
        }
    }
    result
}

/// Runs `make` under `Contexts::change` if the device has a ledger, and `original` otherwise.
fn made_on(
    process: &'static Process,
    device: Device,
    original: impl FnOnce() -> CuResult,
    make: impl FnOnce(&'static LimitedDevice) -> CuResult,
) -> CuResult {
    // SAFETY: the driver is being called.
    unsafe { super::look_at_patches(super::Library::Cuda) };
    match process.device(device) {
        Verdict::Limited(limited) => {
            process.memory.prepare_for_contexts();
            let _alone = limited.memory.contexts.change();
            make(limited)
        }
        Verdict::Free => original(),
        Verdict::Denied => CuResult::NOT_PERMITTED,
    }
}

/// Creates a context by `original` and records it.
fn created(
    process: &'static Process,
    limited: &'static LimitedDevice,
    original: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> usize,
    undo: impl FnOnce(),
) -> CuResult {
    let made = Cell::new(0);
    let handle = || {
        made.set(handle());
        made.get()
    };
    let result = process.memory.create_context(&limited.memory, original, handle, undo);
    if result.is_ok() {
        process.context_is_made(limited, made.get());
    }
    result
}

fn primary_is_active(device: Device) -> bool {
    let (mut flags, mut active) = (0, 0);
    driver_calls::primary_ctx_get_state(device, &raw mut flags, &raw mut active).is_ok()
        && active != 0
}

fn primary_retain(
    call: Call<signature::cuDevicePrimaryCtxRetain>,
    context: *mut Context,
    device: Device,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(context, device) };
    made_on(call.process, device, original, |limited| {
        let result = if limited.memory.contexts.primary() != 0 && primary_is_active(device) {
            original()
        } else {
            let undo = || {
                let _ = driver_calls::primary_ctx_release(device);
            };
            // SAFETY: read after success only, when the driver has written there.
            created(call.process, limited, original, || unsafe { written(context) } as usize, undo)
        };
        if result.is_ok() {
            // SAFETY: read after success only, when the driver has written there.
            limited.memory.contexts.primary_retained(unsafe { written(context) } as usize);
        }
        result
    })
}

fn primary_release(call: Call<signature::cuDevicePrimaryCtxRelease>, device: Device) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(device) };
    let Verdict::Limited(limited) = call.process.device(device) else { return original() };
    let _alone = limited.memory.contexts.change();
    release_primary(call.process, device, limited, original)
}

/// Runs a call that drops a reference to the primary context. Must be called under `Contexts::change`.
fn release_primary(
    process: &'static Process,
    device: Device,
    limited: &'static LimitedDevice,
    original: impl FnOnce() -> CuResult,
) -> CuResult {
    if limited.memory.contexts.last_reference() {
        return end_primary(process, device, limited, original);
    }
    let result = original();
    if result.is_ok() {
        limited.memory.contexts.primary_released();
    }
    result
}

fn primary_reset(call: Call<signature::cuDevicePrimaryCtxReset>, device: Device) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(device) };
    let Verdict::Limited(limited) = call.process.device(device) else { return original() };
    let _alone = limited.memory.contexts.change();
    end_primary(call.process, device, limited, original)
}

/// Runs a call that may end the primary context. Must be called under `Contexts::change`.
fn end_primary(
    process: &'static Process,
    device: Device,
    limited: &'static LimitedDevice,
    original: impl FnOnce() -> CuResult,
) -> CuResult {
    let handle = limited.memory.contexts.primary();
    let contexts = limited.memory.contexts.of_primary();
    contexts.iter().for_each(|&context| compute::context_ends(&limited.gate, context));
    process.memory.context_ends(handle);
    let result = original();
    if handle == 0 {
        return result;
    }
    if result.is_ok() && !primary_is_active(device) {
        contexts.iter().for_each(|&context| compute::context_ended(&limited.gate, context));
        process.memory.primary_context_ended(&limited.memory, handle);
    } else {
        contexts.iter().for_each(|&context| compute::context_stays(&limited.gate, context));
    }
    result
}

fn create_on(
    process: &'static Process,
    device: Device,
    context: *mut Context,
    original: &dyn Fn() -> CuResult,
) -> CuResult {
    let undo = || {
        // SAFETY: called after success only, when the driver has written there.
        let _ = driver_calls::ctx_destroy(unsafe { written(context) });
    };
    made_on(process, device, original, |limited| {
        // SAFETY: read after success only, when the driver has written there.
        created(process, limited, original, || unsafe { written(context) } as usize, undo)
    })
}

fn create(
    call: Call<signature::cuCtxCreate>,
    context: *mut Context,
    flags: c_uint,
    device: Device,
) -> CuResult {
    // SAFETY: the program's own arguments.
    create_on(call.process, device, context, &|| unsafe { (call.original)(context, flags, device) })
}

fn create_v3(
    call: Call<signature::cuCtxCreate_v3>,
    context: *mut Context,
    affinity: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: Device,
) -> CuResult {
    create_on(call.process, device, context, &|| {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(context, affinity, count, flags, device) }
    })
}

fn create_v4(
    call: Call<signature::cuCtxCreate_v4>,
    context: *mut Context,
    params: *mut c_void,
    flags: c_uint,
    device: Device,
) -> CuResult {
    // SAFETY: the program's own arguments.
    create_on(call.process, device, context, &|| unsafe {
        (call.original)(context, params, flags, device)
    })
}

fn create_gl(
    call: Call<signature::cuGLCtxCreate>,
    context: *mut Context,
    flags: c_uint,
    device: Device,
) -> CuResult {
    // SAFETY: the program's own arguments.
    create_on(call.process, device, context, &|| unsafe { (call.original)(context, flags, device) })
}

fn create_vdpau(
    call: Call<signature::cuVDPAUCtxCreate>,
    context: *mut Context,
    flags: c_uint,
    device: Device,
    vdpau: c_uint,
    get_address: *mut c_void,
) -> CuResult {
    create_on(call.process, device, context, &|| {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(context, flags, device, vdpau, get_address) }
    })
}

/// The handle of an existing primary context; 0 if it cannot be retained.
fn primary_of(device: Device) -> usize {
    let mut context = ptr::null_mut();
    if !driver_calls::primary_ctx_retain(&raw mut context, device).is_ok() {
        return 0;
    }
    let _ = driver_calls::primary_ctx_release(device);
    context as usize
}

fn create_green(
    call: Call<signature::cuGreenCtxCreate>,
    green: *mut GreenContext,
    resources: *mut c_void,
    device: Device,
    flags: c_uint,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(green, resources, device, flags) };
    // SAFETY: read after success only, when the driver has written there.
    let handle = || unsafe { written(green) } as usize;
    let undo = || {
        let _ = driver_calls::green_ctx_destroy(handle() as GreenContext);
    };
    made_on(call.process, device, original, |limited| {
        let result = if limited.memory.contexts.primary() != 0 && primary_is_active(device) {
            let memory = &call.process.memory;
            memory.create_green_context(&limited.memory, device, original, handle, undo)
        } else {
            let result = created(call.process, limited, original, || primary_of(device), undo);
            if result.is_ok() {
                // Charged together with the primary context.
                limited.memory.contexts.green_made(device, handle(), 0);
            }
            result
        };
        if result.is_ok() {
            let context = limited.memory.contexts.context_of_green(handle());
            compute::context_is_made(context);
            compute::green_context_is_made(context, primary_of(device));
            limited.memory.contexts.primary_retained(primary_of(device));
        }
        result
    })
}

fn destroy_green(call: Call<signature::cuGreenCtxDestroy>, green: GreenContext) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(green) };
    let handle = green as usize;
    let process = call.process;
    let mut devices = process.devices();
    let found =
        devices.find_map(|device| Some((device, device.memory.contexts.ordinal_of_green(handle)?)));
    let Some((limited, device)) = found else { return original() };
    let _alone = limited.memory.contexts.change();
    let Some(green) = limited.memory.contexts.green_ends(handle) else { return original() };
    compute::context_ends(&limited.gate, green.context);
    let result = release_primary(call.process, device, limited, original);
    if result.is_ok() {
        compute::context_ended(&limited.gate, green.context);
        process.memory.green_context_ended(&limited.memory, green);
    } else {
        limited.memory.contexts.green_stays(handle, green);
        compute::context_stays(&limited.gate, green.context);
    }
    result
}

/// Destroys a context. A program holds only one reference to a context that it created, so detaching destroys it too.
fn destroy(call: Call<signature::cuCtxDestroy>, context: Context) -> CuResult {
    let handle = context as usize;
    let process = call.process;
    let device = process.devices().find(|device| device.memory.contexts.has(handle));
    let _alone = device.map(|device| {
        let alone = device.memory.contexts.change();
        compute::context_ends(&device.gate, handle);
        process.memory.context_ends(handle);
        alone
    });
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(context) };
    if let Some(device) = device {
        if result.is_ok() {
            compute::context_ended(&device.gate, handle);
            process.memory.context_ended(&device.memory, handle);
        } else {
            compute::context_stays(&device.gate, handle);
        }
    }
    result
}

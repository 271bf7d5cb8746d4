//! Primary contexts, created contexts, and the current one. One file for one section of the driver API ("Context
//! Management").

use core::ffi::{c_int, c_uint, c_void};
use std::collections::HashMap;
use std::sync::LazyLock;

use driver::cuda::{self, CuResult, Device};

use crate::ffi::{Api, In, Out, api, ensure, handle};
use crate::state::{Driver, Inner, Table, current, driver, with, with_context};
use crate::{attributes, capture, graph_exec, memory, module, pool, stream, thread};

/// All valid flags (`CU_CTX_FLAGS_MASK`).
const FLAGS: c_uint = 0xFF;
/// `CU_LIMIT_MAX`
const LIMITS: c_uint = 0x0B;

/// A context.
pub(crate) struct Context {
    /// The program's ordinal.
    pub(crate) device: Device,
    /// The node's device.
    pub(crate) on_node: u32,
    pub(crate) primary: bool,
    /// For a green context: its primary context.
    pub(crate) part_of: Option<u64>,
    /// Whether it is usable. A released primary context keeps its handle and becomes usable again when retained.
    pub(crate) active: bool,
    pub(crate) flags: c_uint,
    /// The legacy stream; 0 until it is used.
    pub(crate) legacy: u64,
    /// The default stream of each thread.
    pub(crate) per_thread: Table<u64>,
    limits: HashMap<c_uint, usize>,
    /// Bytes of device memory that the limits take beyond their defaults.
    extra: u64,
}

/// A device's primary context.
#[derive(Default)]
pub(crate) struct Primary {
    /// Its handle; 0 before the first use.
    context: u64,
    references: u32,
    flags: c_uint,
}

fn start(driver: &Driver, inner: &mut Inner, device: Device, flags: c_uint) -> Api<Context> {
    let on_node = driver.device(device)?;
    if driver.node.add_context(driver.process, on_node).is_err() {
        memory::reclaim(driver, inner, on_node);
        driver.node.add_context(driver.process, on_node).map_err(|_| CuResult::OUT_OF_MEMORY)?;
    }
    Ok(Context {
        device,
        on_node,
        primary: false,
        part_of: None,
        active: true,
        flags,
        legacy: 0,
        per_thread: Table::default(),
        limits: HashMap::new(),
        extra: 0,
    })
}

/// Frees everything that belongs to a context.
///
/// Waits for its streams' work first, under the driver's lock: on an H200, resetting a primary context with a held
/// stream waits until the stream continues.
fn end(driver: &Driver, inner: &mut Inner, context: u64) {
    for (stream, position) in stream::ends(driver, inner, |stream| stream.context == context) {
        driver.node.wait_for(stream, position);
    }
    let Some(found) = inner.contexts.get_mut(&context) else { return };
    found.active = false;
    found.legacy = 0;
    found.per_thread.clear();
    let on_node = found.on_node;
    let extra = core::mem::take(&mut found.extra);
    capture::drop_context(inner, context);
    let streams: Vec<_> =
        inner.streams.values().filter(|s| s.context == context).map(|s| s.id).collect();
    inner.streams.retain(|_, stream| stream.context != context);
    let events: Vec<_> =
        inner.events.values().filter(|e| e.context == context).map(|e| e.id).collect();
    inner.events.retain(|_, event| event.context != context);
    inner.functions.retain(|_, function| function.context != context);
    module::drop_context(driver, inner, context);
    {
        let mut node = driver.node.lock();
        for id in streams {
            let _ = node.destroy_stream(id);
        }
        for id in events {
            let _ = node.destroy_event(id);
        }
    }
    graph_exec::drop_context(driver, inner, context);
    crate::array::drop_context(driver, inner, context);
    memory::drop_context(driver, inner, context);
    crate::external::drop_context(driver, inner, context);
    pool::synchronised(driver, inner);
    driver.node.give_back(driver.process, on_node, extra);
    if inner.contexts.get(&context).is_some_and(|found| found.part_of.is_none()) {
        driver.node.remove_context(driver.process, on_node);
    }
}

/// Creates the context of a green context: its primary context under another handle.
pub(crate) fn add_green(inner: &mut Inner, primary: u64) -> Api<u64> {
    let found = inner.contexts.get(&primary).ok_or(CuResult::INVALID_CONTEXT)?;
    let made = Context {
        device: found.device,
        on_node: found.on_node,
        primary: false,
        part_of: Some(primary),
        active: true,
        flags: found.flags,
        legacy: 0,
        per_thread: Table::default(),
        limits: HashMap::new(),
        extra: 0,
    };
    let key = inner.new_handle();
    inner.contexts.insert(key, made);
    Ok(key)
}

/// Ends such a context. Memory allocated in it stays with the primary context.
pub(crate) fn end_green(driver: &Driver, inner: &mut Inner, context: u64) {
    let Some(Some(primary)) = inner.contexts.get(&context).map(|found| found.part_of) else {
        return;
    };
    for found in inner.memory.values_mut().filter(|found| found.context == context) {
        found.context = primary;
    }
    crate::array::hand_over(inner, context, primary);
    crate::external::hand_over(inner, context, primary);
    end(driver, inner, context);
}

/// The context to which modules and memory belong: of a green context, the primary one.
pub(crate) fn whole(inner: &Inner, context: u64) -> u64 {
    inner.contexts.get(&context).and_then(|found| found.part_of).unwrap_or(context)
}

pub(crate) extern "C" fn retain(context: Out<cuda::Context>, device: Device) -> CuResult {
    api(|| {
        with(|driver, inner| {
            context.required()?;
            context.set(handle(retain_primary(driver, inner, device)?));
            Ok(())
        })
    })
}

pub(crate) fn retain_primary(driver: &Driver, inner: &mut Inner, device: Device) -> Api<u64> {
    driver.device(device)?;
    let index = device as usize;
    if inner.primaries[index].references == 0 {
        let flags = inner.primaries[index].flags;
        let mut started = start(driver, inner, device, flags)?;
        started.primary = true;
        if inner.primaries[index].context == 0 {
            inner.primaries[index].context = inner.new_handle();
        }
        inner.contexts.insert(inner.primaries[index].context, started);
    }
    let primary = &mut inner.primaries[index];
    primary.references += 1;
    Ok(primary.context)
}

pub(crate) fn release_primary(driver: &Driver, inner: &mut Inner, device: Device) -> Api {
    driver.device(device)?;
    let primary = &mut inner.primaries[device as usize];
    ensure(primary.references > 0, CuResult::INVALID_CONTEXT)?;
    primary.references -= 1;
    if primary.references == 0 {
        let context = primary.context;
        end(driver, inner, context);
    }
    Ok(())
}

pub(crate) extern "C" fn release(device: Device) -> CuResult {
    api(|| with(|driver, inner| release_primary(driver, inner, device)))
}

pub(crate) extern "C" fn reset(device: Device) -> CuResult {
    api(|| {
        with(|driver, inner| {
            driver.device(device)?;
            let primary = &mut inner.primaries[device as usize];
            primary.flags = 0;
            if primary.references > 0 {
                primary.references = 0;
                let context = primary.context;
                end(driver, inner, context);
            }
            Ok(())
        })
    })
}

pub(crate) extern "C" fn primary_state(
    device: Device,
    flags: Out<c_uint>,
    active: Out<c_int>,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            driver.device(device)?;
            flags.required()?;
            active.required()?;
            let primary = &inner.primaries[device as usize];
            flags.set(primary.flags);
            active.set(c_int::from(primary.references > 0));
            Ok(())
        })
    })
}

fn change_flags(device: Device, flags: c_uint, while_active: bool) -> CuResult {
    api(|| {
        with(|driver, inner| {
            driver.device(device)?;
            ensure(flags & !FLAGS == 0, CuResult::INVALID_VALUE)?;
            let primary = &mut inner.primaries[device as usize];
            let active = primary.references > 0;
            ensure(!active || while_active, CuResult::PRIMARY_CONTEXT_ACTIVE)?;
            primary.flags = flags;
            let context = primary.context;
            if let Some(found) = inner.contexts.get_mut(&context) {
                found.flags = flags;
            }
            Ok(())
        })
    })
}

/// Before CUDA 11, the flags of an active context could not be changed.
pub(crate) extern "C" fn set_primary_flags_v1(device: Device, flags: c_uint) -> CuResult {
    change_flags(device, flags, false)
}

pub(crate) extern "C" fn set_primary_flags(device: Device, flags: c_uint) -> CuResult {
    change_flags(device, flags, true)
}

fn create_any(context: Out<cuda::Context>, flags: c_uint, device: Device) -> Api {
    let created = with(|driver, inner| {
        context.required()?;
        ensure(flags & !FLAGS == 0, CuResult::INVALID_VALUE)?;
        let started = start(driver, inner, device, flags)?;
        let created = inner.new_handle();
        inner.contexts.insert(created, started);
        Ok(created)
    })?;
    thread::push(created)?;
    context.set(handle(created));
    Ok(())
}

pub(crate) extern "C" fn create(
    context: Out<cuda::Context>,
    flags: c_uint,
    device: Device,
) -> CuResult {
    api(|| create_any(context, flags, device))
}

/// `cuCtxCreate_v3`; execution affinity is not supported.
pub(crate) extern "C" fn create_v3(
    context: Out<cuda::Context>,
    affinity: In<c_uint>,
    count: c_int,
    flags: c_uint,
    device: Device,
) -> CuResult {
    api(|| {
        driver()?;
        ensure(affinity.is_null() == (count == 0), CuResult::INVALID_VALUE)?;
        ensure(count == 0, CuResult::NOT_SUPPORTED)?;
        create_any(context, flags, device)
    })
}

/// `CUctxCreateParams`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CreateParams {
    affinity: *mut c_void,
    affinity_count: c_int,
    graphics: *mut c_void,
}

pub(crate) extern "C" fn create_v4(
    context: Out<cuda::Context>,
    params: In<CreateParams>,
    flags: c_uint,
    device: Device,
) -> CuResult {
    api(|| {
        driver()?;
        if !params.is_null() {
            let params = params.get()?;
            let plain = params.affinity_count == 0
                && params.affinity.is_null()
                && params.graphics.is_null();
            ensure(plain, CuResult::NOT_SUPPORTED)?;
        }
        create_any(context, flags, device)
    })
}

pub(crate) extern "C" fn destroy(context: cuda::Context) -> CuResult {
    api(|| {
        let context = context as u64;
        with(|driver, inner| {
            match inner.contexts.get(&context) {
                Some(found) if found.active && !found.primary && found.part_of.is_none() => {}
                _ => return Err(CuResult::INVALID_CONTEXT),
            }
            end(driver, inner, context);
            inner.contexts.remove(&context);
            Ok(())
        })?;
        if thread::current() == context {
            thread::pop()?;
        }
        Ok(())
    })
}

pub(crate) fn known(inner: &Inner, context: cuda::Context) -> Api<u64> {
    match inner.contexts.get(&(context as u64)) {
        Some(found) if found.active => Ok(context as u64),
        found => {
            if *ABORTS {
                std::process::abort();
            }
            Err(if found.is_some() {
                CuResult::CONTEXT_IS_DESTROYED
            } else {
                CuResult::INVALID_CONTEXT
            })
        }
    }
}

/// Whether using an ended context aborts the process, where the real driver may read freed memory.
static ABORTS: LazyLock<bool> = LazyLock::new(|| {
    std::env::var_os("SLUICE_FAKE_ENDED_CONTEXTS").is_some_and(|value| value == "abort")
});

pub(crate) extern "C" fn push(context: cuda::Context) -> CuResult {
    api(|| thread::push(with(|_, inner| known(inner, context))?))
}

pub(crate) extern "C" fn pop(context: Out<cuda::Context>) -> CuResult {
    api(|| {
        driver()?;
        context.set(handle(thread::pop()?));
        Ok(())
    })
}

pub(crate) extern "C" fn set_current(context: cuda::Context) -> CuResult {
    api(|| {
        let wanted =
            with(|_, inner| if context.is_null() { Ok(0) } else { known(inner, context) })?;
        thread::set_current(wanted);
        Ok(())
    })
}

pub(crate) extern "C" fn get_current(context: Out<cuda::Context>) -> CuResult {
    api(|| {
        driver()?;
        context.required()?.set(handle(thread::current()));
        Ok(())
    })
}

fn of(inner: &Inner, context: cuda::Context) -> Api<u64> {
    if context.is_null() { current(inner) } else { known(inner, context) }
}

pub(crate) extern "C" fn get_device(device: Out<Device>) -> CuResult {
    get_device_v2(device, core::ptr::null_mut())
}

pub(crate) extern "C" fn get_device_v2(device: Out<Device>, context: cuda::Context) -> CuResult {
    api(|| {
        with(|_, inner| {
            let context = of(inner, context)?;
            device.required()?.set(inner.contexts[&context].device);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn synchronize() -> CuResult {
    synchronize_v2(core::ptr::null_mut())
}

pub(crate) extern "C" fn synchronize_v2(context: cuda::Context) -> CuResult {
    api(|| {
        let targets = with(|driver, inner| {
            let context = of(inner, context)?;
            capture::forbid_in_context(inner, context)?;
            capture::unsafe_call(inner)?;
            Ok(stream::ends(driver, inner, |stream| stream.context == context))
        })?;
        stream::wait_all(&targets)
    })
}

pub(crate) extern "C" fn api_version(context: cuda::Context, version: Out<c_uint>) -> CuResult {
    api(|| {
        with(|_, inner| {
            version.required()?;
            of(inner, context)?;
            version.set(3020);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn context_id(context: cuda::Context, id: Out<u64>) -> CuResult {
    api(|| {
        with(|_, inner| {
            id.required()?.set(of(inner, context)?);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn flags(flags: Out<c_uint>) -> CuResult {
    api(|| {
        with_context(|_, inner, context| {
            flags.required()?.set(inner.contexts[&context].flags);
            Ok(())
        })
    })
}

fn preset(limit: c_uint) -> usize {
    match limit {
        0 => 1024,
        1 => 1 << 20,
        2 => 8 << 20,
        3 => 2,
        4 => 2048,
        5 => 64,
        _ => 0,
    }
}

/// Bytes that a limit takes of the device beyond its default: a stack for each resident thread, the buffer of `printf`,
/// the heap.
fn beyond_preset(limit: c_uint, value: usize) -> u64 {
    let threads = attributes::MULTIPROCESSORS * attributes::THREADS_PER_MULTIPROCESSOR;
    let each = match limit {
        0 => threads as u64,
        1 | 2 => 1,
        _ => 0,
    };
    memory::rounded(each * (value.saturating_sub(preset(limit)) as u64))
}

pub(crate) extern "C" fn get_limit(value: Out<usize>, limit: c_uint) -> CuResult {
    api(|| {
        with_context(|_, inner, context| {
            value.required()?;
            ensure(limit < LIMITS, CuResult::UNSUPPORTED_LIMIT)?;
            let limits = &inner.contexts[&context].limits;
            value.set(limits.get(&limit).copied().unwrap_or(preset(limit)));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn set_limit(limit: c_uint, value: usize) -> CuResult {
    api(|| {
        with_context(|driver, inner, context| {
            ensure(limit < 7, CuResult::UNSUPPORTED_LIMIT)?;
            let found = &inner.contexts[&context];
            let (device, old) = (found.on_node, found.limits.get(&limit).copied());
            let had = beyond_preset(limit, old.unwrap_or(preset(limit)));
            let wants = beyond_preset(limit, value);
            memory::take(driver, inner, device, wants.saturating_sub(had))?;
            driver.node.give_back(driver.process, device, had.saturating_sub(wants));
            if let Some(found) = inner.contexts.get_mut(&context) {
                found.limits.insert(limit, value);
                found.extra = found.extra + wants - had;
            }
            Ok(())
        })
    })
}

pub(crate) extern "C" fn priority_range(least: Out<c_int>, greatest: Out<c_int>) -> CuResult {
    api(|| {
        with_context(|_, _, _| {
            least.set(0);
            greatest.set(stream::GREATEST_PRIORITY);
            Ok(())
        })
    })
}

/// Cache and bank preferences are accepted without effect, as on devices without a choice.
pub(crate) extern "C" fn set_preference(_preference: c_uint) -> CuResult {
    api(|| with_context(|_, _, _| Ok(())))
}

pub(crate) extern "C" fn get_preference(preference: Out<c_uint>) -> CuResult {
    api(|| {
        with_context(|_, _, _| {
            preference.required()?.set(0);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn enable_peer_access(peer: cuda::Context, flags: c_uint) -> CuResult {
    api(|| {
        with_context(|_, inner, context| {
            ensure(flags == 0, CuResult::INVALID_VALUE)?;
            let peer = known(inner, peer)?;
            ensure(peer != context, CuResult::INVALID_CONTEXT)
        })
    })
}

pub(crate) extern "C" fn disable_peer_access(peer: cuda::Context) -> CuResult {
    api(|| with_context(|_, inner, _| known(inner, peer).map(|_| ())))
}

/// Ordinal and node device of a context.
pub(crate) fn device_of(inner: &Inner, context: u64) -> Api<(Device, u32)> {
    let found = inner.contexts.get(&context).ok_or(CuResult::INVALID_CONTEXT)?;
    Ok((found.device, found.on_node))
}

/// A context for OpenGL; an ordinary context here.
pub(crate) extern "C" fn create_for_gl(
    context: Out<cuda::Context>,
    flags: c_uint,
    device: Device,
) -> CuResult {
    api(|| create_any(context, flags, device))
}

/// A context for VDPAU, whose device is ignored.
pub(crate) extern "C" fn create_for_vdpau(
    context: Out<cuda::Context>,
    flags: c_uint,
    device: Device,
    _vdpau_device: c_uint,
    _get_proc_address: *mut c_void,
) -> CuResult {
    api(|| create_any(context, flags, device))
}

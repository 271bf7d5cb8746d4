//! Streams, including the default ones.

use core::ffi::{c_int, c_uint};

use driver::cuda::{self, CuResult, STREAM_LEGACY, STREAM_PER_THREAD};
use fake_node::layout::{Order, StreamId};

use crate::capture::{self, Branch};
use crate::context::device_of;
use crate::ffi::{Api, Out, api, ensure, handle};
use crate::state::{Driver, Inner, current, driver, queue_error, with, with_context};
use crate::{green, pool, thread};

/// `CU_STREAM_NON_BLOCKING`
pub(crate) const NON_BLOCKING: c_uint = 1;
/// The most urgent priority (the least urgent is 0).
pub(crate) const GREATEST_PRIORITY: c_int = -5;

/// A stream.
pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) id: StreamId,
    pub(crate) order: Order,
    pub(crate) priority: c_int,
    pub(crate) flags: c_uint,
    /// The capture of which it is a part.
    pub(crate) capture: Option<Branch>,
}

/// A resolved stream argument.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// Key in the table of streams.
    pub(crate) key: u64,
    pub(crate) id: StreamId,
    pub(crate) context: u64,
}

fn make(
    driver: &Driver,
    inner: &mut Inner,
    context: u64,
    order: Order,
    flags: c_uint,
    priority: c_int,
) -> Api<u64> {
    let (_, on_node) = device_of(inner, context)?;
    let id = driver
        .node
        .lock()
        .create_stream(driver.process, on_node, context, order, priority)
        .map_err(queue_error)?;
    let key = inner.new_handle();
    inner.streams.insert(key, Stream { context, id, order, priority, flags, capture: None });
    Ok(key)
}

/// Resolves a stream argument. Null is the legacy stream of the current context; with `P`, in the `_ptsz` and `_ptds`
/// forms, the calling thread's own stream.
pub(crate) fn target<const P: bool>(
    driver: &Driver,
    inner: &mut Inner,
    stream: cuda::Stream,
) -> Api<Target> {
    let context = current(inner)?;
    let key = match stream as usize {
        0 if P => default_stream(driver, inner, context, true)?,
        0 | STREAM_LEGACY => default_stream(driver, inner, context, false)?,
        STREAM_PER_THREAD => default_stream(driver, inner, context, true)?,
        other => other as u64,
    };
    let found = inner.streams.get(&key).ok_or(CuResult::INVALID_HANDLE)?;
    Ok(Target { key, id: found.id, context: found.context })
}

fn default_stream(driver: &Driver, inner: &mut Inner, context: u64, per_thread: bool) -> Api<u64> {
    let found = inner.contexts.get(&context).ok_or(CuResult::INVALID_CONTEXT)?;
    if per_thread {
        let thread = thread::id();
        if let Some(&key) = found.per_thread.get(&thread) {
            return Ok(key);
        }
        let key = make(driver, inner, context, Order::Blocking, 0, 0)?;
        if let Some(found) = inner.contexts.get_mut(&context) {
            found.per_thread.insert(thread, key);
        }
        Ok(key)
    } else {
        if found.legacy != 0 {
            return Ok(found.legacy);
        }
        let key = make(driver, inner, context, Order::Legacy, 0, 0)?;
        if let Some(found) = inner.contexts.get_mut(&context) {
            found.legacy = key;
        }
        Ok(key)
    }
}

/// The positions after all work queued so far, in the streams that `choose` selects.
pub(crate) fn ends(
    driver: &Driver,
    inner: &Inner,
    choose: impl Fn(&Stream) -> bool,
) -> Vec<(StreamId, u64)> {
    let node = driver.node.lock();
    inner
        .streams
        .values()
        .filter(|stream| choose(stream))
        .filter_map(|stream| node.end_of(stream.id).ok().map(|end| (stream.id, end)))
        .collect()
}

/// The positions at which a stream is idle: the end of its own work, and for the legacy stream also the ends of every
/// blocking stream of its context.
pub(crate) fn ends_of(driver: &Driver, inner: &Inner, target: Target) -> Vec<(StreamId, u64)> {
    let legacy = inner.streams.get(&target.key).is_some_and(|s| s.order == Order::Legacy);
    ends(driver, inner, |stream| {
        stream.id == target.id
            || (legacy && stream.context == target.context && stream.order == Order::Blocking)
    })
}

/// Waits for all of these positions; then pools give back unused memory.
pub(crate) fn wait_all(targets: &[(StreamId, u64)]) -> Api {
    let driver = driver()?;
    for &(stream, position) in targets {
        driver.node.wait_for(stream, position);
    }
    let mut inner = driver.inner();
    pool::synchronised(driver, &mut inner);
    Ok(())
}

fn create_any(stream: Out<cuda::Stream>, flags: c_uint, priority: c_int) -> CuResult {
    api(|| {
        with_context(|driver, inner, context| {
            stream.required()?;
            ensure(flags & !NON_BLOCKING == 0, CuResult::INVALID_VALUE)?;
            stream.set(handle(create_in(driver, inner, context, flags, priority)?));
            Ok(())
        })
    })
}

/// Creates a stream in a context.
pub(crate) fn create_in(
    driver: &Driver,
    inner: &mut Inner,
    context: u64,
    flags: c_uint,
    priority: c_int,
) -> Api<u64> {
    let order = if flags == NON_BLOCKING { Order::NonBlocking } else { Order::Blocking };
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    make(driver, inner, context, order, flags, priority)
}

pub(crate) extern "C" fn create(stream: Out<cuda::Stream>, flags: c_uint) -> CuResult {
    create_any(stream, flags, 0)
}

pub(crate) extern "C" fn create_with_priority(
    stream: Out<cuda::Stream>,
    flags: c_uint,
    priority: c_int,
) -> CuResult {
    create_any(stream, flags, priority)
}

pub(crate) extern "C" fn destroy(stream: cuda::Stream) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let key = stream as u64;
            let default = inner
                .contexts
                .values()
                .any(|c| c.legacy == key || c.per_thread.values().any(|&own| own == key));
            ensure(!default, CuResult::INVALID_HANDLE)?;
            let found = inner.streams.remove(&key).ok_or(CuResult::INVALID_HANDLE)?;
            if let Some(branch) = &found.capture {
                capture::invalidate(inner, branch.capture);
            }
            let _ = driver.node.lock().destroy_stream(found.id);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn synchronize<const P: bool>(stream: cuda::Stream) -> CuResult {
    api(|| {
        let targets = with(|driver, inner| {
            let target = target::<P>(driver, inner, stream)?;
            capture::forbid_on(inner, target)?;
            capture::unsafe_call(inner)?;
            Ok(ends_of(driver, inner, target))
        })?;
        wait_all(&targets)
    })
}

pub(crate) extern "C" fn query<const P: bool>(stream: cuda::Stream) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let target = target::<P>(driver, inner, stream)?;
            capture::forbid_on(inner, target)?;
            capture::unsafe_call(inner)?;
            let targets = ends_of(driver, inner, target);
            let node = driver.node.lock();
            let idle = targets.iter().all(|(id, end)| node.passed(id.slot, id.generation, *end));
            ensure(idle, CuResult::NOT_READY)
        })
    })
}

pub(crate) extern "C" fn wait_event<const P: bool>(
    stream: cuda::Stream,
    event: cuda::Event,
    flags: c_uint,
) -> CuResult {
    api(|| {
        let (driver, id, event) = {
            let driver = driver()?;
            let inner = &mut *driver.inner();
            let target = target::<P>(driver, inner, stream)?;
            let found = inner.events.get(&(event as u64)).ok_or(CuResult::INVALID_HANDLE)?;
            ensure(flags & !1 == 0, CuResult::INVALID_VALUE)?;
            let id = found.id;
            if capture::wait_event(inner, target, event as u64)? {
                return Ok(());
            }
            (driver, target.id, id)
        };
        driver.node.retry_while_full(id, |state| state.wait(id, event)).map_err(queue_error)
    })
}

fn describe<const P: bool, T>(
    stream: cuda::Stream,
    to: Out<T>,
    value: impl FnOnce(&Inner, &Stream, Target) -> T,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            to.required()?;
            let target = target::<P>(driver, inner, stream)?;
            let found = inner.streams.get(&target.key).ok_or(CuResult::INVALID_HANDLE)?;
            to.set(value(inner, found, target));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn context<const P: bool>(
    stream: cuda::Stream,
    context: Out<cuda::Context>,
) -> CuResult {
    describe::<P, _>(stream, context, |_, found, _| handle(found.context))
}

pub(crate) extern "C" fn context_v2<const P: bool>(
    stream: cuda::Stream,
    context: Out<cuda::Context>,
    green: Out<cuda::GreenContext>,
) -> CuResult {
    describe::<P, _>(stream, context, |inner, found, _| {
        let of = green::of(inner, found.context);
        green.set(of);
        // A stream of a green context has a green context instead.
        if of.is_null() { handle(found.context) } else { core::ptr::null_mut() }
    })
}

pub(crate) extern "C" fn priority<const P: bool>(
    stream: cuda::Stream,
    priority: Out<c_int>,
) -> CuResult {
    describe::<P, _>(stream, priority, |_, found, _| found.priority)
}

pub(crate) extern "C" fn flags<const P: bool>(
    stream: cuda::Stream,
    flags: Out<c_uint>,
) -> CuResult {
    describe::<P, _>(stream, flags, |_, found, _| found.flags)
}

pub(crate) extern "C" fn unique_id<const P: bool>(stream: cuda::Stream, id: Out<u64>) -> CuResult {
    describe::<P, _>(stream, id, |_, _, target| target.key)
}

pub(crate) extern "C" fn device<const P: bool>(
    stream: cuda::Stream,
    device: Out<cuda::Device>,
) -> CuResult {
    describe::<P, _>(stream, device, |inner, found, _| {
        device_of(inner, found.context).map_or(-1, |(device, _)| device)
    })
}

//! Host functions in streams. Each runs on the driver's own thread when the preceding work is done, and the following
//! work waits for it.
//!
//! The following work waits for a gate: a stream of the node that gets an operation when the function has returned. The
//! gate takes no hardware queue, because a real driver's thread just stores a value.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed},
};
use core::time::Duration;
use std::sync::{Condvar, Mutex, PoisonError};

use driver::cuda::{self, CuResult, HostFunction, HostNodeParams, StreamCallback};
use fake_node::layout::{NONE, Op, Order, StreamId};

use crate::context::device_of;
use crate::ffi::{Api, api, ensure};
use crate::graph::Work;
use crate::state::{Driver, driver, queue_error};
use crate::stream::{self, Target};
use crate::stub::{LIFE, TAKEN_DOWN};
use crate::{capture, thread};

/// The function to call.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    Plain {
        function: HostFunction,
        data: u64,
    },
    /// `cuStreamAddCallback` passes the stream as the program has named it.
    Callback {
        function: StreamCallback,
        stream: u64,
        data: u64,
    },
}

impl Function {
    /// A function from the parameters of a graph node or of `cuLaunchHostFunc`.
    pub(crate) fn of(params: HostNodeParams) -> Api<Self> {
        let function = params.function.ok_or(CuResult::INVALID_VALUE)?;
        Ok(Self::Plain { function, data: params.user_data as u64 })
    }

    fn call(self) {
        match self {
            Self::Plain { function, data } => function(data as *mut c_void),
            Self::Callback { function, stream, data } => {
                function(stream as cuda::Stream, CuResult::SUCCESS, data as *mut c_void);
            }
        }
    }
}

/// A function to call when `stream` reaches `position`.
struct Call {
    stream: StreamId,
    position: u64,
    gate: StreamId,
    function: Function,
}

/// The functions that are yet to be called.
#[derive(Default)]
pub(crate) struct Calls {
    waiting: Mutex<Vec<Call>>,
    more: Condvar,
    /// Whether the thread has been started.
    served: AtomicBool,
}

/// Submits a function to a stream; returns the stream's position after the function's return.
pub(crate) fn put(driver: &Driver, target: Target, function: Function) -> Api<u64> {
    let (_, device) = device_of(&driver.inner(), target.context)?;
    let gate = driver
        .node
        .lock()
        .create_stream(driver.process, device, 0, Order::NonBlocking, 0)
        .map_err(queue_error)?;
    let wait = Op::wait(gate, 1);
    let end = driver.node.submit(target.id, wait).map_err(|error| {
        let _ = driver.node.lock().destroy_stream(gate);
        queue_error(error)
    })?;
    let calls = &driver.host_calls;
    let call = Call { stream: target.id, position: end - 1, gate, function };
    calls.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    if !calls.served.swap(true, Relaxed) {
        let named = std::thread::Builder::new().name("fake-cuda-host".into());
        let started = without_signals(|| named.spawn(serve)).is_ok();
        calls.served.store(started, Relaxed);
        ensure(started, CuResult::OPERATING_SYSTEM)?;
    }
    calls.more.notify_one();
    Ok(end)
}

/// Runs `body` with all signals blocked: a new thread inherits the mask, and the driver's thread must not handle the
/// program's signals.
pub(crate) fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero sets are valid memory for a mask; the old mask is restored on the same
    // thread.
    unsafe {
        let (mut all, mut old) = (core::mem::zeroed(), core::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut old);
        let result = body();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, core::ptr::null_mut());
        result
    }
}

/// The body of the driver's thread.
fn serve() {
    let Ok(driver) = driver() else { return };
    thread::enter_callbacks();
    let calls = &driver.host_calls;
    loop {
        let mut waiting = calls.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut least = u64::MAX;
        let ready = {
            let node = driver.node.lock();
            waiting.iter().position(|call| {
                let left = node.least_time(call.stream, call.position);
                least = least.min(left);
                node.passed(call.stream.slot, call.stream.generation, call.position)
            })
        };
        if LIFE.load(Acquire) == TAKEN_DOWN {
            // The streams ended because the process was unregistered, not because their work is done.
            return;
        }
        let Some(ready) = ready else {
            let pause = Duration::from_nanos(least.clamp(20_000, 20_000_000));
            drop(calls.more.wait_timeout(waiting, pause));
            continue;
        };
        let call = waiting.remove(ready);
        drop(waiting);
        call.function.call();
        let mut node = driver.node.lock();
        // An operation that ends at once, so that the stream behind the gate continues.
        let _ = node.push(call.gate, Op::wait(StreamId { slot: NONE, generation: 0 }, 0));
        let _ = node.destroy_stream(call.gate);
    }
}

/// `cuLaunchHostFunc_v2`: the host's way of waiting makes no difference here.
pub(crate) extern "C" fn launch_in_mode<const P: bool>(
    stream: cuda::Stream,
    function: Option<extern "C" fn(*mut c_void)>,
    data: *mut c_void,
    mode: c_uint,
) -> CuResult {
    if mode > 1 { CuResult::INVALID_VALUE } else { launch::<P>(stream, function, data) }
}

pub(crate) extern "C" fn launch<const P: bool>(
    stream: cuda::Stream,
    function: Option<extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> CuResult {
    api(|| {
        let driver = driver()?;
        let function = Function::of(HostNodeParams { function, user_data: data })?;
        let target = {
            let inner = &mut *driver.inner();
            let target = stream::target::<P>(driver, inner, stream)?;
            if capture::add(inner, target, |_, _| Ok(Work::Host(function)))? {
                return Ok(());
            }
            target
        };
        put(driver, target, function).map(|_| ())
    })
}

/// `cuStreamAddCallback`, which cannot be captured.
pub(crate) extern "C" fn add_callback<const P: bool>(
    stream: cuda::Stream,
    function: Option<StreamCallback>,
    data: *mut c_void,
    flags: c_uint,
) -> CuResult {
    api(|| {
        let driver = driver()?;
        let function = function.ok_or(CuResult::INVALID_VALUE)?;
        ensure(flags == 0, CuResult::INVALID_VALUE)?;
        let target = {
            let inner = &mut *driver.inner();
            let target = stream::target::<P>(driver, inner, stream)?;
            capture::forbid_on(inner, target)?;
            target
        };
        let (stream, data) = (stream as u64, data as u64);
        put(driver, target, Function::Callback { function, stream, data }).map(|_| ())
    })
}

//! Stream memory operations ("Stream Memory Operations"): streams that wait for values in host memory, and write them.
//!
//! Any thread or process may store the value for which a stream waits, without telling the driver, or read what a
//! stream writes. A thread of the driver polls the memory while a stream waits, and sleeps otherwise.

use core::ffi::c_uint;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use driver::cuda::{self, CuResult, DevicePtr, StreamOperation};
use fake_node::layout::StreamId;
use fake_node::values::{Condition, Value, Word};

use crate::ffi::{Api, In, api, ensure};
use crate::memory::{self, Kind};
use crate::state::{Driver, Inner, driver, queue_error};
use crate::{capture, host_calls, stream};

/// `CU_STREAM_WAIT_VALUE_FLUSH`
const FLUSH: c_uint = 1 << 30;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`
const NO_BARRIER: c_uint = 1;
/// The most operations in one batch.
const BATCH: c_uint = 256;

/// The thread that polls the memory.
#[derive(Default)]
pub(crate) struct Watch {
    started: AtomicBool,
}

/// One operation of a stream.
#[derive(Clone, Copy)]
enum Operation {
    Wait(Value),
    Write(DevicePtr, Word),
    /// Earlier writes become visible before later ones, which is always so here.
    Barrier,
}

/// `CUstreamWaitValue_flags`. The device cannot flush remote writes
/// (`CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES`).
fn condition(flags: c_uint) -> Api<Condition> {
    let condition = match flags & !FLUSH {
        0 => Condition::AtLeast,
        1 => Condition::Equal,
        2 => Condition::And,
        3 => Condition::Nor,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    ensure(flags & FLUSH == 0, CuResult::NOT_SUPPORTED)?;
    Ok(condition)
}

/// Checks that the address is in host memory. Copies to device memory take effect at the call instead of in stream
/// order, so a wait there could end too soon.
fn check(inner: &Inner, address: DevicePtr, size: u64) -> Api {
    ensure(address.is_multiple_of(size), CuResult::INVALID_VALUE)?;
    let (base, found) = memory::find(inner, address).ok_or(CuResult::INVALID_VALUE)?;
    ensure(base + found.size - address >= size, CuResult::INVALID_VALUE)?;
    match found.kind {
        Kind::Host | Kind::Registered => Ok(()),
        Kind::Managed { .. } => Err(CuResult::INVALID_VALUE),
        _ => Err(CuResult::NOT_SUPPORTED),
    }
}

impl Operation {
    fn wait(address: DevicePtr, wanted: Word, flags: c_uint) -> Api<Self> {
        Ok(Self::Wait(Value { address, wanted, condition: condition(flags)? }))
    }

    fn write(address: DevicePtr, value: Word, flags: c_uint) -> Api<Self> {
        ensure(flags & !NO_BARRIER == 0, CuResult::INVALID_VALUE)?;
        Ok(Self::Write(address, value))
    }

    fn of(params: &StreamOperation) -> Api<Self> {
        let (narrow, wide) = (Word::Narrow(params.value as u32), Word::Wide(params.value));
        match params.operation {
            1 => Self::wait(params.address, narrow, params.flags),
            2 => Self::write(params.address, narrow, params.flags),
            // Flushing remote writes: see `condition`.
            3 => Err(CuResult::NOT_SUPPORTED),
            4 => Self::wait(params.address, wide, params.flags),
            5 => Self::write(params.address, wide, params.flags),
            6 => {
                ensure(params.barrier <= 1, CuResult::INVALID_VALUE)?;
                Ok(Self::Barrier)
            }
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    fn check(&self, inner: &Inner) -> Api {
        match self {
            Self::Wait(value) => check(inner, value.address, value.wanted.size()),
            Self::Write(address, value) => check(inner, *address, value.size()),
            Self::Barrier => Ok(()),
        }
    }

    fn put(self, driver: &Driver, stream: StreamId) -> Api {
        // SAFETY: `check` found memory that the program vouched for or the driver made; `forget` is
        // called before it goes away. A program that frees it during this call has broken the
        // driver API's rules.
        let put = unsafe {
            match self {
                Self::Wait(value) => driver.node.wait_for_value(stream, value),
                Self::Write(address, value) => driver.node.write_value(stream, address, value),
                Self::Barrier => Ok(()),
            }
        };
        put.map_err(queue_error)
    }
}

/// Starts the thread at the first use.
fn watch(driver: &Driver) -> Api {
    let started = &driver.watch.started;
    if !started.load(Relaxed) && !started.swap(true, Relaxed) {
        let serve = || {
            if let Ok(driver) = crate::state::driver() {
                driver.node.watch_values();
            }
        };
        let named = std::thread::Builder::new().name("fake-cuda-words".into());
        let made = host_calls::without_signals(|| named.spawn(serve)).is_ok();
        started.store(made, Relaxed);
        ensure(made, CuResult::OPERATING_SYSTEM)?;
    }
    Ok(())
}

/// Submits operations to a stream. Not supported in a capture: graphs have no such nodes here.
fn put<const P: bool>(
    stream: cuda::Stream,
    operations: impl FnOnce() -> Api<Vec<Operation>>,
) -> Api {
    let driver = driver()?;
    let (id, operations) = {
        let inner = &mut *driver.inner();
        let target = stream::target::<P>(driver, inner, stream)?;
        ensure(driver.node.config().memory_ops != 0, CuResult::NOT_SUPPORTED)?;
        let operations = operations()?;
        for operation in &operations {
            operation.check(inner)?;
        }
        let captured = capture::enter(inner, target)?.is_some();
        ensure(!captured, CuResult::NOT_SUPPORTED)?;
        (target.id, operations)
    };
    watch(driver)?;
    operations.into_iter().try_for_each(|operation| operation.put(driver, id))
}

/// `cuStreamWaitValue32`
pub(crate) extern "C" fn wait_32<const P: bool>(
    stream: cuda::Stream,
    address: DevicePtr,
    wanted: u32,
    flags: c_uint,
) -> CuResult {
    api(|| put::<P>(stream, || Ok(vec![Operation::wait(address, Word::Narrow(wanted), flags)?])))
}

/// `cuStreamWaitValue64`
pub(crate) extern "C" fn wait_64<const P: bool>(
    stream: cuda::Stream,
    address: DevicePtr,
    wanted: u64,
    flags: c_uint,
) -> CuResult {
    api(|| put::<P>(stream, || Ok(vec![Operation::wait(address, Word::Wide(wanted), flags)?])))
}

/// `cuStreamWriteValue32`
pub(crate) extern "C" fn write_32<const P: bool>(
    stream: cuda::Stream,
    address: DevicePtr,
    value: u32,
    flags: c_uint,
) -> CuResult {
    api(|| put::<P>(stream, || Ok(vec![Operation::write(address, Word::Narrow(value), flags)?])))
}

/// `cuStreamWriteValue64`
pub(crate) extern "C" fn write_64<const P: bool>(
    stream: cuda::Stream,
    address: DevicePtr,
    value: u64,
    flags: c_uint,
) -> CuResult {
    api(|| put::<P>(stream, || Ok(vec![Operation::write(address, Word::Wide(value), flags)?])))
}

/// `cuStreamBatchMemOp`: all operations, or none if one is invalid.
pub(crate) extern "C" fn batch<const P: bool>(
    stream: cuda::Stream,
    count: c_uint,
    list: In<StreamOperation>,
    flags: c_uint,
) -> CuResult {
    api(|| {
        put::<P>(stream, || {
            ensure(flags == 0 && count <= BATCH, CuResult::INVALID_VALUE)?;
            list.list(count as usize)?.iter().map(Operation::of).collect()
        })
    })
}

/// Stops accessing host memory that goes away. A stream that still waits there waits for ever, unless the value was
/// seen before.
pub(crate) fn forget(driver: &Driver, base: u64, size: u64) {
    driver.node.forget_values(base, base + size);
}

//! Stream memory operations ("Stream Memory Operations"). One is simulated: waiting for a 32-bit
//! value in host memory.
//!
//! A program stores the value without telling the driver, and no device here checks the memory. So
//! the store is seen at the program's next call, and during calls that wait. The waiting stream
//! goes on from then.

use core::ffi::c_uint;

use driver::cuda::{self, CuResult, DevicePtr};
use fake_node::values::{Condition, Value};

use crate::ffi::{Api, api, ensure};
use crate::memory::{self, Kind};
use crate::state::{Driver, Inner, driver, queue_error};
use crate::{capture, stream};

/// `CU_STREAM_WAIT_VALUE_FLUSH`
const FLUSH: c_uint = 1 << 30;

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

/// The address must be in host memory. Copies to device memory take effect when they are called,
/// not in stream order, so a wait there could end too soon.
fn check(inner: &Inner, address: DevicePtr) -> Api {
    ensure(address.is_multiple_of(4), CuResult::INVALID_VALUE)?;
    let (base, found) = memory::find(inner, address).ok_or(CuResult::INVALID_VALUE)?;
    ensure(base + found.size - address >= 4, CuResult::INVALID_VALUE)?;
    match found.kind {
        Kind::Host | Kind::Registered => Ok(()),
        Kind::Managed { .. } => Err(CuResult::INVALID_VALUE),
        _ => Err(CuResult::NOT_SUPPORTED),
    }
}

/// `cuStreamWaitValue32`. In a capture, a wait would be a node of its own kind, which graphs do not
/// have here: not supported.
pub(crate) extern "C" fn wait_value<const P: bool>(
    stream: cuda::Stream,
    address: DevicePtr,
    wanted: c_uint,
    flags: c_uint,
) -> CuResult {
    api(|| {
        let driver = driver()?;
        let (id, value) = {
            let inner = &mut *driver.inner();
            let target = stream::target::<P>(driver, inner, stream)?;
            let condition = condition(flags)?;
            check(inner, address)?;
            let captured = capture::enter(inner, target)?.is_some();
            ensure(!captured, CuResult::NOT_SUPPORTED)?;
            (target.id, Value { address, wanted, condition })
        };
        // SAFETY: `check` found memory that the program vouched for or the driver made; `forget` is
        // called before it goes away. A program that frees it during this call has broken the
        // driver API's rules.
        unsafe { driver.node.wait_for_value(id, value) }.map_err(queue_error)
    })
}

/// Host memory goes away, and is not checked any more. A stream that still waits there waits for
/// ever, unless the value was seen before.
pub(crate) fn forget(driver: &Driver, base: u64, size: u64) {
    driver.node.forget_values(base, base + size);
}

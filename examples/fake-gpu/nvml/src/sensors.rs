//! Power, temperature and clocks: plausible figures derived from the utilization.

use core::ffi::{c_uint, c_ulonglong};

use driver::nvml::{NvmlDevice, NvmlReturn};

use crate::device::known;
use crate::ffi::{Api, Out, api};
use crate::system::node;

/// A device's power limit and its power when idle, in milliwatts.
const LIMIT_MW: c_uint = 700_000;
const IDLE_MW: c_uint = 70_000;
/// Its temperature when idle and when busy, in degrees Celsius.
const IDLE_C: c_uint = 32;
const BUSY_C: c_uint = 70;
/// Clocks in MHz: of the multiprocessors when idle and when busy, and of the memory.
const IDLE_MHZ: c_uint = 345;
const BUSY_MHZ: c_uint = 1980;
const MEMORY_MHZ: c_uint = 3201;
/// `nvmlClocksThrottleReasonGpuIdle`
const IDLE: c_ulonglong = 1;

/// Utilization of the last full period, in percent.
fn utilization(device: NvmlDevice) -> Api<c_uint> {
    let index = known(device)?;
    Ok(node()?.lock().utilization(index))
}

pub(crate) extern "C" fn power(device: NvmlDevice, to: Out<c_uint>) -> NvmlReturn {
    api(|| to.put(IDLE_MW + (LIMIT_MW - IDLE_MW) / 100 * utilization(device)?))
}

pub(crate) extern "C" fn power_limit(device: NvmlDevice, to: Out<c_uint>) -> NvmlReturn {
    api(|| {
        known(device)?;
        to.put(LIMIT_MW)
    })
}

/// `nvmlDeviceGetTemperature`: the only sensor is the chip's.
pub(crate) extern "C" fn temperature(
    device: NvmlDevice,
    sensor: c_uint,
    to: Out<c_uint>,
) -> NvmlReturn {
    api(|| {
        if sensor != 0 {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        to.put(IDLE_C + (BUSY_C - IDLE_C) * utilization(device)? / 100)
    })
}

/// `nvmlDeviceGetTemperatureThreshold`: the same value for all thresholds.
pub(crate) extern "C" fn temperature_threshold(
    device: NvmlDevice,
    kind: c_uint,
    to: Out<c_uint>,
) -> NvmlReturn {
    const KINDS: c_uint = 8;
    const HOT_C: c_uint = 90;
    api(|| {
        known(device)?;
        if kind >= KINDS {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        to.put(HOT_C)
    })
}

fn clock(kind: c_uint, busy: bool) -> Api<c_uint> {
    match kind {
        0 | 1 | 3 => Ok(if busy { BUSY_MHZ } else { IDLE_MHZ }),
        2 => Ok(MEMORY_MHZ),
        _ => Err(NvmlReturn::INVALID_ARGUMENT),
    }
}

pub(crate) extern "C" fn clock_info(
    device: NvmlDevice,
    kind: c_uint,
    to: Out<c_uint>,
) -> NvmlReturn {
    api(|| to.put(clock(kind, utilization(device)? > 0)?))
}

pub(crate) extern "C" fn most_clock_info(
    device: NvmlDevice,
    kind: c_uint,
    to: Out<c_uint>,
) -> NvmlReturn {
    api(|| {
        known(device)?;
        to.put(clock(kind, true)?)
    })
}

/// `nvmlDeviceGetCurrentClocksThrottleReasons`: an idle device is clocked down because it is idle.
pub(crate) extern "C" fn throttle_reasons(device: NvmlDevice, to: Out<c_ulonglong>) -> NvmlReturn {
    api(|| to.put(if utilization(device)? == 0 { IDLE } else { 0 }))
}

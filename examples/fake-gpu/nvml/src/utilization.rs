//! Utilization, of devices and of processes.

use core::ffi::c_uint;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use driver::nvml::{
    NvmlDevice, NvmlReturn, PROCESSES_UTILIZATION_VERSION, ProcessUtilizationInfo,
    ProcessUtilizationSample, ProcessesUtilizationInfo,
};
use fake_node::node::clock;
use fake_node::usage::ProcessSample;

use crate::device::known;
use crate::ffi::{Api, Out, api};
use crate::system::node;
use crate::view::shown_pid;

/// `nvmlUtilization_t`, in percent.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Rates {
    gpu: c_uint,
    memory: c_uint,
}

/// Microseconds from the simulation's clock to the calendar's. Fixed once, so that a sample's time never changes.
fn offset() -> u64 {
    static OFFSET: OnceLock<u64> = OnceLock::new();
    *OFFSET.get_or_init(|| {
        let calendar = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (calendar.as_micros() as u64).saturating_sub(clock() / 1000)
    })
}

pub(crate) extern "C" fn rates(device: NvmlDevice, to: Out<Rates>) -> NvmlReturn {
    api(|| {
        let index = known(device)?;
        let gpu = node()?.lock().utilization(index);
        // As if each kernel accessed memory half of the time.
        to.put(Rates { gpu, memory: gpu / 2 })
    })
}

/// Encoder and decoder, which nothing uses.
pub(crate) extern "C" fn no_engine(
    device: NvmlDevice,
    percent: Out<c_uint>,
    period_us: Out<c_uint>,
) -> NvmlReturn {
    const PERIOD_US: c_uint = 167_000;
    api(|| {
        known(device)?;
        percent.put(0)?;
        period_us.put(PERIOD_US)
    })
}

/// The newest sample of each process after `last_seen` (microseconds).
fn newest(device: NvmlDevice, last_seen: u64) -> Api<Vec<ProcessSample>> {
    let index = known(device)?;
    let since = last_seen.saturating_sub(offset()).saturating_mul(1000);
    let mut found: Vec<ProcessSample> = Vec::new();
    for sample in node()?.lock_reaped().process_samples(index, since) {
        match found.iter_mut().find(|older| older.pid == sample.pid) {
            Some(older) => *older = sample,
            None => found.push(sample),
        }
    }
    // The caller's time has a resolution of microseconds.
    found.retain(|sample| sample.end_ns / 1000 + offset() > last_seen);
    Ok(found)
}

fn time(sample: &ProcessSample) -> u64 {
    sample.end_ns / 1000 + offset()
}

/// Fills a caller's list; `NOT_FOUND` without samples, `INSUFFICIENT_SIZE` with the required length if it is too short.
fn fill<T>(
    found: &[ProcessSample],
    room: c_uint,
    to: Out<T>,
    count: impl Fn(c_uint) -> Api,
    one: impl Fn(&ProcessSample, u32) -> T,
) -> Api {
    count(found.len() as c_uint)?;
    if found.is_empty() {
        return Err(NvmlReturn::NOT_FOUND);
    }
    if to.is_null() || (room as usize) < found.len() {
        return Err(NvmlReturn::INSUFFICIENT_SIZE);
    }
    for (index, sample) in found.iter().enumerate() {
        to.put_at(index, one(sample, shown_pid(sample.pid)?))?;
    }
    Ok(())
}

pub(crate) extern "C" fn processes(
    device: NvmlDevice,
    to: Out<ProcessUtilizationSample>,
    count: Out<c_uint>,
    last_seen: u64,
) -> NvmlReturn {
    api(|| {
        let (found, room) = (newest(device, last_seen)?, count.get()?);
        let one = |sample: &ProcessSample, pid| ProcessUtilizationSample {
            pid,
            time: time(sample),
            kernels: sample.percent,
            ..ProcessUtilizationSample::default()
        };
        fill(&found, room, to, |length| count.put(length), one)
    })
}

pub(crate) extern "C" fn processes_info(
    device: NvmlDevice,
    of: Out<ProcessesUtilizationInfo>,
) -> NvmlReturn {
    api(|| {
        let asked = of.get()?;
        if asked.version != PROCESSES_UTILIZATION_VERSION {
            return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
        }
        let found = newest(device, asked.last_seen)?;
        let one = |sample: &ProcessSample, pid| ProcessUtilizationInfo {
            pid,
            time: time(sample),
            kernels: sample.percent,
            ..ProcessUtilizationInfo::default()
        };
        let count = |count| of.put(ProcessesUtilizationInfo { count, ..asked });
        fill(&found, asked.count, Out::new(asked.list), count, one)
    })
}

//! Utilisation, of the device and by process.

use core::ffi::c_uint;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use fake_node::node::clock;
use fake_node::usage::ProcessSample;
use utils::driver::nvml::{NvmlDevice, NvmlReturn};

use crate::device::known;
use crate::ffi::{Api, Out, api};
use crate::system::node;

/// `nvmlUtilization_t`, in percent.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Rates {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlProcessUtilizationSample_t`, times in microseconds since 1970, the rest in percent.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pid: c_uint,
    time: u64,
    kernels: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
}

/// Microseconds from the simulation's clock to the calendar's; fixed once, so that a sample keeps
/// its time.
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
        to.put(Rates { gpu, memory: 0 })
    })
}

/// The newest sample of each process after `last_seen`.
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
    // The caller's time has microseconds only.
    found.retain(|sample| sample.end_ns / 1000 + offset() > last_seen);
    Ok(found)
}

pub(crate) extern "C" fn processes(
    device: NvmlDevice,
    to: Out<Sample>,
    count: Out<c_uint>,
    last_seen: u64,
) -> NvmlReturn {
    api(|| {
        let found = newest(device, last_seen)?;
        let room = count.get()?;
        if found.is_empty() {
            count.put(0)?;
            return Err(NvmlReturn::NOT_FOUND);
        }
        count.put(found.len() as c_uint)?;
        if to.is_null() || (room as usize) < found.len() {
            return Err(NvmlReturn::INSUFFICIENT_SIZE);
        }
        for (index, sample) in found.iter().enumerate() {
            to.put_at(
                index,
                Sample {
                    pid: sample.pid,
                    time: sample.end_ns / 1000 + offset(),
                    kernels: sample.percent,
                    memory: 0,
                    encoder: 0,
                    decoder: 0,
                },
            )?;
        }
        Ok(())
    })
}

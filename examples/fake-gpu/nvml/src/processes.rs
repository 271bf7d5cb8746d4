//! Lists of processes.

use core::ffi::{c_uint, c_void};

use utils::driver::nvml::{NvmlDevice, NvmlReturn, ProcessInfoV1, ProcessInfoV2};

use crate::device::known;
use crate::ffi::{Api, Out, api};
use crate::system::node;

/// Without MIG there are no instances.
const NO_INSTANCE: c_uint = u32::MAX;

/// Fills a caller's list: one that is too short gets the length that is needed.
fn fill<T>(count: Out<c_uint>, to: Out<T>, found: &[(u32, u64)], one: fn(u32, u64) -> T) -> Api {
    let room = count.get()?;
    count.put(found.len() as c_uint)?;
    if (room as usize) < found.len() {
        return Err(NvmlReturn::INSUFFICIENT_SIZE);
    }
    for (index, &(pid, bytes)) in found.iter().enumerate() {
        to.put_at(index, one(pid, bytes))?;
    }
    Ok(())
}

/// Processes with a context on the device, and what they hold.
fn with_context(device: NvmlDevice) -> Api<Vec<(u32, u64)>> {
    let index = known(device)? as usize;
    let state = node()?.lock_reaped();
    let mark = state.process_mark as usize;
    Ok(state.processes[..mark]
        .iter()
        .filter(|process| process.state == 1 && process.clients[index].contexts > 0)
        .map(|process| (process.pid, process.clients[index].memory))
        .collect())
}

pub(crate) extern "C" fn compute_v1(
    device: NvmlDevice,
    count: Out<c_uint>,
    to: Out<ProcessInfoV1>,
) -> NvmlReturn {
    api(|| {
        let found = with_context(device)?;
        fill(count, to, &found, |pid, used_gpu_memory| ProcessInfoV1 { pid, used_gpu_memory })
    })
}

pub(crate) extern "C" fn compute(
    device: NvmlDevice,
    count: Out<c_uint>,
    to: Out<ProcessInfoV2>,
) -> NvmlReturn {
    api(|| {
        let found = with_context(device)?;
        fill(count, to, &found, |pid, used_gpu_memory| ProcessInfoV2 {
            pid,
            used_gpu_memory,
            gpu_instance_id: NO_INSTANCE,
            compute_instance_id: NO_INSTANCE,
        })
    })
}

/// Graphics and MPS processes: there are none.
pub(crate) extern "C" fn none(
    device: NvmlDevice,
    count: Out<c_uint>,
    _to: Out<c_void>,
) -> NvmlReturn {
    api(|| {
        known(device)?;
        count.put(0)
    })
}

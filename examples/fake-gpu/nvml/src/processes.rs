//! The lists of processes.

use core::ffi::{c_uint, c_void};

use driver::nvml::{
    NvmlDevice, NvmlReturn, PROCESS_DETAIL_LIST_VERSION, ProcessDetail, ProcessDetailList,
    ProcessInfoV1, ProcessInfoV2,
};
use fake_node::asked;
use fake_node::layout::Process;

use crate::device::known;
use crate::ffi::{Api, Out, api};
use crate::system::node;
use crate::view::{pass_half, shown_bytes, shown_pid};

/// Without MIG, entries name no GPU or compute instance.
const NO_INSTANCE: c_uint = u32::MAX;

/// Fills a caller's list; the caller of too short a list gets the required length.
fn fill<T>(count: Out<c_uint>, to: Out<T>, found: &[(u32, u64)], one: fn(u32, u64) -> T) -> Api {
    let room = count.get()?;
    if to.is_null() && room > 0 {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    count.put(found.len() as c_uint)?;
    if (room as usize) < found.len() {
        return Err(NvmlReturn::INSUFFICIENT_SIZE);
    }
    for (index, &(pid, bytes)) in found.iter().enumerate() {
        to.put_at(index, one(pid, bytes))?;
    }
    Ok(())
}

/// The processes with a context on the device, and the bytes of each.
fn with_context(device: NvmlDevice) -> Api<Vec<(u32, u64)>> {
    let index = known(device)? as usize;
    asked::note(asked::PROCESSES);
    pass_half()?;
    let found = {
        let state = node()?.lock_reaped();
        let mark = state.process_mark as usize;
        let client = |(slot, process): (usize, &Process)| {
            let bytes = process.clients[index].memory + state.inherited(slot as u32, index as u32);
            Ok((shown_pid(process.pid)?, shown_bytes(bytes)?))
        };
        state.processes[..mark]
            .iter()
            .enumerate()
            .filter(|(_, process)| process.state == 1 && process.clients[index].contexts > 0)
            .map(client)
            .collect()
    };
    pass_half()?;
    found
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

/// Graphics and MPS processes, of which there are none.
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

/// `nvmlDeviceGetRunningProcessDetailList`
pub(crate) extern "C" fn details(device: NvmlDevice, of: Out<ProcessDetailList>) -> NvmlReturn {
    /// The last value of `nvmlProcessMode_t`. Only this one and 0 list processes here.
    const ALL: c_uint = 3;
    api(|| {
        let asked = of.get()?;
        if asked.version != PROCESS_DETAIL_LIST_VERSION {
            return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
        }
        let found = match asked.mode {
            0 | ALL => with_context(device)?,
            1 | 2 => known(device).map(|_| Vec::new())?,
            _ => return Err(NvmlReturn::INVALID_ARGUMENT),
        };
        of.put(ProcessDetailList { count: found.len() as c_uint, ..asked })?;
        if (asked.count as usize) < found.len() {
            return Err(NvmlReturn::INSUFFICIENT_SIZE);
        }
        let to = Out::new(asked.list);
        for (index, &(pid, used_gpu_memory)) in found.iter().enumerate() {
            let detail = ProcessDetail {
                pid,
                used_gpu_memory,
                gpu_instance_id: NO_INSTANCE,
                compute_instance_id: NO_INSTANCE,
                used_protected_memory: 0,
            };
            to.put_at(index, detail)?;
        }
        Ok(())
    })
}

//! The table of private functions that `nvidia-smi` uses, with one function: the pids of the processes on a device.
//! Like the real one, it calls the kernel driver by `ioctl`, which fails on a machine without the driver. So a
//! replacement of `ioctl` is needed, as in the limiter's tests.

use core::ffi::{c_uint, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;

use driver::nvml::{NvmlDevice, NvmlReturn};

use crate::device::known;
use crate::ffi::{Api, Out, api};

/// The table's id in driver 580.159.
const ID: [u8; 16] = [
    0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4,
];

/// `NVOS54_PARAMETERS`
#[repr(C)]
struct Control {
    client: u32,
    object: u32,
    command: u32,
    flags: u32,
    parameters: u64,
    size: u32,
    status: u32,
}

/// `NV2080_CTRL_GPU_GET_PIDS_PARAMS`
#[repr(C)]
struct Pids {
    id_type: u32,
    id: u32,
    count: u32,
    pids: [u32; 950],
}

/// `NV_ESC_RM_CONTROL`, `NV2080_CTRL_CMD_GPU_GET_PIDS`, and `NV20_SUBDEVICE_0`, which every process with a context has.
const CONTROL: libc::Ioctl = libc::_IOWR::<Control>(b'F' as u32, 0x2A);
const GET_PIDS: u32 = 0x2080_018D;
const ALL: u32 = 0x2080;

#[repr(transparent)]
struct Table([*const c_void; 2]);

// SAFETY: a size and the address of a function.
unsafe impl Sync for Table {}

/// The table: its size in bytes, and its function.
static TABLE: Table =
    Table([core::ptr::without_provenance(size_of::<Table>()), pids as *const c_void]);

pub(crate) extern "C" fn get(table: Out<*const c_void>, id: Out<[u8; 16]>) -> NvmlReturn {
    api(|| {
        if id.get()? != ID {
            return Err(NvmlReturn::NOT_FOUND);
        }
        table.put((&raw const TABLE).cast())
    })
}

/// The private function. The handle of a device's object is the device's index.
extern "C" fn pids(device: NvmlDevice, count: Out<c_uint>, to: Out<c_uint>) -> NvmlReturn {
    api(|| {
        let asked = asked(known(device)?)?;
        let found = asked.pids.get(..asked.count as usize).ok_or(NvmlReturn::UNKNOWN)?;
        let room = count.get()? as usize;
        count.put(asked.count)?;
        if room < found.len() {
            return Err(NvmlReturn::INSUFFICIENT_SIZE);
        }
        found.iter().enumerate().try_for_each(|(index, &pid)| to.put_at(index, pid))
    })
}

fn asked(device: u32) -> Api<Box<Pids>> {
    let file = File::open("/dev/null").map_err(|_| NvmlReturn::UNKNOWN)?;
    let mut pids = Box::new(Pids { id_type: 0, id: ALL, count: 0, pids: [0; 950] });
    let mut control = Control {
        client: 1,
        object: device,
        command: GET_PIDS,
        flags: 0,
        parameters: (&raw mut *pids) as u64,
        size: size_of::<Pids>() as u32,
        status: 0,
    };
    // SAFETY: a question with parameters of the size that it says.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), CONTROL, &raw mut control) };
    match (result, control.status) {
        (0, 0) => Ok(pids),
        (0, 0x1B) => Err(NvmlReturn::NO_PERMISSION),
        _ => Err(NvmlReturn::UNKNOWN),
    }
}

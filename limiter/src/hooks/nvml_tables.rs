//! The process lists of `nvidia-smi` and similar tools, which use private functions of NVML.
//!
//! Numbers and arguments of private functions differ between drivers, but their requests to the kernel driver do not:
//! they are in the headers of NVIDIA's open kernel modules. So in processes that have asked for a table of private
//! functions, NVML's own calls of `ioctl` are intercepted, and the pids of processes outside the session are removed
//! from the answers.

use super::Call;
use super::nvml::limited;
use crate::device::Device;
use crate::driver_calls::{library, nvml};
use crate::memory::seen;
use crate::process::{self, Process};
use crate::verdict::Verdict;
use core::ffi::{c_int, c_ulong, c_void};
use core::{mem, slice};
use driver::nvml::NvmlReturn;
use hook::Slot;
use std::panic::{self, AssertUnwindSafe};

macros::hooks! {
    /// NVML, private tables of functions: their lists show processes of the session only.
    library Nvml;

    fn nvmlInternalGetExportTable(table: *mut *const c_void, id: *const c_void) -> NvmlReturn = export_table;
}

fn export_table(
    call: Call<signature::nvmlInternalGetExportTable>,
    table: *mut *const c_void,
    id: *const c_void,
) -> NvmlReturn {
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(table, id) };
    if result.is_ok() && !matches!(call.process.nvml(), Verdict::Free) {
        look_at_questions(call.process);
    }
    result
}

/// `NV_ESC_RM_CONTROL`
const CONTROL: u32 = libc::_IOWR::<Control>(b'F' as u32, 0x2A) as u32;
/// `NV2080_CTRL_CMD_GPU_GET_PIDS`
const GET_PIDS: u32 = 0x2080_018D;
/// `NV2080_CTRL_CMD_GPU_GET_GID_INFO`
const GET_GID: u32 = 0x2080_014A;
/// `NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY`
const BINARY: u32 = 2;
/// `NVOS54_FLAGS_FINN_SERIALIZED`: the parameters have another form.
const SERIALIZED: u32 = 4;
/// `NV_ERR_INSUFFICIENT_PERMISSIONS`
const NOT_PERMITTED: u32 = 0x1B;

/// `NVOS54_PARAMETERS`
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control {
    client: u32,
    object: u32,
    command: u32,
    flags: u32,
    parameters: u64,
    size: u32,
    status: u32,
}

const _: () = assert!(size_of::<Control>() == 32);

/// `NV2080_CTRL_GPU_GET_PIDS_PARAMS`, without the pids that follow.
#[repr(C)]
struct Pids {
    id_type: u32,
    id: u32,
    count: u32,
}

/// `NV2080_CTRL_GPU_GET_GID_INFO_PARAMS`
#[repr(C)]
struct Gid {
    index: u32,
    flags: u32,
    length: u32,
    data: [u8; 256],
}

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// The function that NVML called as `ioctl`. Static, because NVML stays loaded in a forked child.
static IOCTL: Slot = Slot::new();

/// Redirects NVML's `ioctl`. Its devices are registered first, because NVML cannot be queried within such a call.
fn look_at_questions(process: &'static Process) {
    let Some(nvml) = library::nvml_once() else { return };
    for device in nvml::devices() {
        let _ = limited(process, device);
    }
    // SAFETY: it is being called, so it has been relocated and stays loaded. The detour has the C library's signature.
    if let Err(error) = unsafe { nvml.redirect(c"ioctl", ioctl as *const c_void, &IOCTL) } {
        tracing::warn!("{error}; private functions of NVML list the processes of all sessions");
    }
}

/// Replaces `ioctl` in NVML.
unsafe extern "C" fn ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: filled before the first call can arrive, with a function of this signature.
    let original = unsafe { mem::transmute::<*const c_void, Ioctl>(IOCTL.get()) };
    // SAFETY: NVML's own arguments.
    let result = unsafe { original(file, request, argument) };
    if result != 0 || request as u32 != CONTROL || argument.is_null() || nvml::wants_all() {
        return result;
    }
    // SAFETY: the kernel has answered a question of this form.
    let control = unsafe { &mut *argument.cast::<Control>() };
    if control.command == GET_PIDS && control.status == 0 {
        // Must not change `errno`, which NVML reads.
        // SAFETY: this thread's own.
        let errno = unsafe { *libc::__errno_location() };
        let before = super::cancellation::put_off();
        let ask = |own: &mut Control| {
            // SAFETY: a question to the same driver, with parameters of the size that it says.
            unsafe { original(file, request, (&raw mut *own).cast()) == 0 && own.status == 0 }
        };
        if panic::catch_unwind(AssertUnwindSafe(|| answered(control, ask))).is_err() {
            tracing::warn!(
                "internal error while filtering NVML's list of processes; the list stays unfiltered"
            );
        }
        super::cancellation::allow_again(before);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    result
}

/// Restricts an answer to the session's processes.
fn answered(control: &mut Control, ask: impl FnOnce(&mut Control) -> bool) {
    let process = process::get();
    let verdict = match process.nvml() {
        Verdict::Limited(()) => match uuid_of(control, ask) {
            Some(uuid) => process.known_device(uuid),
            None => {
                tracing::warn!(
                    "cannot find the device of NVML's list of processes; the list stays unfiltered"
                );
                Verdict::Free
            }
        },
        Verdict::Free => Verdict::Free,
        Verdict::Denied => Verdict::Denied,
    };
    match verdict {
        Verdict::Limited(device) if device.ledger.is_limited() => own_only(device, control),
        Verdict::Limited(_) | Verdict::Free => {}
        Verdict::Denied => {
            control.status = NOT_PERMITTED;
            // SAFETY: the kernel has read and written as much there.
            if let Some(list) = unsafe { list(control) } {
                keep(list, |_| false);
            }
        }
    }
}

/// The UUID of the device that a request is about, queried with the same handle.
fn uuid_of(control: &Control, ask: impl FnOnce(&mut Control) -> bool) -> Option<[u8; 16]> {
    let mut gid = Gid { index: 0, flags: BINARY, length: 0, data: [0; 256] };
    let parameters = (&raw mut gid) as u64;
    let size = size_of::<Gid>() as u32;
    let mut own = Control { command: GET_GID, parameters, size, ..*control };
    (ask(&mut own) && gid.length == 16).then(|| gid.data.first_chunk().copied()).flatten()
}

fn own_only(device: &Device, control: &Control) {
    // SAFETY: the kernel has read and written as much there.
    let Some(list) = (unsafe { list(control) }) else {
        tracing::warn!("NVML's list of processes has an unknown layout; the list stays unfiltered");
        return;
    };
    let members = seen::members(device.ledger);
    keep(list, |pid| members.iter().any(|member| member.pid == pid));
}

/// The number of pids in an answer, and the pids.
///
/// # Safety
/// `control` must have parameters of the size that it says.
unsafe fn list<'a>(control: &Control) -> Option<(&'a mut u32, &'a mut [u32])> {
    let words = control.size as usize / size_of::<u32>();
    let first: *mut u32 = core::ptr::with_exposed_provenance_mut(control.parameters as usize);
    let is_plain = control.flags & SERIALIZED == 0;
    if !is_plain
        || first.is_null()
        || !first.is_aligned()
        || words < size_of::<Pids>() / size_of::<u32>()
    {
        return None;
    }
    // SAFETY: the caller's.
    let words = unsafe { slice::from_raw_parts_mut(first, words) };
    let (head, pids) = words.split_first_chunk_mut::<3>()?;
    let [_, _, count] = head;
    let pids = pids.get_mut(..*count as usize)?;
    Some((count, pids))
}

/// Keeps the pids that `is_meant` accepts, in order, and clears the rest.
fn keep((count, pids): (&mut u32, &mut [u32]), is_meant: impl Fn(u32) -> bool) {
    let mut kept = 0;
    for index in 0..pids.len() {
        let pid = mem::take(&mut pids[index]);
        if is_meant(pid) {
            pids[kept] = pid;
            kept += 1;
        }
    }
    *count = kept as u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(parameters: &mut [u32]) -> Control {
        let (at, size) = (parameters.as_mut_ptr().expose_provenance() as u64, 4 * parameters.len());
        let size = size as u32;
        Control {
            client: 1,
            object: 2,
            command: GET_PIDS,
            flags: 0,
            parameters: at,
            size,
            status: 0,
        }
    }

    #[test]
    fn the_questions_have_the_kernels_numbers_and_sizes() {
        assert_eq!(CONTROL, 0xC020_462A);
        assert_eq!((size_of::<Pids>(), size_of::<Gid>()), (12, 268));
        assert_eq!(mem::offset_of!(Control, parameters), 16);
        assert_eq!(mem::offset_of!(Control, status), 28);
    }

    #[test]
    fn a_list_of_another_form_is_left_alone() {
        // A count beyond the list; no list; nothing at all.
        for words in [&mut [0, 0, 3, 7, 8][..], &mut [0, 0], &mut []] {
            let control = control(words);
            // SAFETY: parameters of this size.
            assert!(unsafe { list(&control) }.is_none());
        }
        let mut words = [0, 0, 1, 7];
        let serialized = Control { flags: SERIALIZED, ..control(&mut words) };
        // SAFETY: parameters of this size.
        assert!(unsafe { list(&serialized) }.is_none());
        // SAFETY: nothing is read.
        assert!(unsafe { list(&Control { parameters: 0, ..control(&mut [0; 4]) }) }.is_none());
    }

    #[test]
    fn a_device_is_asked_for_by_the_same_handle() {
        let control = control(&mut [0; 953]);
        let answer = |length: u32, is_ok: bool| {
            uuid_of(&control, |own| {
                assert_eq!((own.client, own.object, own.command, own.size), (1, 2, GET_GID, 268));
                // SAFETY: parameters of this size.
                let gid = unsafe { &mut *(own.parameters as usize as *mut Gid) };
                assert_eq!(gid.flags, BINARY);
                gid.length = length;
                gid.data[..16].copy_from_slice(b"sixteen of bytes");
                is_ok
            })
        };
        assert_eq!(answer(16, true), Some(*b"sixteen of bytes"));
        assert_eq!((answer(16, false), answer(20, true)), (None, None));
    }

    #[test]
    fn those_that_are_meant_stay_in_order() {
        for (pids, kept) in [
            (&[9, 1, 8, 2, 7, 7][..], &[9, 8, 7, 7][..]),
            (&[9, 8], &[9, 8]),
            (&[1, 2, 3], &[]),
            (&[], &[]),
            (&[1, 9], &[9]),
        ] {
            let mut words = [0; 953];
            words[..3].copy_from_slice(&[5, 6, pids.len() as u32]);
            words[3..3 + pids.len()].copy_from_slice(pids);
            let control = control(&mut words);
            // SAFETY: parameters of this size.
            keep(unsafe { list(&control) }.unwrap(), |pid| pid > 6);
            assert_eq!(words[..3], [5, 6, kept.len() as u32], "{pids:?}");
            assert_eq!(words[3..3 + kept.len()], *kept, "{pids:?}");
            assert!(words[3 + kept.len()..].iter().all(|&word| word == 0), "{pids:?}");
        }
    }
}

//! Initialisation, and functions about the whole machine.

use core::ffi::{c_char, c_int, c_uint};
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock, PoisonError};

use driver::nvml::NvmlReturn;
use fake_node::{Node, older};

use crate::ffi::{Api, Out, api, put_text};

/// `NVML_ERROR_DRIVER_NOT_LOADED`
const DRIVER_NOT_LOADED: NvmlReturn = NvmlReturn(9);
/// All flags of `nvmlInitWithFlags`.
const FLAGS: c_uint = 3;
/// The simulated driver's version and its CUDA version.
const VERSION: &str = "580.159.04";
const CUDA: c_int = 13000;

static NODE: OnceLock<Node> = OnceLock::new();
/// Calls of `nvmlInit` minus those of `nvmlShutdown`.
static USERS: AtomicU32 = AtomicU32::new(0);
static OPENING: Mutex<()> = Mutex::new(());

/// The driver's version, marked as fake.
fn version() -> String {
    format!("{}-fake", older::chosen().map_or(VERSION, |older| older.version))
}

/// The node, while the library is initialised.
pub(crate) fn node() -> Api<&'static Node> {
    if USERS.load(SeqCst) == 0 {
        return Err(NvmlReturn::UNINITIALIZED);
    }
    NODE.get().ok_or(NvmlReturn::UNINITIALIZED)
}

pub(crate) extern "C" fn init_v1() -> NvmlReturn {
    init_with_flags(0)
}

/// `nvmlInitWithFlags`. The node stays mapped after a shutdown, because reusing it is cheaper than mapping it again.
pub(crate) extern "C" fn init_with_flags(flags: c_uint) -> NvmlReturn {
    api(|| {
        if flags & !FLAGS != 0 {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        let _one_at_a_time = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        if NODE.get().is_none() {
            let node = Node::open().map_err(|_| DRIVER_NOT_LOADED)?;
            let _ = NODE.set(node);
        }
        USERS.fetch_add(1, SeqCst);
        Ok(())
    })
}

pub(crate) extern "C" fn shutdown() -> NvmlReturn {
    match USERS.fetch_update(SeqCst, SeqCst, |users| users.checked_sub(1)) {
        Ok(_) => NvmlReturn::SUCCESS,
        Err(_) => NvmlReturn::UNINITIALIZED,
    }
}

pub(crate) extern "C" fn error_string(code: NvmlReturn) -> *const c_char {
    let text = match code.0 {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        15 => c"GPU is lost",
        25 => c"Argument version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

pub(crate) extern "C" fn driver_version(to: Out<c_char>, length: c_uint) -> NvmlReturn {
    api(|| {
        node()?;
        put_text(to, length, &version())
    })
}

pub(crate) extern "C" fn nvml_version(to: Out<c_char>, length: c_uint) -> NvmlReturn {
    api(|| {
        node()?;
        let cuda = older::chosen().map_or(CUDA, |older| older.cuda) / 1000;
        put_text(to, length, &format!("{cuda}.{}", self::version()))
    })
}

pub(crate) extern "C" fn cuda_version(version: Out<c_int>) -> NvmlReturn {
    api(|| {
        node()?;
        version.put(older::chosen().map_or(CUDA, |older| older.cuda))
    })
}

/// `nvmlSystemGetProcessName`: the program's path, from the beginning of its command line.
pub(crate) extern "C" fn process_name(pid: c_uint, to: Out<c_char>, length: c_uint) -> NvmlReturn {
    api(|| {
        node()?;
        if to.is_null() || length == 0 {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        let line =
            std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NvmlReturn::NOT_FOUND)?;
        let name = line.split(|&byte| byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        let end = (0..=name.len().min(length as usize - 1))
            .rev()
            .find(|&at| name.is_char_boundary(at))
            .unwrap_or(0);
        put_text(to, length, &name[..end])
    })
}

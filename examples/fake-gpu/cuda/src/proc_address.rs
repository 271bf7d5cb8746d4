//! `cuGetProcAddress`: returns the newest form of a function that a program of a given CUDA version knows.

use core::ffi::{c_int, c_uint, c_void};

use driver::cuda::{CuResult, PROC_ADDRESS_PER_THREAD_STREAM};
use fake_node::older;

use crate::exports::TABLE;
use crate::ffi::{Api, Out, Text, api, ensure};
use crate::stub::Entry;

/// `CUdriverProcAddressQueryResult`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Found = 0,
    NoSuchSymbol = 1,
    VersionNotSufficient = 2,
}

fn look_up(name: &str, version: c_int, per_thread: bool) -> Result<&'static Entry, Status> {
    let older = older::chosen();
    let has = |entry: &&Entry| older.is_none_or(|older| !older.lacks(entry.name));
    let newest = |per_thread: bool| {
        TABLE
            .iter()
            .filter(|e| e.base == name && e.per_thread == per_thread && e.since <= version)
            .filter(has)
            .max_by_key(|e| e.since)
    };
    let own = if per_thread { newest(true) } else { None };
    match own.or_else(|| newest(false)) {
        Some(entry) => Ok(entry),
        None if TABLE.iter().filter(|entry| entry.base == name).any(|entry| has(&entry)) => {
            Err(Status::VersionNotSufficient)
        }
        None => Err(Status::NoSuchSymbol),
    }
}

fn find(symbol: Text, function: Out<*const c_void>, version: c_int, flags: u64) -> Api<Status> {
    function.required()?;
    let name = symbol.string()?;
    ensure(flags <= 2 && version > 0, CuResult::INVALID_VALUE)?;
    Ok(match look_up(&name, version, flags == PROC_ADDRESS_PER_THREAD_STREAM) {
        Ok(entry) => {
            function.set(entry.function as *const c_void);
            Status::Found
        }
        Err(status) => {
            function.set(core::ptr::null());
            status
        }
    })
}

/// The form of CUDA 11.3 has no status: it fails if nothing is found.
pub(crate) extern "C" fn get_v1(
    symbol: Text,
    function: Out<*const c_void>,
    version: c_int,
    flags: u64,
) -> CuResult {
    api(|| match find(symbol, function, version, flags)? {
        Status::Found => Ok(()),
        Status::NoSuchSymbol | Status::VersionNotSufficient => Err(CuResult::NOT_FOUND),
    })
}

/// The form of CUDA 12: succeeds with a null function and a status if nothing is found.
pub(crate) extern "C" fn get(
    symbol: Text,
    function: Out<*const c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_uint>,
) -> CuResult {
    api(|| {
        let found = find(symbol, function, version, flags)?;
        status.set(found as c_uint);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_form_for_a_version() {
        let name =
            |base, version, per_thread| look_up(base, version, per_thread).map(|entry| entry.name);
        for (base, version, expected) in [
            ("cuMemAlloc", 3000, "cuMemAlloc"),
            ("cuMemAlloc", 13000, "cuMemAlloc_v2"),
            ("cuMemGetInfo", 12000, "cuMemGetInfo_v2"),
            ("cuCtxCreate", 11030, "cuCtxCreate_v2"),
            ("cuCtxCreate", 12040, "cuCtxCreate_v3"),
            ("cuCtxCreate", 13000, "cuCtxCreate_v4"),
            ("cuGraphAddNode", 12020, "cuGraphAddNode"),
            ("cuGraphAddNode", 13000, "cuGraphAddNode_v2"),
            ("cuCtxSynchronize", 12090, "cuCtxSynchronize"),
            ("cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"),
            ("cuGetProcAddress", 11040, "cuGetProcAddress"),
            ("cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
            ("cuLaunchKernel", 13000, "cuLaunchKernel"),
        ] {
            assert_eq!(name(base, version, false), Ok(expected), "{base} {version}");
        }
        for (base, version, expected) in [
            ("cuLaunchKernel", 13000, "cuLaunchKernel_ptsz"),
            ("cuLaunchKernel", 6050, "cuLaunchKernel"),
            ("cuMemAlloc", 13000, "cuMemAlloc_v2"),
            ("cuMemcpyHtoD", 13000, "cuMemcpyHtoD_v2_ptds"),
            ("cuMemAllocAsync", 12000, "cuMemAllocAsync_ptsz"),
            ("cuGraphLaunch", 12000, "cuGraphLaunch_ptsz"),
        ] {
            assert_eq!(name(base, version, true), Ok(expected), "{base} {version}");
        }
        assert_eq!(name("cuMemAlloc_v2", 13000, false), Err(Status::NoSuchSymbol));
        assert_eq!(name("cuMemAllocAsync", 11010, false), Err(Status::VersionNotSufficient));
        assert_eq!(name("nothing", 13000, false), Err(Status::NoSuchSymbol));
    }
}

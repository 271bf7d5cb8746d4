//! The library's exports, and the first bytes of its functions.

use crate::support::*;

/// The names in the library's dynamic symbol table, parsed from the file.
fn exported() -> Vec<String> {
    let bytes = std::fs::read(library()).unwrap();
    let u16_at = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()) as usize;
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (sections, size, count) = (u64_at(0x28), u16_at(0x3a), u16_at(0x3c));
    let section = |index: usize| sections + index * size;
    let dynsym = (0..count).map(section).find(|&at| u32_at(at + 4) == 11).unwrap();
    let strings = u64_at(section(u32_at(dynsym + 40)) + 24);
    let (start, length) = (u64_at(dynsym + 24), u64_at(dynsym + 32));
    (start..start + length)
        .step_by(24)
        .filter(|&at| u16_at(at + 6) != 0)
        .map(|at| {
            let name = &bytes[strings + u32_at(at)..];
            let end = name.iter().position(|&b| b == 0).unwrap();
            String::from_utf8(name[..end].to_vec()).unwrap()
        })
        .collect()
}

#[test]
fn exports_nothing_but_the_driver() {
    let names = exported();
    let others: Vec<_> = names.iter().filter(|name| !name.starts_with("cu")).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(names.len() > 300, "{}", names.len());
    for name in [
        "cuLaunchKernel",
        "cuLaunchKernel_ptsz",
        "cuLaunchKernelEx",
        "cuLaunchKernelEx_ptsz",
        "cuLaunchCooperativeKernel",
        "cuLaunchCooperativeKernelMultiDevice",
        "cuGraphLaunch",
        "cuGraphLaunch_ptsz",
        "cuMemAlloc",
        "cuMemAlloc_v2",
        "cuMemAllocPitch_v2",
        "cuMemAllocManaged",
        "cuMemAllocAsync",
        "cuMemAllocAsync_ptsz",
        "cuMemAllocFromPoolAsync",
        "cuMemAllocFromPoolAsync_ptsz",
        "cuMemFree_v2",
        "cuMemFreeAsync",
        "cuMemFreeAsync_ptsz",
        "cuMemCreate",
        "cuMemRelease",
        "cuArrayCreate_v2",
        "cuArray3DCreate_v2",
        "cuMipmappedArrayCreate",
        "cuArrayDestroy",
        "cuMemGetInfo",
        "cuMemGetInfo_v2",
        "cuDeviceTotalMem_v2",
        "cuDevicePrimaryCtxRetain",
        "cuCtxCreate_v2",
        "cuCtxCreate_v4",
        "cuGraphInstantiateWithFlags",
        "cuGraphInstantiateWithParams",
        "cuGraphAddMemAllocNode",
        "cuGraphAddNode",
        "cuGraphAddNode_v2",
        "cuMemPoolCreate",
        "cuMemPoolSetAttribute",
        "cuMemPoolTrimTo",
        "cuIpcOpenMemHandle_v2",
        "cuMemImportFromShareableHandle",
        "cuImportExternalMemory",
        "cuStreamBeginCapture_v2",
        "cuGetExportTable",
    ] {
        assert!(names.iter().any(|n| n == name), "{name} is in the real driver");
    }
}

#[test]
fn every_function_begins_like_the_real_ones() {
    for name in exported() {
        let address = symbol(&name).unwrap();
        // SAFETY: the first bytes of a function of a loaded library.
        let code = unsafe { std::slice::from_raw_parts(address as *const u8, 20) };
        let start = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x08, 0x81, 0x3d];
        assert_eq!(&code[..12], start, "{name}");
        assert_eq!(&code[16..20], 0x321c_ba00_u32.to_le_bytes(), "{name}");
    }
}

#[test]
fn get_proc_address_gives_exported_functions() {
    let cases = [
        (c"cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        (c"cuMemAlloc", 3000, 0, "cuMemAlloc"),
        (c"cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        (c"cuCtxSynchronize", 12000, 0, "cuCtxSynchronize"),
        (c"cuCtxSynchronize", 13000, 1, "cuCtxSynchronize_v2"),
        (c"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        (c"cuLaunchKernel", 13000, 2, "cuLaunchKernel_ptsz"),
        (c"cuLaunchKernel", 13000, 1, "cuLaunchKernel"),
        (c"cuMemFree", 12000, 2, "cuMemFree_v2"),
        (c"cuMemAllocAsync", 12000, 2, "cuMemAllocAsync_ptsz"),
    ];
    for (name, version, flags, expected) in cases {
        let (mut function, mut status) = (null(), 9);
        ok(cuGetProcAddress_v2(name.as_ptr(), &mut function, version, flags, &mut status));
        assert_eq!(Some(function as usize), symbol(expected), "{name:?} {version} {flags}");
        assert_eq!(status, 0);
    }
    let (mut function, mut status) = (1 as Ptr, 9);
    ok(cuGetProcAddress_v2(c"cuNothing".as_ptr(), &mut function, 13000, 0, &mut status));
    assert_eq!((function, status), (null(), 1));
    ok(cuGetProcAddress_v2(c"cuMemCreate".as_ptr(), &mut function, 10010, 0, &mut status));
    assert_eq!((function, status), (null(), 2));
    let missing = cuGetProcAddress(c"cuNothing".as_ptr(), &mut function, 13000, 0);
    assert_eq!(missing, NOT_FOUND);
    let bad = cuGetProcAddress_v2(c"cuInit".as_ptr(), &mut function, 13000, 8, &mut status);
    assert_eq!(bad, INVALID_VALUE);
}

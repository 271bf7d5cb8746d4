//! Processes and their devices: `fork`, processes that start others, `CUDA_VISIBLE_DEVICES`.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::memory::{SMALL, alloc};
use crate::support::*;

#[test]
fn a_forked_child_starts_clean() {
    isolated(SMALL, || {
        let _gpu = Gpu::open();
        ok(alloc(100 * MIB).0);
        let before = free_memory();
        // SAFETY: the child only makes driver calls and leaves with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut address = 0;
            let mut good = cuMemAlloc_v2(&mut address, 4) == NOT_INITIALIZED;
            let mut context = null();
            good &= cuInit(0) == 0 && cuMemAlloc_v2(&mut address, 4) == INVALID_CONTEXT;
            good &= cuDevicePrimaryCtxRetain(&mut context, 0) == 0;
            good &= cuCtxSetCurrent(context) == 0 && free_memory() == before - 128 * MIB;
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert_eq!(free_memory(), before);
    });
}

#[test]
fn a_child_does_not_keep_its_parents_memory() {
    isolated(SMALL, || {
        if part().is_some() {
            let _gpu = Gpu::open();
            ok(alloc(100 * MIB).0);
            // SAFETY: the child only sleeps; it ends with its own alarm.
            if unsafe { libc::fork() } == 0 {
                std::thread::sleep(std::time::Duration::from_secs(3));
                // SAFETY: ends the child without running exit handlers.
                unsafe { libc::_exit(0) };
            }
            println!("ready");
            std::thread::sleep(std::time::Duration::from_secs(60));
            return;
        }
        let _gpu = Gpu::open();
        let before = free_memory();
        let mut other = start_part("other");
        eventually(|| free_memory() == before - 228 * MIB);
        std::thread::sleep(std::time::Duration::from_millis(100));
        let begin = std::time::Instant::now();
        other.kill().unwrap();
        other.wait().unwrap();
        eventually(|| free_memory() == before);
        // The child process lives for three more seconds.
        assert!(begin.elapsed().as_millis() < 2500, "{:?}", begin.elapsed());
    });
}

#[test]
fn a_program_that_executes_another_one_is_gone() {
    isolated(SMALL, || {
        if part().is_some() {
            let _gpu = Gpu::open();
            ok(alloc(100 * MIB).0);
            println!("ready");
            std::io::stdin().read_exact(&mut [0]).unwrap();
            let error = Command::new("sleep").arg("30").exec();
            panic!("{error}");
        }
        let _gpu = Gpu::open();
        let before = free_memory();
        let mut child = start_part("other");
        eventually(|| free_memory() == before - 228 * MIB);
        child.stdin.take().unwrap().write_all(b"g").unwrap();
        eventually(|| free_memory() == before);
        assert!(child.try_wait().unwrap().is_none(), "the process itself lives on");
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

#[test]
fn visible_devices_are_honoured() {
    let two = "GPU-5a1ce000-0000-4000-8000-000000000001,0";
    isolated(&[("CUDA_VISIBLE_DEVICES", two)], || {
        let _gpu = Gpu::open();
        let mut count = 0;
        ok(cuDeviceGetCount(&mut count));
        assert_eq!(count, 2);
        ok(alloc(64 * MIB).0);
        // Ordinal 0 is the node's device 1. Another process, which sees the devices in the node's order, finds less
        // free memory on device 1.
        if part().is_none() {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "second_device_from_outside", "--nocapture", "--ignored"])
                .env("CUDA_VISIBLE_DEVICES", "1")
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        }
    });
}

#[test]
#[ignore = "a part of visible_devices_are_honoured"]
fn second_device_from_outside() {
    let _gpu = Gpu::open();
    // Two contexts of 512 MiB each, and the other process's allocation.
    assert_eq!(free_memory(), 16 * GIB - GIB - 64 * MIB);
}

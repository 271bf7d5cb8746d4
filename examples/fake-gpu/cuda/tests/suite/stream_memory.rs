//! Streams that wait for values in host memory and write values there (CUDA driver API, "Stream Memory Operations").

use std::io::Read;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::support::*;

const AT_LEAST: u32 = 0;
const EQUAL: u32 = 1;
const AND: u32 = 2;
const NOR: u32 = 3;
const FLUSH: u32 = 1 << 30;

/// A word of host memory, and its device address.
fn word() -> (&'static AtomicU32, u64) {
    let (mut host, mut device) = (null(), 0);
    ok(cuMemHostAlloc(&mut host, 4096, 2));
    ok(cuMemHostGetDevicePointer_v2(&mut device, host, 0));
    // SAFETY: fresh memory of that size; no test that uses it frees it.
    (unsafe { AtomicU32::from_ptr(host.cast()) }, device)
}

fn microseconds(start: Ptr, end: Ptr) -> f64 {
    let mut ms = 0.0;
    ok(cuEventElapsedTime(&mut ms, start, end));
    f64::from(ms) * 1000.0
}

fn nap() {
    std::thread::sleep(Duration::from_millis(5));
}

#[test]
fn nothing_runs_before_the_store_and_everything_after_it() {
    isolated(&[], || {
        let gpu = Gpu::warm();
        let ((word, address), on) = (word(), stream());
        let (before, after, end) = (event(), event(), event());
        gpu.launch(on, 1000);
        ok(cuEventRecord(before, on));
        ok(cuStreamWaitValue32_v2(on, address, 1, AT_LEAST));
        ok(cuEventRecord(after, on));
        gpu.launch(on, 100_000);
        ok(cuEventRecord(end, on));
        nap();
        ok(cuEventQuery(before));
        nap();
        assert_eq!(cuEventQuery(after), NOT_READY);
        assert_eq!(cuStreamQuery(on), NOT_READY);
        word.store(1, SeqCst);
        ok(cuEventQuery(after));
        assert_eq!(cuEventQuery(end), NOT_READY);
        ok(cuStreamSynchronize(on));
        let waited = microseconds(before, after);
        assert!(waited >= 9000.0, "{waited}");
        assert!((microseconds(after, end) - 100_000.0).abs() < 0.1);
        // A value that is already there causes no wait.
        ok(cuStreamWaitValue32(on, address, 1, AT_LEAST));
        gpu.launch(on, 100);
        ok(cuStreamSynchronize(on));
    });
}

#[test]
fn an_idle_streams_kernel_is_measured_whatever_the_host_does() {
    isolated(&[("SLUICE_FAKE_EVENT_NS", "1248")], || {
        let gpu = Gpu::warm();
        let on = stream();
        let mut memory = Box::new([0_u32; 4]);
        let (host, mut address) = (memory.as_mut_ptr(), 0);
        ok(cuMemHostRegister_v2(host.cast(), 16, 0));
        ok(cuMemHostGetDevicePointer_v2(&mut address, host.cast(), 0));
        // SAFETY: the third number of the box, which lives until the end.
        let word = unsafe { AtomicU32::from_ptr(host.add(2)) };
        let pairs: Vec<_> = (0..3).map(|_| (event(), event())).collect();
        for round in 1..=5 {
            let release = || word.store(round, SeqCst);
            ok(cuStreamWaitValue32_v2(on, address + 8, round, AT_LEAST));
            ok(cuEventRecord(pairs[0].0, on));
            nap();
            gpu.launch(on, 10 * u64::from(round));
            nap();
            ok(cuEventRecord(pairs[0].1, on));
            ok(cuEventRecord(pairs[1].0, on));
            ok(cuEventRecord(pairs[1].1, on));
            release();
            nap();
            // Repeat on a busy stream.
            gpu.launch(on, 20_000);
            ok(cuEventRecord(pairs[2].0, on));
            gpu.launch(on, 7);
            ok(cuEventRecord(pairs[2].1, on));
            ok(cuStreamSynchronize(on));
            for (pair, expected) in [(0, 10.0 * f64::from(round) + 2.248), (1, 1.248), (2, 9.248)] {
                let took = microseconds(pairs[pair].0, pairs[pair].1);
                assert!((took - expected).abs() < 2e-3, "{round} {pair}: {took}, not {expected}");
            }
        }
        ok(cuMemHostUnregister(host.cast()));
        assert_eq!(cuStreamWaitValue32_v2(on, address, 1, AT_LEAST), INVALID_VALUE);
    });
}

#[test]
fn other_streams_and_processes_go_on_meanwhile() {
    isolated(&[], || {
        let gpu = Gpu::warm();
        let (held, free) = (stream(), stream());
        if part().is_some() {
            gpu.launch(free, 2000);
            ok(cuStreamSynchronize(free));
            println!("done");
            return;
        }
        let (word, address) = word();
        ok(cuStreamWaitValue32_v2(held, address, 7, EQUAL));
        gpu.launch(held, 1000);
        let begin = Instant::now();
        gpu.launch(free, 20_000);
        ok(cuStreamSynchronize(free));
        assert!(begin.elapsed() >= Duration::from_millis(20));
        let output = start_part("other").wait_with_output().unwrap();
        assert!(String::from_utf8(output.stdout).unwrap().contains("done"));
        assert_eq!(cuStreamQuery(held), NOT_READY);
        // A thread that waits in the driver notices another thread's store.
        let begin = Instant::now();
        let store = std::thread::spawn(|| {
            nap();
            word.store(7, SeqCst);
        });
        ok(cuCtxSynchronize());
        assert!(begin.elapsed() >= Duration::from_millis(6), "{:?}", begin.elapsed());
        store.join().unwrap();
    });
}

#[test]
fn conditions_are_those_of_the_driver() {
    isolated(&[], || {
        Gpu::open();
        let ((word, address), on) = (word(), stream());
        let rows: [(u32, u32, &[u32], u32); 4] = [
            // Compared modulo 2^32: the difference as a signed number.
            (AT_LEAST, 2, &[u32::MAX - 1, u32::MAX, 0, 1], 3),
            (EQUAL, 5, &[4, 6], 5),
            (AND, 6, &[0, 9], 2),
            (NOR, 0xff, &[u32::MAX, 0xffff_ff00], 0xffff_fe00),
        ];
        for (flags, wanted, not_yet, then) in rows {
            word.store(not_yet[0], SeqCst);
            ok(cuStreamWaitValue32_v2(on, address, wanted, flags));
            for &value in not_yet {
                word.store(value, SeqCst);
                assert_eq!(cuStreamQuery(on), NOT_READY, "{flags} {value}");
            }
            word.store(then, SeqCst);
            ok(cuStreamQuery(on));
        }
    });
}

#[test]
fn what_cannot_be_waited_for_is_refused() {
    isolated(&[], || {
        let gpu = Gpu::warm();
        let ((_, address), on) = (word(), stream());
        let supported = |attribute| {
            let mut value = -1;
            ok(cuDeviceGetAttribute(&mut value, attribute, gpu.device));
            value
        };
        // Device attributes: 32-bit and 64-bit operations and NOR are supported, the flush is not.
        assert_eq!([92, 93, 94, 122, 123].map(supported), [1; 5]);
        assert_eq!(supported(98), 0);
        let mut outside = Box::new(0_u32);
        let (mut linear, mut managed) = (0, 0);
        ok(cuMemAlloc_v2(&mut linear, 4096));
        ok(cuMemAllocManaged(&mut managed, 4096, 1));
        for (address, flags, code) in [
            (address + 2, AT_LEAST, INVALID_VALUE),
            (address + 4096, AT_LEAST, INVALID_VALUE),
            ((&raw mut *outside) as u64, AT_LEAST, INVALID_VALUE),
            (0, AT_LEAST, INVALID_VALUE),
            (managed, AT_LEAST, INVALID_VALUE),
            (linear, AT_LEAST, NOT_SUPPORTED),
            (address, 4, INVALID_VALUE),
            (address, AT_LEAST | FLUSH, NOT_SUPPORTED),
        ] {
            assert_eq!(cuStreamWaitValue32_v2(on, address, 1, flags), code, "{address:x} {flags}");
        }
        assert_eq!(cuStreamWaitValue32_v2(0x998 as Ptr, address, 1, 0), INVALID_HANDLE);
        for (address, flags, code) in [
            (address + 4, 0, INVALID_VALUE),
            (address + 4096, 0, INVALID_VALUE),
            (managed, 0, INVALID_VALUE),
            (linear, 0, NOT_SUPPORTED),
            (address, 2, INVALID_VALUE),
        ] {
            assert_eq!(cuStreamWriteValue64_v2(on, address, 1, flags), code, "{address:x} {flags}");
        }
        // A batch with an invalid operation does nothing at all.
        let batch = [[2, address, 9, 0, 0, 0], [1, address + 2, 1, 0, 0, 0]];
        assert_eq!(cuStreamBatchMemOp_v2(on, 2, batch.as_ptr(), 0), INVALID_VALUE);
        assert_eq!(cuStreamBatchMemOp_v2(on, 1, batch.as_ptr(), 1), INVALID_VALUE);
        assert_eq!(cuStreamBatchMemOp_v2(on, 1, [[3, 0, 0, 0, 0, 0]].as_ptr(), 0), NOT_SUPPORTED);
        assert_eq!(cuStreamBatchMemOp_v2(on, 1, [[7, 0, 0, 0, 0, 0]].as_ptr(), 0), INVALID_VALUE);
        ok(cuStreamQuery(on));
        // SAFETY: memory of that size, which nothing frees.
        assert_eq!(unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(SeqCst), 0);
        // The refused call does not invalidate the capture.
        let mut graph = null();
        ok(cuStreamBeginCapture_v2(on, 0));
        assert_eq!(cuStreamWaitValue32_v2(on, address, 1, AT_LEAST), NOT_SUPPORTED);
        assert_eq!(cuStreamWriteValue32_v2(on, address, 1, 0), NOT_SUPPORTED);
        gpu.launch(on, 10);
        ok(cuStreamEndCapture(on, &mut graph));
        let mut count = 0;
        ok(cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count));
        assert_eq!(count, 1);
        // In the `_ptsz` form, the null stream is the thread's default stream.
        ok(cuStreamWaitValue32_v2_ptsz(null(), address, 1, AT_LEAST));
        assert_eq!(cuStreamQuery(2 as Ptr), NOT_READY);
        ok(cuStreamQuery(on));
    });
}

#[test]
fn a_device_may_not_have_these_operations() {
    isolated(&[("SLUICE_FAKE_MEMORY_OPS", "0")], || {
        let gpu = Gpu::warm();
        let ((_, address), on) = (word(), stream());
        for attribute in [92, 93, 94, 122, 123] {
            let mut value = -1;
            ok(cuDeviceGetAttribute(&mut value, attribute, gpu.device));
            assert_eq!(value, 0);
        }
        assert_eq!(cuStreamWaitValue32_v2(on, address, 1, AT_LEAST), NOT_SUPPORTED);
        assert_eq!(cuStreamWriteValue32_v2(on, address, 1, 0), NOT_SUPPORTED);
        let batch = [[6, 0, 0, 0, 0, 0]];
        assert_eq!(cuStreamBatchMemOp_v2(on, 1, batch.as_ptr(), 0), NOT_SUPPORTED);
        gpu.launch(on, 10);
        ok(cuStreamSynchronize(on));
    });
}

/// Waits for a value without calling the driver.
fn see(word: &AtomicU32, value: u32) {
    let begin = Instant::now();
    while word.load(SeqCst) != value {
        assert!(begin.elapsed() < Duration::from_secs(10), "{} instead", word.load(SeqCst));
        std::hint::spin_loop();
    }
}

#[test]
fn stores_open_and_writes_appear_without_a_call() {
    isolated(&[], || {
        let gpu = Gpu::warm();
        let (on, [gate, begun, done, wide]) = (stream(), [(); 4].map(|()| word()));
        ok(cuStreamWaitValue32_v2(on, gate.1, 1, AND));
        ok(cuStreamWriteValue32_v2(on, begun.1, 1, 0));
        gpu.launch(on, 20_000);
        ok(cuStreamWriteValue32_v2(on, done.1, 1, 1));
        nap();
        assert_eq!((begun.0.load(SeqCst), done.0.load(SeqCst)), (0, 0));
        let begin = Instant::now();
        gate.0.store(3, SeqCst);
        see(begun.0, 1);
        assert_eq!(done.0.load(SeqCst), 0);
        see(done.0, 1);
        assert!(begin.elapsed() >= Duration::from_millis(20), "{:?}", begin.elapsed());
        // 64-bit operations in a batch: one stream's write ends the other's wait.
        let other = stream();
        let high = 5 << 32;
        ok(cuStreamWaitValue64_v2(other, wide.1, high, EQUAL));
        ok(cuStreamWriteValue32_v2(other, done.1, 2, 0));
        let batch = [
            [1, gate.1, 3, 1, 0, 0],
            [6, 0, 0, 0, 0, 0],
            [5, wide.1, high, 0, 0, 0],
            [4, wide.1, high - 1, 0, 0, 0],
            [2, begun.1, 2, 0, 0, 0],
        ];
        ok(cuStreamBatchMemOp_v2(on, 5, batch.as_ptr(), 0));
        see(begun.0, 2);
        see(done.0, 2);
        // A value that a call has waited for is visible when the call returns.
        for value in 10..200 {
            gpu.launch(on, 5);
            ok(cuStreamWriteValue32_v2(on, done.1, value, 0));
            ok(cuStreamSynchronize(on));
            assert_eq!(done.0.load(SeqCst), value);
        }
    });
}

#[test]
fn another_process_opens_a_gate_in_shared_memory() {
    isolated(&[], || {
        if let Some(path) = part() {
            let page = page(&path);
            nap();
            page.store(1, SeqCst);
            return;
        }
        let gpu = Gpu::warm();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let path = file.path().to_str().unwrap();
        let gate = page(path);
        let address = gate.as_ptr();
        ok(cuMemHostRegister_v2(address.cast(), 4096, 0));
        let ((done, told), on) = (word(), stream());
        ok(cuStreamWaitValue32_v2(on, address as u64, 1, AND));
        gpu.launch(on, 10);
        ok(cuStreamWriteValue32_v2(on, told, 1, 0));
        assert!(start_part(path).wait().unwrap().success());
        see(done, 1);
        ok(cuMemHostUnregister(address.cast()));
    });
}

/// A word at the beginning of a file that several processes map.
fn page(path: &str) -> &'static AtomicU32 {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let (size, access) = (4096, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping of a file of this size, which is never unmapped.
    unsafe {
        let at = libc::mmap(null(), size, access, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        AtomicU32::from_ptr(at.cast())
    }
}

#[test]
fn a_forked_child_and_the_end_of_a_process_with_work_outstanding() {
    isolated(&[], || {
        let gpu = Gpu::warm();
        let ((word, address), on) = (word(), stream());
        ok(cuStreamWaitValue32_v2(on, address, 1, AT_LEAST));
        ok(cuStreamWriteValue32_v2(on, address + 8, 1, 0));
        nap();
        // SAFETY: the child calls the driver as any fresh process may, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let gpu = Gpu::warm();
            let (own, mine) = super::stream_memory::word();
            let on = stream();
            ok(cuStreamWaitValue32_v2(on, mine, 1, AT_LEAST));
            gpu.launch(on, 10);
            ok(cuStreamWriteValue32_v2(on, mine + 4, 1, 0));
            own.store(1, SeqCst);
            // SAFETY: the word behind it.
            see(unsafe { AtomicU32::from_ptr((mine + 4) as *mut u32) }, 1);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: a valid place for the status of an own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        word.store(1, SeqCst);
        // SAFETY: two words further on.
        see(unsafe { AtomicU32::from_ptr((address + 8) as *mut u32) }, 1);
        // The process ends while one stream is held and another is writing.
        ok(cuStreamWaitValue32_v2(on, address, 7, AT_LEAST));
        let other = stream();
        gpu.launch(other, 5_000);
        ok(cuStreamWriteValue32_v2(other, address + 8, 9, 0));
    });
}

/// Holds `count` streams from one other thread, each with a kernel queued behind the wait. Returns for how many streams
/// that thread's calls have returned after a while; then opens the streams and checks that all calls return.
fn hold_streams(count: usize) -> usize {
    let gpu = Gpu::warm();
    let ((gate, address), context) = (word(), gpu.context as usize);
    let submitted: &'static AtomicU32 = Box::leak(Box::default());
    let spin = gpu.spin as usize;
    let held = std::thread::spawn(move || {
        ok(cuCtxSetCurrent(context as Ptr));
        let gpu = Gpu { device: 0, context: context as Ptr, module: null(), spin: spin as Ptr };
        let streams: Vec<_> = (0..count).map(|_| stream()).collect();
        for &on in &streams {
            ok(cuStreamWaitValue32_v2(on, address, 1, AND));
            gpu.launch(on, 10);
            submitted.fetch_add(1, SeqCst);
        }
        streams.iter().for_each(|&on| ok(cuStreamSynchronize(on)));
    });
    let all = || submitted.load(SeqCst) as usize;
    let begin = Instant::now();
    while all() < count && begin.elapsed() < Duration::from_millis(300) {
        nap();
    }
    let before = all();
    gate.store(1, SeqCst);
    held.join().unwrap();
    assert_eq!(all(), count);
    before
}

#[test]
fn as_many_streams_can_be_held_as_there_are_hardware_queues() {
    isolated(&[], || assert_eq!(hold_streams(8), 8));
}

#[test]
fn submitting_blocks_where_more_streams_are_held() {
    isolated(&[], || assert_eq!(hold_streams(64), 8));
}

#[test]
fn a_program_can_have_more_hardware_queues() {
    isolated(&[("CUDA_DEVICE_MAX_CONNECTIONS", "32")], || assert_eq!(hold_streams(20), 20));
}

#[test]
fn a_launch_into_a_full_queue_waits_for_a_store() {
    isolated(&[], || {
        let gpu = Gpu::warm();
        let ((gate, address), on) = (word(), stream());
        gpu.launch(on, 1);
        ok(cuStreamWaitValue32_v2(on, address, 1, AND));
        let begin = Instant::now();
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            gate.store(1, SeqCst);
        });
        for _ in 0..1100 {
            gpu.launch(on, 1);
        }
        assert!(begin.elapsed() >= Duration::from_millis(90), "{:?}", begin.elapsed());
        ok(cuStreamSynchronize(on));
        opener.join().unwrap();
    });
}

/// Makes a call while a stream is held for 100 ms. Returns whether the call took that long, and whether a call of
/// another thread returned meanwhile.
fn beside_a_held_stream(call: impl FnOnce(&Gpu, Ptr)) -> (bool, bool) {
    let gpu = Gpu::warm();
    let ((gate, address), on, free) = (word(), stream(), stream());
    ok(cuStreamWaitValue32_v2(on, address, 1, AND));
    gpu.launch(on, 1);
    let returned: &'static AtomicU32 = Box::leak(Box::default());
    let context = gpu.context as usize;
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        ok(cuCtxSetCurrent(context as Ptr));
        let mut made = null();
        ok(cuStreamCreate(&mut made, 1));
        returned.store(1, SeqCst);
    });
    let begin = Instant::now();
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        let early = returned.load(SeqCst) == 1;
        gate.store(1, SeqCst);
        early
    });
    call(&gpu, free);
    let waited = begin.elapsed() >= Duration::from_millis(95);
    other.join().unwrap();
    ok(cuCtxSynchronize());
    (waited, opener.join().unwrap())
}

fn first_launch(gpu: &Gpu, on: Ptr) {
    let mut kernel = null();
    ok(cuModuleGetFunction(&mut kernel, gpu.module, c"empty".as_ptr()));
    let none = std::ptr::null_mut();
    ok(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, on, none, none));
}

#[test]
fn loading_a_module_waits_for_held_streams_and_keeps_the_drivers_lock() {
    isolated(&[], || {
        assert_eq!(beside_a_held_stream(|_, _| _ = load()), (true, false));
    });
}

#[test]
fn so_does_the_first_launch_of_a_kernel_and_no_other() {
    isolated(&[], || {
        assert_eq!(beside_a_held_stream(first_launch), (true, false));
        let launch = |gpu: &Gpu, on| gpu.launch(on, 1);
        assert_eq!(beside_a_held_stream(launch), (false, true));
        let allocate = |_: &Gpu, _| ok(cuMemAlloc_v2(&mut 0, 4096));
        assert_eq!(beside_a_held_stream(allocate), (false, true));
    });
}

#[test]
fn with_eager_loading_no_launch_does() {
    isolated(&[("CUDA_MODULE_LOADING", "EAGER")], || {
        assert_eq!(beside_a_held_stream(first_launch), (false, true));
    });
}

#[test]
fn what_is_to_be_written_to_freed_memory_is_not() {
    isolated(&[], || {
        let gpu = Gpu::warm();
        let (on, mut host) = (stream(), null());
        ok(cuMemHostAlloc(&mut host, 4096, 0));
        gpu.launch(on, 2000);
        ok(cuStreamWriteValue32_v2(on, host as u64, 1, 0));
        ok(cuMemFreeHost(host));
        ok(cuStreamSynchronize(on));
        nap();
    });
}

#[test]
fn memory_and_streams_can_go_away_under_a_wait() {
    isolated(&[], || {
        let gpu = Gpu::warm();
        let (on, free, seen) = (stream(), stream(), event());
        let mut host = null();
        ok(cuMemHostAlloc(&mut host, 4096, 0));
        ok(cuStreamWaitValue32_v2(on, host as u64, 1, AT_LEAST));
        ok(cuMemFreeHost(host));
        assert_eq!(cuStreamQuery(on), NOT_READY);
        let (word, address) = word();
        for value in 1..=2000 {
            // More waits than a queue holds, each of which ends when the next one is queued.
            ok(cuStreamWaitValue32_v2(free, address, value, AT_LEAST));
            word.store(value, SeqCst);
        }
        ok(cuStreamSynchronize(free));
        ok(cuStreamWaitValue32_v2(free, address, 2001, AT_LEAST));
        ok(cuEventRecord(seen, free));
        ok(cuStreamDestroy_v2(free));
        assert_eq!(cuEventQuery(seen), NOT_READY);
        word.store(2001, SeqCst);
        ok(cuEventQuery(seen));
        let other = stream();
        gpu.launch(other, 10);
        ok(cuStreamSynchronize(other));
        ok(cuStreamWaitValue32_v2(other, address, 3000, AT_LEAST));
        ok(cuStreamDestroy_v2(on));
        // Destroying a context waits for the work of its streams.
        let begun = std::time::Instant::now();
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(30));
            word.store(3000, SeqCst);
        });
        ok(cuDevicePrimaryCtxReset_v2(gpu.device));
        assert!(begun.elapsed().as_millis() >= 25);
    });
}

#[test]
fn a_process_that_dies_waiting_is_dropped() {
    isolated(&[], || {
        if part().is_some() {
            let gpu = Gpu::warm();
            let ((_, address), on) = (word(), stream());
            gpu.launch(on, 100);
            ok(cuStreamWaitValue32_v2(on, address, 1, AT_LEAST));
            gpu.launch(on, 60_000_000);
            println!("ready");
            ok(cuStreamSynchronize(on));
            return;
        }
        let gpu = Gpu::warm();
        let before = free_memory();
        let mut child = start_part("holder");
        let (out, mut text) = (child.stdout.as_mut().unwrap(), String::new());
        let mut byte = [0];
        while !text.ends_with("ready\n") {
            assert_eq!(out.read(&mut byte).unwrap(), 1, "{text}");
            text.push(byte[0] as char);
        }
        let on = stream();
        gpu.launch(on, 1000);
        ok(cuStreamSynchronize(on));
        assert_eq!(before - free_memory(), 512 * MIB);
        child.kill().unwrap();
        child.wait().unwrap();
        eventually(|| free_memory() == before);
        gpu.launch(on, 1000);
        ok(cuStreamSynchronize(on));
    });
}

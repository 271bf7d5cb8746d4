//! Host functions in streams (`cuLaunchHostFunc`, `cuStreamAddCallback`).

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::support::*;
use driver::cuda::{CuResult, HostNodeParams, Stream};

static CALLS: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU32 = AtomicU32::new(0);

/// Appends its digit to the digits of the earlier calls.
extern "C" fn note(digit: *mut c_void) {
    CALLS.store(CALLS.load(SeqCst).wrapping_mul(10) + digit as u64, SeqCst);
}

extern "C" fn slow(digit: *mut c_void) {
    std::thread::sleep(Duration::from_millis(50));
    note(digit);
}

/// Calls the driver, which host functions must not do.
extern "C" fn nosy(_: *mut c_void) {
    let mut address = 0;
    SEEN.store(cuMemAlloc_v2(&mut address, 4), SeqCst);
}

extern "C" fn told(stream: Stream, status: CuResult, digit: *mut c_void) {
    assert!(!stream.is_null() && status.is_ok());
    note(digit);
}

fn digit(value: usize) -> Ptr {
    value as Ptr
}

fn calls() -> u64 {
    CALLS.load(SeqCst)
}

#[test]
fn functions_run_in_stream_order() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let (on, other, before) = (stream(), stream(), event());
        let begin = Instant::now();
        // Long enough for any machine to make the calls while the kernel runs.
        gpu.launch(on, 2_000_000);
        ok(cuLaunchHostFunc(on, Some(slow), digit(1)));
        ok(cuEventRecord(before, on));
        ok(cuStreamAddCallback(on, Some(told), digit(2), 0));
        assert!(begin.elapsed() < Duration::from_secs(2), "a call waits for nothing");
        assert_eq!(calls(), 0);
        // Host functions of another stream wait only for the work of that stream.
        ok(cuLaunchHostFunc(other, Some(note), digit(7)));
        ok(cuStreamSynchronize(other));
        assert_eq!(calls(), 7);
        assert_eq!(cuStreamQuery(on), NOT_READY);
        ok(cuEventSynchronize(before));
        assert!(begin.elapsed() >= Duration::from_millis(2050), "{:?}", begin.elapsed());
        ok(cuStreamSynchronize(on));
        assert_eq!(calls(), 712);
        assert_eq!(cuLaunchHostFunc(on, None, null()), INVALID_VALUE);
        assert_eq!(cuStreamAddCallback(on, Some(told), null(), 1), INVALID_VALUE);
        ok(cuLaunchHostFunc(on, Some(nosy), null()));
        ok(cuCtxSynchronize());
        assert_eq!(SEEN.load(SeqCst), 800);
        for _ in 0..200 {
            ok(cuLaunchHostFunc(on, Some(note), null()));
        }
        // The work of a destroyed stream is still done.
        SEEN.store(0, SeqCst);
        ok(cuLaunchHostFunc(on, Some(nosy), null()));
        ok(cuStreamDestroy_v2(on));
        eventually(|| SEEN.load(SeqCst) == 800);
    });
}

#[test]
fn graphs_call_functions_between_their_kernels() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let (on, mut graph, mut exec, mut node) = (stream(), null(), null(), null());
        ok(cuStreamBeginCapture_v2(on, 0));
        gpu.launch(on, 10_000);
        ok(cuLaunchHostFunc(on, Some(note), digit(3)));
        gpu.launch(on, 10_000);
        assert_eq!(calls(), 0);
        ok(cuStreamEndCapture(on, &mut graph));
        let params = HostNodeParams { function: Some(note), user_data: digit(4) };
        let none = std::ptr::null();
        ok(cuGraphAddHostNode(&mut node, graph, none, 0, (&raw const params).cast()));
        let mut kind = -1;
        ok(cuGraphNodeGetType(node, &mut kind));
        assert_eq!(kind, 3);
        ok(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        let begin = Instant::now();
        ok(cuGraphLaunch(exec, on));
        eventually(|| calls() == 3);
        assert!(begin.elapsed() >= Duration::from_millis(10));
        ok(cuStreamSynchronize(on));
        assert!(begin.elapsed() >= Duration::from_millis(20));
        assert_eq!(calls(), 34);
    });
}

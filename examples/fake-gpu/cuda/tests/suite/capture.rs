//! Stream capture: what it records, and what invalidates it.

use std::sync::mpsc;

use crate::support::*;

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;
const UNJOINED: u32 = 904;
const ISOLATION: u32 = 905;
const IMPLICIT: u32 = 906;
const CAPTURED_EVENT: u32 = 907;
const WRONG_THREAD: u32 = 908;

fn status(stream: Ptr) -> u32 {
    let mut status = 9;
    ok(cuStreamIsCapturing(stream, &mut status));
    status
}

fn relaxed<T>(body: impl FnOnce() -> T) -> T {
    let mut mode = RELAXED;
    ok(cuThreadExchangeStreamCaptureMode(&mut mode));
    let result = body();
    ok(cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, RELAXED);
    result
}

/// Runs `body` in another thread with the context current.
fn elsewhere<T: Send>(gpu: &Gpu, body: impl FnOnce() -> T + Send) -> T {
    let context = gpu.context as usize;
    std::thread::scope(|scope| {
        scope
            .spawn(move || {
                ok(cuCtxSetCurrent(context as Ptr));
                body()
            })
            .join()
            .unwrap()
    })
}

#[test]
fn captured_launches_do_not_run_until_the_graph_does() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let (on, other) = (stream(), stream());
        let (fork, join) = (event(), event());
        ok(cuStreamBeginCapture_v2(on, GLOBAL));
        assert_eq!(status(on), 1);
        for _ in 0..10 {
            gpu.launch(on, 10_000);
        }
        ok(cuEventRecord(fork, on));
        ok(cuStreamWaitEvent(other, fork, 0));
        assert_eq!(status(other), 1);
        gpu.launch(other, 50_000);
        ok(cuEventRecord(join, other));
        ok(cuStreamWaitEvent(on, join, 0));
        let mut graph = null();
        ok(cuStreamEndCapture(on, &mut graph));
        assert!(!graph.is_null());
        assert_eq!((status(on), status(other)), (0, 0));
        ok(cuStreamQuery(on));
        let mut exec = null();
        ok(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        let (start, end) = (event(), event());
        gpu.launch(on, 100_000);
        ok(cuEventRecord(start, on));
        ok(cuGraphLaunch(exec, on));
        ok(cuEventRecord(end, on));
        ok(cuEventSynchronize(end));
        let mut ms = 0.0;
        ok(cuEventElapsedTime(&mut ms, start, end));
        assert_eq!(ms, 150.0);
    });
}

#[test]
fn unsafe_calls_break_a_global_capture_unless_relaxed() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let (on, other, done) = (stream(), stream(), event());
        ok(cuEventRecord(done, other));
        ok(cuEventSynchronize(done));
        let (other_address, done_address) = (other as usize, done as usize);
        type Call = Box<dyn Fn() -> u32 + Send + Sync>;
        let calls: [(&str, Call); 6] = [
            ("cuEventQuery", Box::new(move || cuEventQuery(done_address as Ptr))),
            ("cuEventSynchronize", Box::new(move || cuEventSynchronize(done_address as Ptr))),
            ("cuStreamQuery", Box::new(move || cuStreamQuery(other_address as Ptr))),
            ("cuStreamSynchronize", Box::new(move || cuStreamSynchronize(other_address as Ptr))),
            ("cuMemAlloc", Box::new(|| cuMemAlloc_v2(&mut 0, 4096))),
            ("cuMemHostAlloc", Box::new(|| cuMemHostAlloc(&mut null(), 4096, 0))),
        ];
        for (name, call) in &calls {
            let mut graph = null();
            // A capture in global mode forbids the call in another thread, whose own mode is the default.
            ok(cuStreamBeginCapture_v2(on, GLOBAL));
            gpu.launch(on, 10);
            assert_eq!(elsewhere(&gpu, call), UNSUPPORTED, "{name}");
            assert_eq!(status(on), 2);
            assert_eq!(gpu.try_launch(on, 10), INVALIDATED);
            assert_eq!(cuStreamEndCapture(on, &mut graph), INVALIDATED);
            assert!(graph.is_null());
            // A capture in thread-local mode forbids the call in the capturing thread.
            ok(cuStreamBeginCapture_v2(on, THREAD_LOCAL));
            assert_eq!(call(), UNSUPPORTED, "{name}");
            assert_eq!(cuStreamEndCapture(on, &mut graph), INVALIDATED);
            // Allowed: from either thread while it is in relaxed mode, from another thread during a thread-local
            // capture, and from any thread during a relaxed capture.
            ok(cuStreamBeginCapture_v2(on, GLOBAL));
            assert_eq!(relaxed(call), SUCCESS, "{name}");
            assert_eq!(elsewhere(&gpu, || relaxed(call)), SUCCESS, "{name}");
            ok(cuStreamEndCapture(on, &mut graph));
            ok(cuStreamBeginCapture_v2(on, THREAD_LOCAL));
            assert_eq!(elsewhere(&gpu, call), SUCCESS, "{name}");
            ok(cuStreamEndCapture(on, &mut graph));
            ok(cuStreamBeginCapture_v2(on, RELAXED));
            assert_eq!(call(), SUCCESS, "{name}");
            ok(cuStreamEndCapture(on, &mut graph));
        }
    });
}

#[test]
fn launches_and_records_elsewhere_are_safe() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let (on, other) = (stream() as usize, stream() as usize);
        ok(cuStreamBeginCapture_v2(on as Ptr, GLOBAL));
        gpu.launch(on as Ptr, 10);
        let spin = gpu.spin as usize;
        elsewhere(&gpu, move || {
            let gpu = Gpu { device: 0, context: null(), module: null(), spin: spin as Ptr };
            gpu.launch(other as Ptr, 10);
            let event = event();
            ok(cuEventRecord(event, other as Ptr));
            ok(cuStreamWaitEvent(other as Ptr, event, 0));
        });
        let mut graph = null();
        ok(cuStreamEndCapture(on as Ptr, &mut graph));
    });
}

#[test]
fn conflicts_with_the_capture_itself() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let mut graph = null();
        let on = stream();
        // Synchronizing with the capturing stream or the context, even in relaxed mode.
        ok(cuStreamBeginCapture_v2(on, RELAXED));
        assert_eq!(relaxed(|| cuStreamSynchronize(on)), UNSUPPORTED);
        assert_eq!(cuStreamEndCapture(on, &mut graph), INVALIDATED);
        ok(cuStreamBeginCapture_v2(on, RELAXED));
        assert_eq!(relaxed(cuCtxSynchronize), UNSUPPORTED);
        assert_eq!(cuStreamEndCapture(on, &mut graph), INVALIDATED);
        // Synchronizing with an event that the capture has recorded.
        let inside = event();
        ok(cuStreamBeginCapture_v2(on, RELAXED));
        ok(cuEventRecord(inside, on));
        assert_eq!(relaxed(|| cuEventQuery(inside)), CAPTURED_EVENT);
        assert_eq!(cuStreamEndCapture(on, &mut graph), INVALIDATED);
        // Waiting for an event recorded outside the capture.
        let outside = event();
        ok(cuEventRecord(outside, stream()));
        ok(cuStreamBeginCapture_v2(on, RELAXED));
        assert_eq!(cuStreamWaitEvent(on, outside, 0), ISOLATION);
        assert_eq!(cuStreamEndCapture(on, &mut graph), INVALIDATED);
        // A second stream that joined the capture and is not joined back.
        let other = stream();
        ok(cuStreamBeginCapture_v2(on, RELAXED));
        gpu.launch(on, 10);
        ok(cuEventRecord(inside, on));
        ok(cuStreamWaitEvent(other, inside, 0));
        gpu.launch(other, 10);
        assert_eq!(cuStreamEndCapture(other, &mut graph), 903);
        assert_eq!(cuStreamEndCapture(on, &mut graph), UNJOINED);
        // Capturing the legacy stream, beginning twice, ending without a beginning.
        assert_eq!(cuStreamBeginCapture_v2(null(), RELAXED), UNSUPPORTED);
        assert_eq!(cuStreamEndCapture(on, &mut graph), 401);
        ok(cuStreamBeginCapture_v2(on, RELAXED));
        assert_eq!(cuStreamBeginCapture_v2(on, RELAXED), 401);
        ok(cuStreamEndCapture(on, &mut graph));
    });
}

#[test]
fn the_legacy_stream_is_unusable_while_a_blocking_stream_is_captured() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let (mut blocking, mut graph, mut status) = (null(), null(), 0);
        ok(cuStreamCreate(&mut blocking, 0));
        ok(cuStreamBeginCapture_v2(blocking, RELAXED));
        assert_eq!(cuStreamIsCapturing(null(), &mut status), IMPLICIT);
        assert_eq!(self::status(blocking), 1, "asking does not break it");
        assert_eq!(gpu.try_launch(null(), 10), IMPLICIT);
        assert_eq!(cuStreamEndCapture(blocking, &mut graph), INVALIDATED);
        // A non-blocking stream is not affected.
        let on = stream();
        ok(cuStreamBeginCapture_v2(on, RELAXED));
        ok(gpu.try_launch(null(), 10));
        ok(cuStreamEndCapture(on, &mut graph));
    });
}

#[test]
fn a_capture_is_ended_by_its_thread() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let on = stream() as usize;
        let end = move || {
            let mut graph = null();
            cuStreamEndCapture(on as Ptr, &mut graph)
        };
        ok(cuStreamBeginCapture_v2(on as Ptr, THREAD_LOCAL));
        assert_eq!(elsewhere(&gpu, end), WRONG_THREAD);
        ok(end());
        ok(cuStreamBeginCapture_v2(on as Ptr, RELAXED));
        ok(elsewhere(&gpu, end));
    });
}

#[test]
fn memory_in_a_capture_becomes_nodes() {
    isolated(&[], || {
        let _gpu = Gpu::open();
        let on = stream();
        let before = free_memory();
        let (mut address, mut graph, mut exec) = (0, null(), null());
        ok(cuStreamBeginCapture_v2(on, GLOBAL));
        ok(cuMemAllocAsync(&mut address, 8 << 20, on));
        ok(cuMemFreeAsync(address, on));
        ok(cuStreamEndCapture(on, &mut graph));
        assert_eq!(free_memory(), before);
        ok(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        ok(cuGraphLaunch(exec, on));
        ok(cuStreamSynchronize(on));
        assert_eq!(before - free_memory(), 32 * MIB);
        ok(cuDeviceGraphMemTrim(0));
        assert_eq!(free_memory(), before);
    });
}

#[test]
fn threads_that_capture_at_once_do_not_meet() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let spin = gpu.spin as usize;
        let (send, receive) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (send, context) = (send.clone(), gpu.context as usize);
                scope.spawn(move || {
                    ok(cuCtxSetCurrent(context as Ptr));
                    let gpu = Gpu { device: 0, context: null(), module: null(), spin: spin as Ptr };
                    for _ in 0..200 {
                        let on = stream();
                        let mut graph = null();
                        ok(cuStreamBeginCapture_v2(on, THREAD_LOCAL));
                        gpu.launch(on, 10);
                        ok(cuStreamEndCapture(on, &mut graph));
                        ok(cuGraphDestroy(graph));
                        ok(cuStreamDestroy_v2(on));
                    }
                    send.send(()).unwrap();
                });
            }
        });
        drop(send);
        assert_eq!(receive.iter().count(), 4);
    });
}

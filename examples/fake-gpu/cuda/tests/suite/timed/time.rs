//! Time: a kernel occupies the device for exactly the time it asks for.

use std::ffi::c_void;
use std::io::Read;
use std::time::{Duration, Instant};

use crate::support::*;
use driver::cuda::{KernelNodeParams, LaunchConfig};

fn elapsed(start: Ptr, end: Ptr) -> f32 {
    let mut ms = 0.0;
    ok(cuEventElapsedTime(&mut ms, start, end));
    ms
}

/// Measures work by events, on a stream that is already busy: exact even on a slow machine.
fn measured(on: Ptr, gpu: &Gpu, work: impl FnOnce()) -> f32 {
    let (start, end) = (event(), event());
    gpu.launch(on, 200_000);
    ok(cuEventRecord(start, on));
    work();
    ok(cuEventRecord(end, on));
    ok(cuEventSynchronize(end));
    elapsed(start, end)
}

#[test]
fn a_kernel_holds_the_device_for_its_time() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let on = stream();
        assert_eq!(measured(on, &gpu, || gpu.launch(on, 2000)), 2.0);
        assert_eq!(measured(on, &gpu, || (0..10).for_each(|_| gpu.launch(on, 14))), 0.14);
        let begin = Instant::now();
        gpu.launch(on, 20_000);
        assert_eq!(cuStreamQuery(on), NOT_READY);
        ok(cuStreamSynchronize(on));
        assert!(begin.elapsed() >= Duration::from_millis(20));
        ok(cuStreamQuery(on));
    });
}

#[test]
fn every_way_to_launch() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let on = stream();
        let mut ns = 3_000_000_u64;
        let mut params = [(&raw mut ns).cast::<c_void>()];
        let config = LaunchConfig {
            grid: [1; 3],
            block: [32, 1, 1],
            shared_mem_bytes: 0,
            stream: on,
            attrs: null(),
            num_attrs: 0,
        };
        let no_extra = std::ptr::null_mut();
        let ex = measured(on, &gpu, || {
            let config = (&raw const config).cast();
            ok(cuLaunchKernelEx(config, gpu.spin, params.as_mut_ptr(), no_extra));
        });
        assert_eq!(ex, 3.0);
        let mut params = [(&raw mut ns).cast::<c_void>()];
        let cooperative = measured(on, &gpu, || {
            let params = params.as_mut_ptr();
            ok(cuLaunchCooperativeKernel(gpu.spin, 4, 1, 1, 32, 1, 1, 0, on, params));
            let too_large =
                cuLaunchCooperativeKernel(gpu.spin, 1 << 20, 1, 1, 32, 1, 1, 0, on, params);
            assert_eq!(too_large, 720);
        });
        assert_eq!(cooperative, 3.0);
        let mut size = 8_usize;
        let mut extra = [1 as Ptr, (&raw mut ns).cast(), 2 as Ptr, (&raw mut size).cast(), null()];
        let packed = measured(on, &gpu, || {
            let extra = extra.as_mut_ptr();
            ok(cuLaunchKernel(gpu.spin, 1, 1, 1, 1, 1, 1, 0, on, no_extra, extra));
        });
        assert_eq!(packed, 3.0);
        // The launch functions of CUDA 2, on the legacy stream.
        ok(cuFuncSetBlockShape(gpu.spin, 32, 1, 1));
        ok(cuParamSetSize(gpu.spin, 8));
        ok(cuParamSetv(gpu.spin, 0, &ns, 8));
        let old = measured(null(), &gpu, || ok(cuLaunchGrid(gpu.spin, 2, 2)));
        assert_eq!(old, 3.0);
        // In a `_ptsz` function, the null stream is the thread's default stream instead of the legacy stream. The two
        // are ordered with each other.
        gpu.launch(null(), 50_000);
        let mut params = [(&raw mut ns).cast::<c_void>()];
        let params = params.as_mut_ptr();
        ok(cuLaunchKernel_ptsz(gpu.spin, 1, 1, 1, 1, 1, 1, 0, null(), params, no_extra));
        ok(cuStreamSynchronize(2 as Ptr));
        ok(cuStreamQuery(null()));
    });
}

#[test]
fn a_full_queue_blocks_the_caller() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let on = stream();
        let begin = Instant::now();
        for _ in 0..2048 {
            gpu.launch(on, 200);
        }
        let launched = begin.elapsed();
        ok(cuStreamSynchronize(on));
        assert!(launched >= Duration::from_micros(1024 * 200), "{launched:?}");
        assert!(begin.elapsed() >= Duration::from_micros(2048 * 200));
    });
}

#[test]
fn waits_order_streams() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let (a, b) = (stream(), stream());
        let (first, second) = (event(), event());
        gpu.launch(a, 100_000);
        ok(cuEventRecord(first, a));
        ok(cuStreamWaitEvent(b, first, 0));
        ok(cuEventRecord(second, b));
        assert_eq!(cuEventQuery(second), NOT_READY);
        ok(cuEventSynchronize(second));
        ok(cuEventQuery(first));
        assert_eq!(elapsed(first, second), 0.0);
    });
}

#[test]
fn a_graph_takes_as_long_as_its_kernels() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let on = stream();
        let mut ns = 1_500_000_u64;
        let mut params = [(&raw mut ns).cast::<c_void>()];
        let node_params = KernelNodeParams {
            function: gpu.spin,
            grid: [1; 3],
            block: [32, 1, 1],
            shared_mem_bytes: 0,
            kernel_params: params.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kernel: null(),
            context: null(),
        };
        let (mut graph, mut first, mut second) = (null(), null(), null());
        let node_params = (&raw const node_params).cast();
        ok(cuGraphCreate(&mut graph, 0));
        let none = std::ptr::null();
        ok(cuGraphAddKernelNode_v2(&mut first, graph, none, 0, node_params));
        ok(cuGraphAddKernelNode_v2(&mut second, graph, &first, 1, node_params));
        let foreign = 0x999 as Ptr;
        let bad = cuGraphAddKernelNode_v2(&mut second, graph, &foreign, 1, node_params);
        assert_eq!(bad, INVALID_VALUE);
        let mut exec = null();
        ok(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        ok(cuGraphDestroy(graph));
        assert_eq!(measured(on, &gpu, || ok(cuGraphLaunch(exec, on))), 3.0);
        ok(cuGraphExecDestroy(exec));
        assert_eq!(cuGraphLaunch(exec, on), INVALID_VALUE);
    });
}

#[test]
fn copies_take_time_on_the_device() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let on = stream();
        let mut address = 0;
        ok(cuMemAlloc_v2(&mut address, 2_500_000));
        let data = vec![1_u8; 2_500_000];
        let ms = measured(on, &gpu, || {
            ok(cuMemcpyHtoDAsync_v2(address, data.as_ptr().cast(), data.len(), on));
        });
        assert!((ms - 2.501).abs() < 1e-4, "{ms}");
    });
}

#[test]
fn two_processes_are_sliced_fairly_with_a_loss() {
    isolated(&[], || {
        if part().is_some() {
            let gpu = Gpu::open();
            let (on, start, end) = (stream(), event(), event());
            // Long enough to overlap even if one process starts late. Each measures the middle part, while both are
            // running.
            gpu.launch(on, 1);
            ok(cuStreamSynchronize(on));
            println!("ready");
            std::io::stdin().read_exact(&mut [0]).unwrap();
            let begun = uptime_ms();
            ok(cuEventRecord(start, on));
            for _ in 0..1000 {
                gpu.launch(on, 500);
            }
            ok(cuEventRecord(end, on));
            ok(cuEventSynchronize(end));
            println!("took {} {begun}", elapsed(start, end));
            return;
        }
        let mut parts = [start_part("a"), start_part("b")];
        std::thread::sleep(Duration::from_millis(500));
        for part in &mut parts {
            use std::io::Write;
            part.stdin.take().unwrap().write_all(b"g").unwrap();
        }
        let figures: Vec<(f64, f64)> = parts
            .into_iter()
            .map(|part| {
                let output = part.wait_with_output().unwrap();
                let text = String::from_utf8(output.stdout).unwrap();
                let line = text.split("took ").nth(1).unwrap_or_else(|| panic!("{text}"));
                let mut words = line.split_whitespace().map(|word| word.parse().unwrap());
                (words.next().unwrap(), words.next().unwrap())
            })
            .collect();
        // Each process has 500 ms of work. While both run, each gets 2.0 ms of every 4.4 ms. The first runs alone for
        // as long as the other starts later.
        let apart = (figures[0].1 - figures[1].1).abs();
        assert!(apart < 400.0, "{figures:?}");
        let expected = 500.0 * 2.2 - 1.2 * apart;
        for (took, _) in &figures {
            assert!((took / expected - 1.0).abs() < 0.08, "{figures:?}, expected {expected}");
        }
    });
}

fn uptime_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() * 1000.0
}

#[test]
fn death_frees_the_device_and_the_memory() {
    isolated(&[], || {
        if part().is_some() {
            let gpu = Gpu::open();
            let mut address = 0;
            ok(cuMemAlloc_v2(&mut address, 4 << 30));
            gpu.launch(stream(), 60_000_000);
            println!("ready");
            std::thread::sleep(Duration::from_secs(60));
            return;
        }
        let gpu = Gpu::open();
        let before = free_memory();
        for _ in 0..3 {
            let mut child = start_part("holder");
            let out = child.stdout.as_mut().unwrap();
            let mut text = String::new();
            let mut byte = [0];
            while !text.ends_with("ready\n") {
                assert_eq!(out.read(&mut byte).unwrap(), 1, "{text}");
                text.push(byte[0] as char);
            }
            assert_eq!(before - free_memory(), 4 * GIB + 512 * MIB);
            child.kill().unwrap();
            let begin = Instant::now();
            eventually(|| free_memory() == before);
            let on = stream();
            gpu.launch(on, 1000);
            ok(cuStreamSynchronize(on));
            // The killed process's kernel would have run for a minute.
            assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
            child.wait().unwrap();
        }
    });
}

#[test]
fn killed_at_any_moment_nothing_is_lost() {
    isolated(&[], || {
        if part().is_some() {
            let gpu = Gpu::open();
            let on = stream();
            loop {
                let (mut address, one) = (0, event());
                ok(cuMemAlloc_v2(&mut address, 64 << 20));
                for _ in 0..20 {
                    gpu.launch(on, 20);
                }
                ok(cuEventRecord(one, on));
                ok(cuStreamSynchronize(on));
                ok(cuEventDestroy_v2(one));
                ok(cuMemFree_v2(address));
            }
        }
        let gpu = Gpu::open();
        let before = free_memory();
        let mut seed = 12_345_u64;
        for _ in 0..20 {
            let mut children: Vec<_> = (0..4).map(|_| start_part("worker")).collect();
            for child in &mut children {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                std::thread::sleep(Duration::from_micros(seed >> 50));
                child.kill().unwrap();
                child.wait().unwrap();
            }
            assert_eq!(free_memory(), before);
            let on = stream();
            gpu.launch(on, 100);
            ok(cuStreamSynchronize(on));
            ok(cuStreamDestroy_v2(on));
        }
    });
}

//! Collectives: kernels that wait for each other while they occupy their devices.

use std::ffi::c_void;

use crate::support::*;

const PTX: &[u8] = b".version 8.0\n.target sm_70\n.address_size 64\n\
    .visible .entry reduce(.param .u64 ns, .param .u64 data, .param .u64 reduce_group,\n\
    .param .u64 reduce_members) { ret; }\n\0";

fn kernel() -> Ptr {
    let (mut module, mut kernel) = (null(), null());
    ok(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    ok(cuModuleGetFunction(&mut kernel, module, c"reduce".as_ptr()));
    kernel
}

fn launch(kernel: Ptr, on: Ptr, us: u64, group: u64, members: u64) -> u32 {
    let mut values = [us * 1000, 0, group, members];
    let mut params = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
    let none = std::ptr::null_mut();
    cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, on, params.as_mut_ptr(), none)
}

#[test]
fn members_wait_on_their_devices_for_each_other() {
    isolated(&[], || {
        let gpu = Gpu::open();
        let mut other = null();
        ok(cuDevicePrimaryCtxRetain(&mut other, 1));
        let (own, reduce) = (stream(), kernel());
        ok(cuCtxSetCurrent(other));
        let (far, far_reduce) = (stream(), kernel());
        let (start, end) = (event(), event());
        ok(cuEventRecord(start, far));
        ok(launch(far_reduce, far, 2_000, 5, 2));
        ok(cuEventRecord(end, far));
        std::thread::sleep(std::time::Duration::from_millis(10));
        assert_eq!(cuStreamQuery(far), NOT_READY);
        ok(cuCtxSetCurrent(gpu.context));
        gpu.launch(own, 5_000);
        ok(launch(reduce, own, 1_000, 5, 2));
        ok(cuStreamSynchronize(own));
        ok(cuStreamSynchronize(far));
        let mut ms = 0.0;
        ok(cuEventElapsedTime(&mut ms, start, end));
        assert!((17.0..60.0).contains(&ms), "{ms}");
        assert_eq!(launch(reduce, own, 1, 5, 0), INVALID_VALUE);
        let mut graph = null();
        ok(cuStreamBeginCapture_v2(own, 0));
        assert_eq!(launch(reduce, own, 1, 5, 1), NOT_SUPPORTED);
        ok(cuStreamEndCapture(own, &mut graph));
    });
}

#[test]
fn members_can_be_processes() {
    isolated(&[], || {
        let ordinal = i32::from(part().is_some());
        let mut context = null();
        ok(cuInit(0));
        ok(cuDevicePrimaryCtxRetain(&mut context, ordinal));
        ok(cuCtxSetCurrent(context));
        let (on, reduce) = (stream(), kernel());
        let other = part().is_none().then(|| start_part("other"));
        for step in 0..50 {
            ok(launch(reduce, on, 100, step, 2));
            ok(cuStreamSynchronize(on));
        }
        if let Some(mut other) = other {
            assert!(other.wait().unwrap().success());
        }
    });
}

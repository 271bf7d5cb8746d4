//! Green contexts: a device's primary context with a part of its multiprocessors. The parts are accounted for, but a
//! kernel takes equally long in any of them.

use core::ffi::{c_int, c_uint};

use driver::cuda::{
    self, CuResult, DEV_RESOURCE_SM, DevResource, DevSmResource, Device, GREEN_DEFAULT_STREAM,
};

use crate::attributes::MULTIPROCESSORS;
use crate::context::{self, device_of};
use crate::ffi::{Api, In, Out, api, ensure, handle};
use crate::memory;
use crate::state::{Inner, driver, with};
use crate::stream;

/// Bytes of device memory that a green context takes.
const MEMORY: u64 = 8 << 20;
/// The smallest number of multiprocessors in a partition; every partition is a multiple of it.
const PARTITION: c_uint = 8;
/// The split number of a resource that no split has made: all multiprocessors.
const WHOLE: u32 = 0;

/// The result of `cuDevResourceGenerateDesc`.
#[derive(Clone, Copy)]
pub(crate) struct Description {
    device: u32,
    multiprocessors: c_uint,
}

/// A green context.
pub(crate) struct Green {
    pub(crate) context: u64,
    device: Device,
    on_node: u32,
    multiprocessors: c_uint,
}

fn resource(device: u32, split: u32, multiprocessors: c_uint) -> DevResource {
    let mut padding = [0; 92];
    padding[..4].copy_from_slice(&device.to_le_bytes());
    padding[4..8].copy_from_slice(&split.to_le_bytes());
    DevResource {
        kind: DEV_RESOURCE_SM,
        padding,
        sm: DevSmResource {
            sm_count: multiprocessors,
            min_sm_partition_size: PARTITION,
            sm_coscheduled_alignment: PARTITION,
        },
        rest: [0; 36],
    }
}

/// The device and the split number of a resource.
fn origin(resource: &DevResource) -> Api<(u32, u32)> {
    ensure(resource.kind == DEV_RESOURCE_SM, CuResult::INVALID_RESOURCE_TYPE)?;
    let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|b| resource.padding[at + b]));
    Ok((word(0), word(4)))
}

fn whole(to: Out<DevResource>, device: u32, multiprocessors: c_uint, kind: c_uint) -> Api {
    to.required()?;
    ensure(kind == DEV_RESOURCE_SM, CuResult::INVALID_RESOURCE_TYPE)?;
    to.set(resource(device, WHOLE, multiprocessors));
    Ok(())
}

pub(crate) extern "C" fn device_resource(
    device: Device,
    to: Out<DevResource>,
    kind: c_uint,
) -> CuResult {
    api(|| whole(to, driver()?.device(device)?, MULTIPROCESSORS as c_uint, kind))
}

pub(crate) extern "C" fn context_resource(
    context: cuda::Context,
    to: Out<DevResource>,
    kind: c_uint,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            let context = context::known(inner, context)?;
            let (_, device) = device_of(inner, context)?;
            let green = inner.greens.values().find(|green| green.context == context);
            let own = green.map_or(MULTIPROCESSORS as c_uint, |green| green.multiprocessors);
            whole(to, device, own, kind)
        })
    })
}

pub(crate) extern "C" fn green_resource(
    green: cuda::GreenContext,
    to: Out<DevResource>,
    kind: c_uint,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            let found = known(inner, green)?;
            whole(to, found.on_node, found.multiprocessors, kind)
        })
    })
}

/// `cuDevSmResourceSplitByCount`
pub(crate) extern "C" fn split(
    result: Out<DevResource>,
    groups: Out<c_uint>,
    input: In<DevResource>,
    remaining: Out<DevResource>,
    flags: c_uint,
    least: c_uint,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            let input = input.get()?;
            let (device, split) = origin(&input)?;
            ensure(split == WHOLE, CuResult::INVALID_RESOURCE_CONFIGURATION)?;
            let all = input.sm.sm_count;
            ensure(flags & !3 == 0 && least <= all, CuResult::INVALID_VALUE)?;
            let unit = if flags & 1 == 1 { 2 } else { PARTITION };
            let size = least.max(1).next_multiple_of(unit);
            let most = all / size;
            if result.is_null() {
                groups.required()?.set(most);
                return Ok(());
            }
            let count = groups.get()?.min(most);
            let own = inner.new_handle() as u32;
            for index in 0..count {
                result.set_at(index as usize, resource(device, own, size));
            }
            groups.set(count);
            let mut rest = resource(device, own, all - count * size);
            if rest.sm.sm_count == 0 {
                rest.kind = 0;
            }
            remaining.set(rest);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn describe(
    to: Out<cuda::DevResourceDesc>,
    resources: In<DevResource>,
    count: c_uint,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            to.required()?;
            ensure(count > 0, CuResult::INVALID_VALUE)?;
            let resources = resources.list(count as usize)?;
            let first = origin(&resources[0])?;
            let mut multiprocessors = 0;
            for resource in &resources {
                let same = origin(resource)? == first;
                ensure(same, CuResult::INVALID_RESOURCE_CONFIGURATION)?;
                multiprocessors += resource.sm.sm_count;
            }
            let fits = multiprocessors <= MULTIPROCESSORS as c_uint;
            ensure(fits, CuResult::INVALID_RESOURCE_CONFIGURATION)?;
            let key = inner.new_handle();
            inner.descriptions.insert(key, Description { device: first.0, multiprocessors });
            to.set(handle(key));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn create(
    to: Out<cuda::GreenContext>,
    description: cuda::DevResourceDesc,
    device: Device,
    flags: c_uint,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            to.required()?;
            let on_node = driver.device(device)?;
            ensure(flags == GREEN_DEFAULT_STREAM, CuResult::INVALID_VALUE)?;
            let found = inner.descriptions.get(&(description as u64)).copied();
            let found = found.ok_or(CuResult::INVALID_VALUE)?;
            ensure(found.device == on_node, CuResult::INVALID_VALUE)?;
            let primary = context::retain_primary(driver, inner, device)?;
            if let Err(error) = memory::take(driver, inner, on_node, MEMORY) {
                context::release_primary(driver, inner, device)?;
                return Err(error);
            }
            let context = context::add_green(inner, primary)?;
            let key = inner.new_handle();
            let multiprocessors = found.multiprocessors;
            inner.greens.insert(key, Green { context, device, on_node, multiprocessors });
            to.set(handle(key));
            Ok(())
        })
    })
}

fn known(inner: &Inner, green: cuda::GreenContext) -> Api<&Green> {
    inner.greens.get(&(green as u64)).ok_or(CuResult::INVALID_CONTEXT)
}

pub(crate) extern "C" fn destroy(green: cuda::GreenContext) -> CuResult {
    api(|| {
        with(|driver, inner| {
            known(inner, green)?;
            let Some(found) = inner.greens.remove(&(green as u64)) else { return Ok(()) };
            context::end_green(driver, inner, found.context);
            driver.node.give_back(driver.process, found.on_node, MEMORY);
            context::release_primary(driver, inner, found.device)
        })
    })
}

pub(crate) extern "C" fn to_context(to: Out<cuda::Context>, green: cuda::GreenContext) -> CuResult {
    api(|| {
        with(|_, inner| {
            to.required()?;
            to.set(handle(known(inner, green)?.context));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn id(green: cuda::GreenContext, to: Out<u64>) -> CuResult {
    api(|| {
        with(|_, inner| {
            to.required()?;
            known(inner, green)?;
            to.set(green as u64);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn create_stream(
    to: Out<cuda::Stream>,
    green: cuda::GreenContext,
    flags: c_uint,
    priority: c_int,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            to.required()?;
            ensure(flags == stream::NON_BLOCKING, CuResult::INVALID_VALUE)?;
            let context = known(inner, green)?.context;
            to.set(handle(stream::create_in(driver, inner, context, flags, priority)?));
            Ok(())
        })
    })
}

/// A context's green context; null: none.
pub(crate) fn of(inner: &Inner, context: u64) -> cuda::GreenContext {
    let found = inner.greens.iter().find(|(_, green)| green.context == context);
    handle(found.map_or(0, |(&key, _)| key))
}

pub(crate) extern "C" fn of_stream(stream: cuda::Stream, to: Out<cuda::GreenContext>) -> CuResult {
    api(|| {
        with(|driver, inner| {
            to.required()?;
            let target = stream::target::<false>(driver, inner, stream)?;
            to.set(of(inner, target.context));
            Ok(())
        })
    })
}

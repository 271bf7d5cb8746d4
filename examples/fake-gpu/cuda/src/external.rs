//! Memory imported from other interfaces (Vulkan, OpenGL ...). There are none here, so imported memory counts as this
//! process's, until the object is destroyed and nothing is mapped onto it.

use core::ffi::{c_int, c_uint};

use driver::cuda::{
    self, CuResult, DevicePtr, EXTERNAL_MEMORY_OPAQUE_FD, ExternalMemoryBufferDesc,
    ExternalMemoryHandleDesc, ExternalMemoryMipmapDesc,
};

use crate::array;
use crate::capture;
use crate::context::device_of;
use crate::ffi::{Api, In, Out, api, ensure, handle};
use crate::memory::{self, Allocation, Kind};
use crate::state::{Driver, Inner, with, with_context};

/// Page size of host memory.
const PAGE: u64 = 4096;
/// `CUDA_EXTERNAL_MEMORY_DEDICATED`
const DEDICATED: c_uint = 1;
/// Upper bound for the size of an object.
const LARGEST: u64 = 1 << 45;

/// Imported memory.
pub(crate) struct External {
    context: u64,
    device: u32,
    size: u64,
    taken: u64,
    /// The file that holds its bytes.
    file: c_int,
    destroyed: bool,
    /// Number of buffers and arrays mapped onto it.
    uses: u32,
}

pub(crate) extern "C" fn import(
    to: Out<cuda::ExternalMemory>,
    desc: In<ExternalMemoryHandleDesc>,
) -> CuResult {
    api(|| {
        with_context(|driver, inner, context| {
            to.required()?;
            let desc = desc.get()?;
            ensure(desc.kind == EXTERNAL_MEMORY_OPAQUE_FD, CuResult::NOT_SUPPORTED)?;
            ensure(desc.size > 0 && desc.flags & !DEDICATED == 0, CuResult::INVALID_VALUE)?;
            ensure(desc.size <= LARGEST, CuResult::OUT_OF_MEMORY)?;
            capture::unsafe_call(inner)?;
            // SAFETY: asks whether the number is an open descriptor.
            let open = unsafe { libc::fcntl(desc.fd, libc::F_GETFD) } >= 0;
            ensure(open, CuResult::INVALID_HANDLE)?;
            let (_, device) = device_of(inner, context)?;
            let taken = memory::rounded(desc.size);
            memory::take(driver, inner, device, taken)?;
            let file = match bytes(desc.size) {
                Ok(file) => file,
                Err(error) => {
                    driver.node.give_back(driver.process, device, taken);
                    return Err(error);
                }
            };
            // SAFETY: the driver owns the descriptor from here on.
            unsafe { libc::close(desc.fd) };
            let key = inner.new_handle();
            inner.external.insert(
                key,
                External {
                    context,
                    device,
                    size: desc.size,
                    taken,
                    file,
                    destroyed: false,
                    uses: 0,
                },
            );
            to.set(handle(key));
            Ok(())
        })
    })
}

fn bytes(size: u64) -> Api<c_int> {
    // SAFETY: a valid name; makes a new descriptor.
    let file = unsafe { libc::memfd_create(c"fake-gpu-external".as_ptr(), libc::MFD_CLOEXEC) };
    ensure(file >= 0, CuResult::OUT_OF_MEMORY)?;
    // SAFETY: the descriptor made above.
    let sized = unsafe { libc::ftruncate(file, size as libc::off_t) } == 0;
    if !sized {
        // SAFETY: as above; not used again.
        unsafe { libc::close(file) };
    }
    ensure(sized, CuResult::OUT_OF_MEMORY)?;
    Ok(file)
}

fn known(inner: &mut Inner, memory: cuda::ExternalMemory) -> Api<(u64, &mut External)> {
    match inner.external.get_mut(&(memory as u64)) {
        Some(found) if !found.destroyed => Ok((memory as u64, found)),
        _ => Err(CuResult::INVALID_HANDLE),
    }
}

/// Maps a part of the memory. The result may begin within a page.
fn map(found: &mut External, offset: u64, size: u64) -> Api<u64> {
    let end = offset.checked_add(size).ok_or(CuResult::INVALID_VALUE)?;
    ensure(size > 0 && end <= found.size, CuResult::INVALID_VALUE)?;
    let slack = offset % PAGE;
    // SAFETY: a new mapping at an address of the system's choice, of a part of the object's file.
    let address = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            (size + slack) as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            found.file,
            (offset - slack) as libc::off_t,
        )
    };
    ensure(address != libc::MAP_FAILED, CuResult::OUT_OF_MEMORY)?;
    found.uses += 1;
    Ok(address as u64 + slack)
}

/// Ends a buffer or an array that was mapped onto external memory.
pub(crate) fn unmap(driver: &Driver, inner: &mut Inner, key: u64, base: u64, size: u64) {
    let slack = base % PAGE;
    memory::unmap(base - slack, size + slack);
    if let Some(found) = inner.external.get_mut(&key) {
        found.uses -= 1;
    }
    drop_unused(driver, inner, key);
}

fn drop_unused(driver: &Driver, inner: &mut Inner, key: u64) {
    let over = inner.external.get(&key).is_some_and(|found| found.destroyed && found.uses == 0);
    if over && let Some(found) = inner.external.remove(&key) {
        // SAFETY: the object's own descriptor, not used again.
        unsafe { libc::close(found.file) };
        driver.node.give_back(driver.process, found.device, found.taken);
    }
}

pub(crate) extern "C" fn buffer(
    to: Out<DevicePtr>,
    memory: cuda::ExternalMemory,
    desc: In<ExternalMemoryBufferDesc>,
) -> CuResult {
    api(|| {
        with_context(|_, inner, context| {
            to.required()?;
            let desc = desc.get()?;
            ensure(desc.flags == 0, CuResult::INVALID_VALUE)?;
            let (key, found) = known(inner, memory)?;
            let base = map(found, desc.offset, desc.size)?;
            let device = found.device;
            inner.memory.insert(
                base,
                Allocation {
                    size: desc.size,
                    taken: 0,
                    device,
                    context,
                    kind: Kind::External(key),
                    ours: false,
                },
            );
            to.set(base);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn mipmap(
    to: Out<cuda::MipmappedArray>,
    memory: cuda::ExternalMemory,
    desc: In<ExternalMemoryMipmapDesc>,
) -> CuResult {
    api(|| {
        with_context(|_, inner, context| {
            to.required()?;
            let desc = desc.get()?;
            let (sizes, size) = array::mipmap_sizes(&desc.array, desc.num_levels)?;
            let (key, found) = known(inner, memory)?;
            let base = map(found, desc.offset, size)?;
            let device = found.device;
            let place = array::Place { context, device, base, size, taken: 0, external: key };
            to.set(handle(array::add_mipmap(inner, &desc.array, &sizes, place)));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn destroy(memory: cuda::ExternalMemory) -> CuResult {
    api(|| {
        with(|driver, inner| {
            capture::unsafe_call(inner)?;
            let (key, found) = known(inner, memory)?;
            found.destroyed = true;
            drop_unused(driver, inner, key);
            Ok(())
        })
    })
}

/// Frees external memory imported in a context, with everything mapped onto it.
pub(crate) fn drop_context(driver: &Driver, inner: &mut Inner, context: u64) {
    let gone: Vec<u64> =
        inner.external.iter().filter(|(_, e)| e.context == context).map(|(&k, _)| k).collect();
    for key in gone {
        if let Some(found) = inner.external.get_mut(&key) {
            found.destroyed = true;
        }
        drop_unused(driver, inner, key);
    }
}

/// Moves a green context's external memory to its primary context.
pub(crate) fn hand_over(inner: &mut Inner, from: u64, to: u64) {
    for found in inner.external.values_mut().filter(|found| found.context == from) {
        found.context = to;
    }
}

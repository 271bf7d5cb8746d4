//! Modules, libraries and their kernels. An image is PTX text, of which only the kernels' `.entry` is read. One file
//! for one section of the driver API ("Module Management").

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::ffi::CString;

use driver::cuda::{self, CuResult, Device};

use crate::attributes;
use crate::ffi::{Api, In, Out, Text, api, ensure, handle};
use crate::loading::{self, eager};
use crate::ptx::{self, Entry};
use crate::state::{Driver, Inner, driver, with, with_context};
use crate::{capture, context, memory};

/// From this size on, an image takes device memory of its own.
const SMALL_IMAGE: u64 = 64 << 10;

/// A module (of one context) or a library (`context` 0).
pub(crate) struct Module {
    pub(crate) context: u64,
    entries: Vec<Entry>,
    /// The returned handles, by entry.
    functions: Vec<u64>,
    /// Whether it is a library.
    library: bool,
    /// The node's device, and the bytes of it that the variables take.
    device: u32,
    taken: u64,
    /// Bytes of code per context in which it is loaded.
    code: u64,
    /// The contexts in which it is loaded, with their devices.
    loaded: Vec<(u64, u32)>,
}

/// A kernel, of a module or of a library.
pub(crate) struct Function {
    pub(crate) context: u64,
    pub(crate) module: u64,
    pub(crate) timed: bool,
    pub(crate) collective: Option<[usize; 2]>,
    pub(crate) params: Vec<(usize, usize)>,
    pub(crate) max_dynamic_shared: c_int,
    /// The contexts in which it has been launched.
    pub(crate) placed: Vec<u64>,
    name: CString,
    /// Set by the functions of CUDA 2 (`cuFuncSetBlockShape`, `cuParamSet*`).
    pub(crate) block: [c_uint; 3],
    pub(crate) shared: c_uint,
    pub(crate) buffer: Vec<u8>,
}

fn load(driver: &Driver, inner: &mut Inner, image: Text, context: u64) -> Api<u64> {
    let text = image.bytes()?;
    let text = String::from_utf8(text).map_err(|_| CuResult::INVALID_IMAGE)?;
    let entries = ptx::entries(&text).ok_or(CuResult::INVALID_IMAGE)?;
    let functions = vec![0; entries.len()];
    // Small images fit into the memory of the context.
    let size = ptx::placed(&text).unwrap_or(text.len() as u64);
    let code = if size < SMALL_IMAGE { 0 } else { memory::round_up(size, memory::GRANULE) };
    // A library's variables would exist in each context that uses them; nothing here does.
    let library = context == 0;
    let (device, taken) = match (library, ptx::variables(&text)) {
        (true, _) | (_, 0) => (0, 0),
        (false, bytes) => (context::device_of(inner, context)?.1, memory::rounded(bytes)),
    };
    memory::take(driver, inner, device, taken)?;
    let key = inner.new_handle();
    let loaded = Vec::new();
    let made = Module { context, entries, functions, library, device, taken, code, loaded };
    inner.modules.insert(key, made);
    Ok(key)
}

/// Loads a module's code into a context, unless it is there already.
pub(crate) fn load_code(driver: &Driver, inner: &mut Inner, key: u64, context: u64) -> Api {
    let Some(found) = inner.modules.get(&key) else { return Ok(()) };
    let code = found.code;
    let context = context::whole(inner, if found.library { context } else { found.context });
    if code == 0 || found.loaded.iter().any(|&(there, _)| there == context) {
        return Ok(());
    }
    let (_, device) = context::device_of(inner, context)?;
    memory::take(driver, inner, device, code)?;
    if let Some(found) = inner.modules.get_mut(&key) {
        found.loaded.push((context, device));
    }
    Ok(())
}

fn forget(driver: &Driver, inner: &mut Inner, key: u64) {
    let Some(module) = inner.modules.remove(&key) else { return };
    driver.node.give_back(driver.process, module.device, module.taken);
    for &(_, device) in &module.loaded {
        driver.node.give_back(driver.process, device, module.code);
    }
    inner.functions.retain(|_, function| function.module != key);
}

pub(crate) extern "C" fn load_function(function: cuda::Function) -> CuResult {
    api(|| {
        with_context(|driver, inner, context| {
            let module = known(inner, function)?.module;
            load_code(driver, inner, module, context)
        })
    })
}

/// `cuFuncIsLoaded`: 0 unloaded, 1 loaded.
pub(crate) extern "C" fn function_is_loaded(
    state: Out<c_uint>,
    function: cuda::Function,
) -> CuResult {
    api(|| {
        with_context(|_, inner, context| {
            state.required()?;
            let module = known(inner, function)?.module;
            let context = context::whole(inner, context);
            let loaded = inner.modules.get(&module).is_none_or(|module| {
                module.code == 0 || module.loaded.iter().any(|&(there, _)| there == context)
            });
            state.set(c_uint::from(loaded));
            Ok(())
        })
    })
}

/// Removes a context's modules and its part of libraries, and releases their memory.
pub(crate) fn drop_context(driver: &Driver, inner: &mut Inner, context: u64) {
    let own: Vec<u64> =
        inner.modules.iter().filter(|(_, m)| m.context == context).map(|(&k, _)| k).collect();
    for key in own {
        forget(driver, inner, key);
    }
    for module in inner.modules.values_mut() {
        let code = module.code;
        module.loaded.retain(|&(there, device)| {
            if there == context {
                driver.node.give_back(driver.process, device, code);
            }
            there != context
        });
    }
}

pub(crate) extern "C" fn load_data(module: Out<cuda::Module>, image: Text) -> CuResult {
    api(|| {
        with_context(|driver, inner, context| {
            module.required()?;
            capture::unsafe_call(inner)?;
            loading::wait(driver, inner, context);
            let key = load(driver, inner, image, context::whole(inner, context))?;
            if eager()
                && let Err(error) = load_code(driver, inner, key, context)
            {
                forget(driver, inner, key);
                return Err(error);
            }
            module.set(handle(key));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn load_data_ex(
    module: Out<cuda::Module>,
    image: Text,
    count: c_uint,
    options: In<c_uint>,
    _values: In<*mut c_void>,
) -> CuResult {
    if count > 0 && options.is_null() {
        return CuResult::INVALID_VALUE;
    }
    load_data(module, image)
}

pub(crate) extern "C" fn unload(module: cuda::Module) -> CuResult {
    api(|| remove(module, false))
}

pub(crate) extern "C" fn unload_library(library: cuda::Module) -> CuResult {
    api(|| remove(library, true))
}

fn remove(module: cuda::Module, library: bool) -> Api {
    with(|driver, inner| {
        let key = module as u64;
        let found = inner.modules.get(&key).ok_or(CuResult::INVALID_HANDLE)?;
        ensure(found.library == library, CuResult::INVALID_HANDLE)?;
        forget(driver, inner, key);
        Ok(())
    })
}

fn function(inner: &mut Inner, module: cuda::Module, name: Text, library: bool) -> Api<u64> {
    let key = module as u64;
    let name = name.bytes()?;
    let found = inner.modules.get(&key).ok_or(CuResult::INVALID_HANDLE)?;
    ensure(found.library == library, CuResult::INVALID_HANDLE)?;
    let index = found
        .entries
        .iter()
        .position(|entry| entry.name.as_bytes() == name)
        .ok_or(CuResult::NOT_FOUND)?;
    if found.functions[index] != 0 {
        return Ok(found.functions[index]);
    }
    let (context, entry) = (found.context, found.entries[index].clone());
    let function = inner.new_handle();
    inner.functions.insert(
        function,
        Function {
            context,
            module: key,
            timed: entry.timed,
            collective: entry.collective,
            params: entry.params,
            max_dynamic_shared: 49_152,
            placed: Vec::new(),
            name: CString::new(entry.name).unwrap_or_default(),
            block: [1; 3],
            shared: 0,
            buffer: Vec::new(),
        },
    );
    if let Some(found) = inner.modules.get_mut(&key) {
        found.functions[index] = function;
    }
    Ok(function)
}

pub(crate) extern "C" fn get_function(
    to: Out<cuda::Function>,
    module: cuda::Module,
    name: Text,
) -> CuResult {
    api(|| {
        with_context(|driver, inner, context| {
            to.required()?;
            let found = function(inner, module, name, false)?;
            load_code(driver, inner, module as u64, context)?;
            to.set(handle(found));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn function_count(count: Out<c_uint>, module: cuda::Module) -> CuResult {
    api(|| {
        with(|_, inner| {
            count.required()?;
            let found = inner.modules.get(&(module as u64)).ok_or(CuResult::INVALID_HANDLE)?;
            count.set(found.entries.len() as c_uint);
            Ok(())
        })
    })
}

/// `cuModuleGetGlobal`: images have no accessible variables here.
pub(crate) extern "C" fn get_global(
    _address: Out<u64>,
    _size: Out<usize>,
    module: cuda::Module,
    name: Text,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            name.bytes()?;
            let known = inner.modules.contains_key(&(module as u64));
            ensure(known, CuResult::INVALID_HANDLE)?;
            Err(CuResult::NOT_FOUND)
        })
    })
}

pub(crate) extern "C" fn loading_mode(mode: Out<c_uint>) -> CuResult {
    api(|| {
        driver()?;
        mode.required()?.set(if eager() { 1 } else { 2 });
        Ok(())
    })
}

/// `cuLibraryLoadData`; options are accepted without effect.
#[allow(clippy::too_many_arguments, reason = "the driver's own signature")]
pub(crate) extern "C" fn load_library(
    library: Out<cuda::Module>,
    image: Text,
    _jit_options: In<c_uint>,
    _jit_values: In<*mut c_void>,
    _jit_count: c_uint,
    _options: In<c_uint>,
    _values: In<*mut c_void>,
    _count: c_uint,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            library.required()?;
            loading::wait(driver, inner, 0);
            library.set(handle(load(driver, inner, image, 0)?));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn library_kernel(
    to: Out<cuda::Function>,
    library: cuda::Module,
    name: Text,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            to.required()?;
            // A library belongs to no context; its code is loaded into those that use it.
            let found = function(inner, library, name, true)?;
            to.set(handle(found));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn library_kernel_count(
    count: Out<c_uint>,
    library: cuda::Module,
) -> CuResult {
    function_count(count, library)
}

/// `cuKernelGetFunction`: a kernel can be used as a function in any context, with the same handle.
pub(crate) extern "C" fn kernel_function(
    to: Out<cuda::Function>,
    kernel: cuda::Function,
) -> CuResult {
    api(|| {
        with_context(|driver, inner, context| {
            to.required()?;
            let module = known(inner, kernel)?.module;
            load_code(driver, inner, module, context)?;
            to.set(kernel);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn kernel_library(to: Out<cuda::Module>, kernel: cuda::Function) -> CuResult {
    api(|| {
        with(|_, inner| {
            to.required()?;
            to.set(handle(known(inner, kernel)?.module));
            Ok(())
        })
    })
}

pub(crate) fn known(inner: &mut Inner, function: cuda::Function) -> Api<&mut Function> {
    inner.functions.get_mut(&(function as u64)).ok_or(CuResult::INVALID_HANDLE)
}

pub(crate) extern "C" fn function_module(
    to: Out<cuda::Module>,
    function: cuda::Function,
) -> CuResult {
    kernel_library(to, function)
}

/// `cuFuncGetName`: the text lives as long as the kernel's module.
pub(crate) extern "C" fn function_name(
    to: Out<*const c_char>,
    function: cuda::Function,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            to.required()?;
            to.set(known(inner, function)?.name.as_ptr());
            Ok(())
        })
    })
}

pub(crate) extern "C" fn param_info(
    function: cuda::Function,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            offset.required()?;
            let params = &known(inner, function)?.params;
            let &(at, bytes) = params.get(index).ok_or(CuResult::INVALID_VALUE)?;
            offset.set(at);
            size.set(bytes);
            Ok(())
        })
    })
}

fn attribute(inner: &mut Inner, attribute: c_uint, function: cuda::Function) -> Api<c_int> {
    let function = known(inner, function)?;
    Ok(match attribute {
        0 => attributes::THREADS_PER_BLOCK,
        4 => 16,
        5 | 6 => 90,
        8 => function.max_dynamic_shared,
        9 => -1,
        1..=3 | 7 | 10..=15 => 0,
        _ => return Err(CuResult::INVALID_VALUE),
    })
}

fn set_attribute(inner: &mut Inner, attribute: c_uint, value: c_int, f: cuda::Function) -> Api {
    let function = known(inner, f)?;
    match attribute {
        8 => {
            let fits = (0..=attributes::SHARED_OPTIN).contains(&value);
            ensure(fits, CuResult::INVALID_VALUE)?;
            function.max_dynamic_shared = value;
            Ok(())
        }
        9 => ensure((-1..=100).contains(&value), CuResult::INVALID_VALUE),
        11..=15 => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

pub(crate) extern "C" fn get_function_attribute(
    value: Out<c_int>,
    which: c_uint,
    function: cuda::Function,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            value.required()?;
            value.set(attribute(inner, which, function)?);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn set_function_attribute(
    function: cuda::Function,
    which: c_uint,
    value: c_int,
) -> CuResult {
    api(|| with(|_, inner| set_attribute(inner, which, value, function)))
}

pub(crate) extern "C" fn get_kernel_attribute(
    value: Out<c_int>,
    which: c_uint,
    kernel: cuda::Function,
    device: Device,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            value.required()?;
            driver.device(device)?;
            value.set(attribute(inner, which, kernel)?);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn set_kernel_attribute(
    which: c_uint,
    value: c_int,
    kernel: cuda::Function,
    device: Device,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            driver.device(device)?;
            set_attribute(inner, which, value, kernel)
        })
    })
}

pub(crate) extern "C" fn set_cache_config(function: cuda::Function, config: c_uint) -> CuResult {
    api(|| {
        with(|_, inner| {
            ensure(config <= 3, CuResult::INVALID_VALUE)?;
            known(inner, function).map(|_| ())
        })
    })
}

pub(crate) extern "C" fn occupancy(
    blocks: Out<c_int>,
    function: cuda::Function,
    block_size: c_int,
    shared: usize,
) -> CuResult {
    occupancy_with_flags(blocks, function, block_size, shared, 0)
}

pub(crate) extern "C" fn occupancy_with_flags(
    blocks: Out<c_int>,
    function: cuda::Function,
    block_size: c_int,
    shared: usize,
    flags: c_uint,
) -> CuResult {
    api(|| {
        with_context(|_, inner, _| {
            blocks.required()?;
            known(inner, function)?;
            ensure(block_size > 0 && flags <= 1, CuResult::INVALID_VALUE)?;
            blocks.set(blocks_per_multiprocessor(block_size as u32, shared as u64));
            Ok(())
        })
    })
}

/// Resident blocks per multiprocessor.
pub(crate) fn blocks_per_multiprocessor(threads: u32, shared: u64) -> c_int {
    if threads > attributes::THREADS_PER_BLOCK as u32 {
        return 0;
    }
    let by_threads = attributes::THREADS_PER_MULTIPROCESSOR / (threads.max(1) as c_int);
    let by_shared = attributes::SHARED_OPTIN as u64 / shared.max(1);
    by_threads
        .min(attributes::BLOCKS_PER_MULTIPROCESSOR)
        .min(c_int::try_from(by_shared).unwrap_or(c_int::MAX))
}

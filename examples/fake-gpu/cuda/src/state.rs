//! The state of one process: its tables of objects, and initialisation.

use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use driver::cuda::CuResult;
use fake_node::Node;
use fake_node::queue::QueueError;

use crate::array::{Array, Mipmap};
use crate::capture::Capture;
use crate::context::{Context, Primary};
use crate::device;
use crate::event::Event;
use crate::external::External;
use crate::ffi::{Api, ensure};
use crate::graph::Graph;
use crate::graph_exec::Exec;
use crate::graph_memory::GraphMemory;
use crate::green::{Description, Green};
use crate::host_calls::Calls;
use crate::memory::Allocation;
use crate::module::{Function, Module};
use crate::pool::Pool;
use crate::sharing::Holds;
use crate::sparse::Sparse;
use crate::stream::Stream;
use crate::stream_memory::Watch;
use crate::stub::{LIFE, TAKEN_DOWN};
use crate::vmm::Vmm;
use crate::{ffi, thread};

/// Hashes handles: small numbers, which one multiplication spreads well enough.
#[derive(Default)]
pub(crate) struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// Objects by handle.
pub(crate) type Table<T> = HashMap<u64, T, BuildHasherDefault<HandleHasher>>;

/// This process's tables.
#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) last_handle: u64,
    pub(crate) contexts: Table<Context>,
    pub(crate) primaries: Vec<Primary>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) captures: Table<Capture>,
    pub(crate) graphs: Table<Graph>,
    /// The graph and index of each node, by handle.
    pub(crate) nodes: Table<(u64, usize)>,
    pub(crate) execs: Table<Exec>,
    /// By device of the node.
    pub(crate) graph_memory: Table<GraphMemory>,
    /// Allocations of device, managed and host memory, by base address.
    pub(crate) memory: BTreeMap<u64, Allocation>,
    /// Managed allocations that prefer the host.
    pub(crate) at_home: BTreeSet<u64>,
    pub(crate) pools: Table<Pool>,
    /// The pools set by `cuDeviceSetMemPool`, by device of the node.
    pub(crate) current_pools: Table<u64>,
    pub(crate) arrays: Table<Array>,
    pub(crate) mipmaps: Table<Mipmap>,
    pub(crate) vmm: Vmm,
    pub(crate) holds: Holds,
    pub(crate) sparse: Sparse,
    pub(crate) greens: Table<Green>,
    pub(crate) descriptions: Table<Description>,
    pub(crate) external: Table<External>,
}

impl Inner {
    /// A fresh handle, never used before.
    pub(crate) fn new_handle(&mut self) -> u64 {
        self.last_handle += 16;
        0x5_0000_0000 + self.last_handle
    }
}

/// The initialised driver of this process.
pub(crate) struct Driver {
    pub(crate) node: Node,
    /// This process's slot on the node.
    pub(crate) process: u32,
    /// The node's device of each ordinal, according to `CUDA_VISIBLE_DEVICES`.
    pub(crate) visible: Vec<u32>,
    inner: Mutex<Inner>,
    pub(crate) host_calls: Calls,
    pub(crate) watch: Watch,
}

static DRIVER: AtomicPtr<Driver> = AtomicPtr::new(null_mut());
/// Number of forks; state from an earlier number belongs to the parent.
static FORKS: AtomicU64 = AtomicU64::new(1);
static INIT: Mutex<()> = Mutex::new(());
static AT_FORK: Once = Once::new();

/// A number that differs in every forked child.
pub(crate) fn life() -> u64 {
    FORKS.load(Relaxed)
}

/// The driver, if `cuInit` was called in this process. Fails within host functions that the driver calls.
pub(crate) fn driver() -> Api<&'static Driver> {
    ensure(!thread::in_callbacks(), CuResult::NOT_PERMITTED)?;
    let driver = DRIVER.load(Acquire);
    // SAFETY: null, or a box that was leaked by `init`; it is never freed.
    unsafe { driver.as_ref() }.ok_or(CuResult::NOT_INITIALIZED)
}

impl Driver {
    /// The tables, locked.
    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node's device of an ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Api<u32> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|index| self.visible.get(index).copied())
            .ok_or(CuResult::INVALID_DEVICE)
    }
}

/// Locks the tables of an initialised driver and runs `body`.
pub(crate) fn with<T>(body: impl FnOnce(&'static Driver, &mut Inner) -> Api<T>) -> Api<T> {
    let driver = driver()?;
    body(driver, &mut driver.inner())
}

/// Like [`with`], for calls that need a usable current context; `body` gets its handle.
pub(crate) fn with_context<T>(
    body: impl FnOnce(&'static Driver, &mut Inner, u64) -> Api<T>,
) -> Api<T> {
    with(|driver, inner| {
        let context = current(inner)?;
        body(driver, inner, context)
    })
}

/// The current context, if it is usable.
pub(crate) fn current(inner: &Inner) -> Api<u64> {
    let context = thread::current();
    ensure(context != 0, CuResult::INVALID_CONTEXT)?;
    match inner.contexts.get(&context) {
        Some(found) if found.active => Ok(context),
        _ => Err(CuResult::CONTEXT_IS_DESTROYED),
    }
}

/// The error code for an unexpected state of the node.
pub(crate) fn queue_error(error: QueueError) -> CuResult {
    match error {
        QueueError::NoSlot => CuResult::OUT_OF_MEMORY,
        QueueError::Gone | QueueError::Full | QueueError::Held => CuResult::INVALID_HANDLE,
    }
}

/// `cuInit`
pub(crate) extern "C" fn init(flags: u32) -> CuResult {
    ffi::api(|| {
        ensure(flags == 0, CuResult::INVALID_VALUE)?;
        let _one_at_a_time = INIT.lock().unwrap_or_else(PoisonError::into_inner);
        if driver().is_ok() {
            return Ok(());
        }
        let node = Node::open().map_err(|error| {
            eprintln!("fake libcuda: {error}");
            CuResult::OPERATING_SYSTEM
        })?;
        let visible = device::visible(node.config().devices);
        ensure(!visible.is_empty(), CuResult::NO_DEVICE)?;
        let process = node.attach(device::queues()).map_err(queue_error)?;
        AT_FORK.call_once(|| {
            // SAFETY: registers a function of this library, which is never unloaded: programs that
            // link it keep drivers loaded until the process ends (see their build scripts).
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
        let mut inner = Inner::default();
        inner.primaries.resize_with(visible.len(), Primary::default);
        let (inner, host_calls) = (Mutex::new(inner), Calls::default());
        let watch = Watch::default();
        let driver = Box::new(Driver { node, process, visible, inner, host_calls, watch });
        DRIVER.store(Box::into_raw(driver), Release);
        Ok(())
    })
}

/// Runs in a forked child, which is as before `cuInit`: everything belongs to the parent. The parent's tables are left
/// alone, because a thread that does not exist here may hold their lock.
extern "C" fn forked() {
    if let Ok(driver) = driver() {
        driver.node.abandon();
    }
    DRIVER.store(null_mut(), Release);
    FORKS.fetch_add(1, Relaxed);
}

/// Unregisters this process from the node at process exit; later calls are refused.
extern "C" fn take_down() {
    if let Ok(driver) = driver() {
        LIFE.store(TAKEN_DOWN, Release);
        driver.node.detach(driver.process);
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = take_down;

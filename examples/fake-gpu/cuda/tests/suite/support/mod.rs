//! Loads the built library, and runs each test in its own process on its own node.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(non_snake_case, clippy::too_many_arguments, reason = "the driver's own names and shapes")]

use std::ffi::{CString, OsStr, c_void};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use driver::copy::{BatchedCopy3d, Copy2d, Copy3d, CopyAttributes};

use driver::cuda::{DevResource, HostFunction, IpcMemHandle, MemLocation, StreamCallback};

/// Set in the process that runs the body of one test.
const BODY: &str = "FAKE_CUDA_TEST_BODY";
/// Names the part of a test that another process runs.
const PART: &str = "FAKE_CUDA_TEST_PART";

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NOT_INITIALIZED: u32 = 3;
pub(crate) const INVALID_DEVICE: u32 = 101;
pub(crate) const INVALID_IMAGE: u32 = 200;
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const INVALID_HANDLE: u32 = 400;
pub(crate) const NOT_FOUND: u32 = 500;
pub(crate) const NOT_READY: u32 = 600;
pub(crate) const NOT_SUPPORTED: u32 = 801;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

pub(crate) type Ptr = *mut c_void;

/// The path of the library: beside the test binary, which is in `deps`.
pub(crate) fn library() -> PathBuf {
    // The tests of behaviour also run with a real driver; the tests of time do not.
    std::env::var_os("SLUICE_TEST_LIBCUDA").map_or_else(|| built("libfake_cuda.so"), Into::into)
}

/// The path of a library of this workspace that cargo has built for the tests.
pub(crate) fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let deps = own.parent().unwrap();
    let candidates = [deps.join(name), deps.parent().unwrap().join(name)];
    candidates.into_iter().find(|path| path.exists()).unwrap_or_else(|| panic!("no {name}"))
}

fn loaded() -> usize {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let path = CString::new(library().to_str().unwrap()).unwrap();
        // SAFETY: a library of this workspace; it has no constructor.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "cannot load {path:?}");
        handle as usize
    })
}

/// The address of an exported function.
pub(crate) fn symbol(name: &str) -> Option<usize> {
    let name = CString::new(name).unwrap();
    // SAFETY: a valid handle and name.
    let found = unsafe { libc::dlsym(loaded() as Ptr, name.as_ptr()) };
    (!found.is_null()).then_some(found as usize)
}

macro_rules! driver {
    ($($name:ident($($arg:ident: $kind:ty),* $(,)?);)*) => {$(
        pub(crate) fn $name($($arg: $kind),*) -> u32 {
            let address = symbol(stringify!($name)).expect(stringify!($name));
            type Function = extern "C" fn($($kind),*) -> u32;
            // SAFETY: the signature is the one in cuda.h.
            let function = unsafe { std::mem::transmute::<usize, Function>(address) };
            function($($arg),*)
        }
    )*};
}

driver! {
    cuInit(flags: u32);
    cuDeviceGet(device: &mut i32, ordinal: i32);
    cuDeviceGetCount(count: &mut i32);
    cuDeviceGetAttribute(value: &mut i32, attribute: u32, device: i32);
    cuDeviceTotalMem_v2(bytes: &mut usize, device: i32);
    cuDevicePrimaryCtxRetain(context: &mut Ptr, device: i32);
    cuDevicePrimaryCtxRelease_v2(device: i32);
    cuDevicePrimaryCtxReset_v2(device: i32);
    cuDevicePrimaryCtxGetState(device: i32, flags: &mut u32, active: &mut i32);
    cuDeviceGraphMemTrim(device: i32);
    cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: &mut u64);
    cuDeviceGetDefaultMemPool(pool: &mut Ptr, device: i32);
    cuCtxCreate_v2(context: &mut Ptr, flags: u32, device: i32);
    cuCtxDestroy_v2(context: Ptr);
    cuCtxSetCurrent(context: Ptr);
    cuCtxGetCurrent(context: &mut Ptr);
    cuCtxPopCurrent_v2(context: &mut Ptr);
    cuCtxSynchronize();
    cuModuleLoadData(module: &mut Ptr, image: *const c_void);
    cuModuleGetFunction(function: &mut Ptr, module: Ptr, name: *const i8);
    cuModuleUnload(module: Ptr);
    cuStreamCreate(stream: &mut Ptr, flags: u32);
    cuStreamDestroy_v2(stream: Ptr);
    cuStreamSynchronize(stream: Ptr);
    cuStreamQuery(stream: Ptr);
    cuStreamWaitEvent(stream: Ptr, event: Ptr, flags: u32);
    cuStreamWaitValue32(stream: Ptr, address: u64, value: u32, flags: u32);
    cuStreamWaitValue32_v2(stream: Ptr, address: u64, value: u32, flags: u32);
    cuStreamWaitValue32_v2_ptsz(stream: Ptr, address: u64, value: u32, flags: u32);
    cuStreamWaitValue64_v2(stream: Ptr, address: u64, value: u64, flags: u32);
    cuStreamWriteValue32_v2(stream: Ptr, address: u64, value: u32, flags: u32);
    cuStreamWriteValue64_v2(stream: Ptr, address: u64, value: u64, flags: u32);
    cuStreamBatchMemOp_v2(stream: Ptr, count: u32, list: *const [u64; 6], flags: u32);
    cuStreamBeginCapture_v2(stream: Ptr, mode: u32);
    cuStreamEndCapture(stream: Ptr, graph: &mut Ptr);
    cuStreamIsCapturing(stream: Ptr, status: &mut u32);
    cuThreadExchangeStreamCaptureMode(mode: &mut u32);
    cuEventCreate(event: &mut Ptr, flags: u32);
    cuEventDestroy_v2(event: Ptr);
    cuEventRecord(event: Ptr, stream: Ptr);
    cuEventQuery(event: Ptr);
    cuEventSynchronize(event: Ptr);
    cuEventElapsedTime(ms: &mut f32, start: Ptr, end: Ptr);
    cuMemAlloc_v2(address: &mut u64, size: usize);
    cuMemFree_v2(address: u64);
    cuMemAlloc(address: &mut u32, size: u32);
    cuMemFree(address: u32);
    cuMemAllocPitch_v2(a: &mut u64, pitch: &mut usize, width: usize, height: usize, element: u32);
    cuMemAllocManaged(address: &mut u64, size: usize, flags: u32);
    cuMemAllocAsync(address: &mut u64, size: usize, stream: Ptr);
    cuMemFreeAsync(address: u64, stream: Ptr);
    cuMemPrefetchAsync(address: u64, size: usize, device: i32, stream: Ptr);
    cuMemGetInfo_v2(free: &mut usize, total: &mut usize);
    cuMemGetAddressRange_v2(base: &mut u64, size: &mut usize, address: u64);
    cuMemHostAlloc(address: &mut Ptr, size: usize, flags: u32);
    cuMemFreeHost(address: Ptr);
    cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: u32);
    cuMemHostUnregister(address: *mut c_void);
    cuMemHostGetDevicePointer_v2(to: &mut u64, address: *mut c_void, flags: u32);
    cuMemPoolSetAttribute(pool: Ptr, attribute: u32, value: *const u64);
    cuIpcGetMemHandle(handle: &mut IpcMemHandle, address: u64);
    cuIpcOpenMemHandle_v2(address: &mut u64, handle: IpcMemHandle, flags: u32);
    cuIpcCloseMemHandle(address: u64);
    cuMemExportToShareableHandle(to: &mut i32, handle: u64, kind: u32, flags: u64);
    cuMemImportFromShareableHandle(handle: &mut u64, descriptor: Ptr, kind: u32);
    cuMemGetAllocationPropertiesFromHandle(prop: *mut c_void, handle: u64);
    cuMemPoolCreate(pool: &mut Ptr, props: *const c_void);
    cuMemPoolDestroy(pool: Ptr);
    cuMemAllocFromPoolAsync(address: &mut u64, size: usize, pool: Ptr, stream: Ptr);
    cuMemPoolExportToShareableHandle(to: &mut i32, pool: Ptr, kind: u32, flags: u64);
    cuMemPoolImportFromShareableHandle(pool: &mut Ptr, descriptor: Ptr, kind: u32, flags: u64);
    cuMemPoolExportPointer(data: &mut [u8; 64], address: u64);
    cuMemPoolImportPointer(address: &mut u64, pool: Ptr, data: &[u8; 64]);
    cuMemPoolTrimTo(pool: Ptr, keep: usize);
    cuMemAddressReserve(address: &mut u64, size: usize, align: usize, hint: u64, flags: u64);
    cuMemAddressFree(address: u64, size: usize);
    cuMemCreate(handle: &mut u64, size: usize, prop: *const c_void, flags: u64);
    cuMemRelease(handle: u64);
    cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap(address: u64, size: usize);
    cuMemSetAccess(address: u64, size: usize, access: *const c_void, count: usize);
    cuMemcpyHtoD_v2(to: u64, from: *const c_void, size: usize);
    cuMemcpyDtoH_v2(to: Ptr, from: u64, size: usize);
    cuMemcpyDtoD_v2(to: u64, from: u64, size: usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, size: usize, stream: Ptr);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: Ptr);
    cuMemcpyPeerAsync(to: u64, in_: Ptr, from: u64, of: Ptr, size: usize, stream: Ptr);
    cuMemcpyHtoA_v2(to: Ptr, offset: usize, from: *const c_void, size: usize);
    cuMemcpyAtoD_v2(to: u64, from: Ptr, offset: usize, size: usize);
    cuMemcpy2DAsync_v2(copy: &Copy2d, stream: Ptr);
    cuMemcpy3D_v2(copy: &Copy3d);
    cuMemcpy3DPeer(copy: &Copy3d);
    cuMemcpyBatchAsync(
        to: *const u64, from: *const u64, sizes: *const usize, count: usize,
        attributes: *const CopyAttributes, firsts: *const usize, n: usize, failed: &mut usize,
        stream: Ptr,
    );
    cuMemcpy3DBatchAsync_v2(n: usize, list: *const BatchedCopy3d, flags: u64, stream: Ptr);
    cuMemsetD2D16_v2(to: u64, pitch: usize, value: u16, width: usize, height: usize);
    cuMemsetD8_v2(to: u64, value: u8, count: usize);
    cuMemsetD32_v2(to: u64, value: u32, count: usize);
    cuArrayCreate_v2(array: &mut Ptr, descriptor: *const c_void);
    cuArray3DCreate_v2(array: &mut Ptr, descriptor: *const c_void);
    cuArrayDestroy(array: Ptr);
    cuArrayGetSparseProperties(properties: *mut c_void, array: Ptr);
    cuMemMapArrayAsync(list: *const c_void, count: u32, stream: Ptr);
    cuMulticastCreate(handle: &mut u64, prop: *const c_void);
    cuMulticastAddDevice(handle: u64, device: i32);
    cuMulticastBindMem(handle: u64, at: usize, memory: u64, from: usize, size: usize, flags: u64);
    cuMulticastBindAddr(handle: u64, at: usize, address: u64, size: usize, flags: u64);
    cuMulticastUnbind(handle: u64, device: i32, at: usize, size: usize);
    cuMulticastGetGranularity(size: &mut usize, prop: *const c_void, option: u32);
    cuImportExternalMemory(memory: &mut Ptr, desc: *const c_void);
    cuDestroyExternalMemory(memory: Ptr);
    cuExternalMemoryGetMappedBuffer(address: &mut u64, memory: Ptr, desc: *const c_void);
    cuExternalMemoryGetMappedMipmappedArray(mipmap: &mut Ptr, memory: Ptr, desc: *const c_void);
    cuDeviceGetDevResource(device: i32, resource: *mut c_void, kind: u32);
    cuDevSmResourceSplitByCount(
        result: *mut DevResource, groups: &mut u32, input: *const DevResource,
        rest: *mut DevResource, flags: u32, least: u32,
    );
    cuDevResourceGenerateDesc(desc: &mut Ptr, resources: *const DevResource, count: u32);
    cuGreenCtxCreate(green: &mut Ptr, desc: Ptr, device: i32, flags: u32);
    cuGreenCtxDestroy(green: Ptr);
    cuCtxFromGreenCtx(context: &mut Ptr, green: Ptr);
    cuGreenCtxStreamCreate(stream: &mut Ptr, green: Ptr, flags: u32, priority: i32);
    cuStreamGetGreenCtx(stream: Ptr, green: &mut Ptr);
    cuGLCtxCreate_v2(context: &mut Ptr, flags: u32, device: i32);
    cuMipmappedArrayCreate(array: &mut Ptr, descriptor: *const c_void, levels: u32);
    cuMipmappedArrayDestroy(array: Ptr);
    cuLaunchKernel(
        f: Ptr, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Ptr,
        params: *mut Ptr, extra: *mut Ptr,
    );
    cuLaunchKernel_ptsz(
        f: Ptr, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Ptr,
        params: *mut Ptr, extra: *mut Ptr,
    );
    cuLaunchKernelEx(config: *const c_void, f: Ptr, params: *mut Ptr, extra: *mut Ptr);
    cuLaunchCooperativeKernel(
        f: Ptr, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Ptr,
        params: *mut Ptr,
    );
    cuFuncSetBlockShape(f: Ptr, x: i32, y: i32, z: i32);
    cuParamSetSize(f: Ptr, bytes: u32);
    cuParamSetv(f: Ptr, offset: i32, value: *const u64, bytes: u32);
    cuLaunchGrid(f: Ptr, width: i32, height: i32);
    cuGraphCreate(graph: &mut Ptr, flags: u32);
    cuGraphDestroy(graph: Ptr);
    cuGraphAddKernelNode_v2(node: &mut Ptr, g: Ptr, after: *const Ptr, n: usize, p: *const c_void);
    cuGraphAddMemAllocNode(node: &mut Ptr, g: Ptr, after: *const Ptr, n: usize, p: *mut c_void);
    cuGraphAddMemFreeNode(node: &mut Ptr, g: Ptr, after: *const Ptr, n: usize, address: u64);
    cuGraphInstantiateWithFlags(exec: &mut Ptr, graph: Ptr, flags: u64);
    cuGraphMemAllocNodeGetParams(node: Ptr, params: *mut c_void);
    cuGraphMemFreeNodeGetParams(node: Ptr, address: &mut u64);
    cuGraphAddChildGraphNode(node: &mut Ptr, g: Ptr, after: *const Ptr, n: usize, child: Ptr);
    cuGraphChildGraphNodeGetGraph(node: Ptr, graph: &mut Ptr);
    cuGraphAddNode_v2(
        node: &mut Ptr, g: Ptr, after: *const Ptr, edges: *const u64, n: usize, p: *mut c_void,
    );
    cuGraphAddEmptyNode(node: &mut Ptr, g: Ptr, after: *const Ptr, n: usize);
    cuGraphAddHostNode(node: &mut Ptr, g: Ptr, after: *const Ptr, n: usize, p: *const c_void);
    cuLaunchHostFunc(stream: Ptr, function: Option<HostFunction>, data: Ptr);
    cuStreamAddCallback(stream: Ptr, function: Option<StreamCallback>, data: Ptr, flags: u32);
    cuMemAdvise(address: u64, size: usize, advice: u32, device: i32);
    cuMemAdvise_v2(address: u64, size: usize, advice: u32, location: MemLocation);
    cuLibraryLoadData(
        library: &mut Ptr, image: *const c_void, a: *const c_void, b: *const c_void, c: u32,
        d: *const c_void, e: *const c_void, f: u32,
    );
    cuLibraryGetKernel(kernel: &mut Ptr, library: Ptr, name: *const i8);
    cuLibraryUnload(library: Ptr);
    cuFuncIsLoaded(state: &mut u32, function: Ptr);
    cuGraphClone(clone: &mut Ptr, graph: Ptr);
    cuGraphNodeFindInClone(node: &mut Ptr, original: Ptr, clone: Ptr);
    cuGraphGetNodes(graph: Ptr, nodes: *mut Ptr, count: &mut usize);
    cuGraphNodeGetType(node: Ptr, kind: &mut i32);
    cuGraphUpload(exec: Ptr, stream: Ptr);
    cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: &u64);
    cuGraphLaunch(exec: Ptr, stream: Ptr);
    cuGraphExecDestroy(exec: Ptr);
    cuGetProcAddress_v2(name: *const i8, f: &mut Ptr, version: i32, flags: u64, status: &mut u32);
    cuGetProcAddress(name: *const i8, f: &mut Ptr, version: i32, flags: u64);
}

const PTX: &[u8] = b".version 8.0\n.target sm_70\n.address_size 64\n\
    .visible .entry spin(.param .u64 ns) { ret; }\n.visible .entry empty() { ret; }\n\0";

/// A device with its primary context current, and the loaded kernels.
pub(crate) struct Gpu {
    pub(crate) device: i32,
    pub(crate) context: Ptr,
    pub(crate) module: Ptr,
    pub(crate) spin: Ptr,
}

/// Checks that a call succeeded.
#[track_caller]
pub(crate) fn ok(code: u32) {
    assert_eq!(code, SUCCESS);
}

pub(crate) fn null() -> Ptr {
    std::ptr::null_mut()
}

impl Gpu {
    pub(crate) fn open() -> Self {
        let (mut device, mut context) = (0, null());
        ok(cuInit(0));
        ok(cuDeviceGet(&mut device, 0));
        ok(cuDevicePrimaryCtxRetain(&mut context, device));
        ok(cuCtxSetCurrent(context));
        let (module, spin) = load();
        Self { device, context, module, spin }
    }

    /// Like `open`, with the kernel loaded: its first launch would wait for streams that are held.
    pub(crate) fn warm() -> Self {
        let gpu = Self::open();
        gpu.launch(null(), 1);
        ok(cuCtxSynchronize());
        gpu
    }

    /// Launches a kernel of `us` microseconds.
    #[track_caller]
    pub(crate) fn launch(&self, stream: Ptr, us: u64) {
        ok(self.try_launch(stream, us));
    }

    pub(crate) fn try_launch(&self, stream: Ptr, us: u64) -> u32 {
        let mut ns = us * 1000;
        let mut params = [(&raw mut ns).cast::<c_void>()];
        cuLaunchKernel(
            self.spin,
            1,
            1,
            1,
            32,
            1,
            1,
            0,
            stream,
            params.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }
}

pub(crate) fn load() -> (Ptr, Ptr) {
    let (mut module, mut spin) = (null(), null());
    ok(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    ok(cuModuleGetFunction(&mut spin, module, c"spin".as_ptr()));
    (module, spin)
}

pub(crate) fn stream() -> Ptr {
    let mut stream = null();
    ok(cuStreamCreate(&mut stream, 1));
    stream
}

pub(crate) fn event() -> Ptr {
    let mut event = null();
    ok(cuEventCreate(&mut event, 0));
    event
}

/// Free memory of the current device.
pub(crate) fn free_memory() -> u64 {
    let (mut free, mut total) = (0, 0);
    ok(cuMemGetInfo_v2(&mut free, &mut total));
    free as u64
}

/// The name, as the test harness spells it, of the test that contains a closure.
fn test_of<Body>(_: &Body) -> &'static str {
    let path = std::any::type_name::<Body>();
    let within_crate = path.split_once("::").map_or(path, |(_, rest)| rest);
    within_crate.trim_end_matches("::{{closure}}")
}

/// Runs a test's body in its own process, on a fresh node, with these environment variables.
pub(crate) fn isolated<Body: FnOnce()>(variables: &[(&str, &str)], body: Body) {
    if std::env::var(BODY).is_ok() {
        // SAFETY: the default action of this alarm ends a body that hangs.
        unsafe { libc::alarm(60) };
        body();
        return;
    }
    let test = test_of(&body);
    let directory = tempfile::tempdir_in(memory_directory()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    // Remove the variables that the caller has set for other programs.
    for (name, _) in std::env::vars_os() {
        if ["SLUICE_FAKE", "CUDA_", "LD_PRELOAD"].iter().any(|own| starts_with(&name, own)) {
            command.env_remove(&name);
        }
    }
    let output = command
        .args(["--exact", test, "--nocapture", "--test-threads=1", "--include-ignored"])
        .env(BODY, test)
        .env("SLUICE_FAKE_NODE", directory.path().join("node"))
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success() && !text(&output).contains("0 passed"), "{}", text(&output));
}

fn starts_with(name: &OsStr, prefix: &str) -> bool {
    name.as_encoded_bytes().starts_with(prefix.as_bytes())
}

fn memory_directory() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    if shared.is_dir() { shared } else { std::env::temp_dir() }
}

fn text(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Starts another process on this node that runs `part` of the current test.
pub(crate) fn start_part(part: &str) -> Child {
    let test = std::env::var(BODY).unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test, "--nocapture", "--test-threads=1", "--include-ignored"])
        .env(PART, part)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The part that this process runs; `None` in the test's main process.
pub(crate) fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// Waits until the condition holds, at most ten seconds. Returns how long it took.
#[track_caller]
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "it never happened");
        std::thread::sleep(Duration::from_millis(2));
    }
    start.elapsed()
}

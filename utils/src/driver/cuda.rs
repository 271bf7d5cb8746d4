//! Types and constants of the CUDA driver API (`cuda.h`, CUDA 13.0).

use core::ffi::{c_int, c_uint, c_ushort, c_void};

/// `CUresult`: the outcome of a driver call.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[must_use]
pub struct CuResult(pub c_uint);

macro_rules! results {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl CuResult {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The constant's name in `cuda.h`, or `None` for a code that is not listed here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

results! {
    /// `CUDA_SUCCESS`
    SUCCESS = 0, "CUDA_SUCCESS";
    /// `CUDA_ERROR_INVALID_VALUE`
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE";
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY";
    /// `CUDA_ERROR_NOT_INITIALIZED`
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED";
    /// `CUDA_ERROR_DEINITIALIZED`
    DEINITIALIZED = 4, "CUDA_ERROR_DEINITIALIZED";
    /// `CUDA_ERROR_STUB_LIBRARY`
    STUB_LIBRARY = 34, "CUDA_ERROR_STUB_LIBRARY";
    /// `CUDA_ERROR_NO_DEVICE`
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE";
    /// `CUDA_ERROR_INVALID_DEVICE`
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE";
    /// `CUDA_ERROR_INVALID_IMAGE`
    INVALID_IMAGE = 200, "CUDA_ERROR_INVALID_IMAGE";
    /// `CUDA_ERROR_INVALID_CONTEXT`
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT";
    /// `CUDA_ERROR_MAP_FAILED`
    MAP_FAILED = 205, "CUDA_ERROR_MAP_FAILED";
    /// `CUDA_ERROR_UNSUPPORTED_LIMIT`
    UNSUPPORTED_LIMIT = 215, "CUDA_ERROR_UNSUPPORTED_LIMIT";
    /// `CUDA_ERROR_INVALID_PTX`
    INVALID_PTX = 218, "CUDA_ERROR_INVALID_PTX";
    /// `CUDA_ERROR_OPERATING_SYSTEM`
    OPERATING_SYSTEM = 304, "CUDA_ERROR_OPERATING_SYSTEM";
    /// `CUDA_ERROR_INVALID_HANDLE`
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE";
    /// `CUDA_ERROR_ILLEGAL_STATE`
    ILLEGAL_STATE = 401, "CUDA_ERROR_ILLEGAL_STATE";
    /// `CUDA_ERROR_NOT_FOUND`
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND";
    /// `CUDA_ERROR_NOT_READY`
    NOT_READY = 600, "CUDA_ERROR_NOT_READY";
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS";
    /// `CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE`
    PRIMARY_CONTEXT_ACTIVE = 708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE";
    /// `CUDA_ERROR_CONTEXT_IS_DESTROYED`
    CONTEXT_IS_DESTROYED = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED";
    /// `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE`
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE";
    /// `CUDA_ERROR_NOT_PERMITTED`
    NOT_PERMITTED = 800, "CUDA_ERROR_NOT_PERMITTED";
    /// `CUDA_ERROR_NOT_SUPPORTED`
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED";
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`
    STREAM_CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`
    STREAM_CAPTURE_INVALIDATED = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    /// `CUDA_ERROR_STREAM_CAPTURE_MERGE`
    STREAM_CAPTURE_MERGE = 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE";
    /// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED`
    STREAM_CAPTURE_UNMATCHED = 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED";
    /// `CUDA_ERROR_STREAM_CAPTURE_UNJOINED`
    STREAM_CAPTURE_UNJOINED = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
    /// `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`
    STREAM_CAPTURE_ISOLATION = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`
    STREAM_CAPTURE_IMPLICIT = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT";
    /// `CUDA_ERROR_CAPTURED_EVENT`
    CAPTURED_EVENT = 907, "CUDA_ERROR_CAPTURED_EVENT";
    /// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`
    STREAM_CAPTURE_WRONG_THREAD = 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD";
    /// `CUDA_ERROR_INVALID_RESOURCE_TYPE`
    INVALID_RESOURCE_TYPE = 914, "CUDA_ERROR_INVALID_RESOURCE_TYPE";
    /// `CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION`
    INVALID_RESOURCE_CONFIGURATION = 915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION";
    /// `CUDA_ERROR_UNKNOWN`
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN";
}

impl CuResult {
    /// Whether the call succeeded.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}

impl core::fmt::Display for CuResult {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "CUresult {}", self.0),
        }
    }
}

/// `CUdevice`: a device ordinal, after `CUDA_VISIBLE_DEVICES`.
pub type Device = c_int;
/// `CUdeviceptr` (64 bits since `_v2`).
pub type DevicePtr = u64;
/// `CUcontext`
pub type Context = *mut c_void;
/// `CUmodule` or `CUlibrary`
pub type Module = *mut c_void;
/// `CUfunction` or `CUkernel`
pub type Function = *mut c_void;
/// `CUstream`; see [`STREAM_LEGACY`] and [`STREAM_PER_THREAD`] for the special values.
pub type Stream = *mut c_void;
/// `CUevent`
pub type Event = *mut c_void;
/// `CUarray`
pub type Array = *mut c_void;
/// `CUmipmappedArray`
pub type MipmappedArray = *mut c_void;
/// `CUmemoryPool`
pub type MemoryPool = *mut c_void;
/// `CUgraph`
pub type Graph = *mut c_void;
/// `CUgraphNode`
pub type GraphNode = *mut c_void;
/// `CUgraphExec`
pub type GraphExec = *mut c_void;
/// `CUgreenCtx`
pub type GreenContext = *mut c_void;
/// `CUdevResourceDesc`
pub type DevResourceDesc = *mut c_void;
/// `CUexternalMemory`
pub type ExternalMemory = *mut c_void;
/// `CUmemGenericAllocationHandle`
pub type AllocationHandle = u64;

/// `CU_STREAM_LEGACY`: the default stream, whatever the compile-time choice. A null stream means
/// this one, except in `_ptsz` functions, where it means [`STREAM_PER_THREAD`].
pub const STREAM_LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`
pub const STREAM_PER_THREAD: usize = 2;

/// `CU_STREAM_WAIT_VALUE_GEQ`: until the word has reached the value, counted in a circle.
pub const STREAM_WAIT_VALUE_GEQ: c_uint = 0;

/// `CU_MEMHOSTREGISTER_DEVICEMAP`
pub const MEMHOSTREGISTER_DEVICEMAP: c_uint = 2;

/// `CU_EVENT_DEFAULT`
pub const EVENT_DEFAULT: c_uint = 0;
/// `CU_EVENT_DISABLE_TIMING`
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`
pub const CAPTURE_STATUS_NONE: c_uint = 0;
/// `CU_STREAM_CAPTURE_MODE_GLOBAL`
pub const CAPTURE_MODE_GLOBAL: c_uint = 0;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`
pub const CAPTURE_MODE_THREAD_LOCAL: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`
pub const CAPTURE_MODE_RELAXED: c_uint = 2;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
pub const PROC_ADDRESS_PER_THREAD_STREAM: u64 = 2;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub const LOCATION_DEVICE: c_uint = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`
pub const ALLOCATION_PINNED: c_uint = 1;
/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`
pub const EXTERNAL_MEMORY_OPAQUE_FD: c_uint = 1;
/// `CU_DEV_RESOURCE_TYPE_SM`
pub const DEV_RESOURCE_SM: c_uint = 1;
/// `CU_GREEN_CTX_DEFAULT_STREAM`
pub const GREEN_DEFAULT_STREAM: c_uint = 1;
/// `CU_RESOURCE_TYPE_ARRAY`
pub const RESOURCE_ARRAY: c_uint = 0;
/// `CU_RESOURCE_TYPE_MIPMAPPED_ARRAY`
pub const RESOURCE_MIPMAPPED_ARRAY: c_uint = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
pub const HANDLE_TYPE_POSIX_FD: c_uint = 1;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`
pub const IPC_LAZY_PEER_ACCESS: c_uint = 1;
/// `CU_MEM_ATTACH_GLOBAL`
pub const ATTACH_GLOBAL: c_uint = 1;
/// `CU_GRAPH_NODE_TYPE_KERNEL`
pub const NODE_KERNEL: c_uint = 0;
/// `CU_GRAPH_NODE_TYPE_HOST`
pub const NODE_HOST: c_uint = 3;
/// `CU_GRAPH_NODE_TYPE_GRAPH`
pub const NODE_GRAPH: c_uint = 4;
/// `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE`
pub const CHILD_CLONE: c_uint = 0;
/// `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`
pub const CHILD_MOVE: c_uint = 1;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`
pub const NODE_MEM_ALLOC: c_uint = 10;
/// `CU_GRAPH_NODE_TYPE_MEM_FREE`
pub const NODE_MEM_FREE: c_uint = 11;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD` (`cuuint64_t`)
pub const POOL_RELEASE_THRESHOLD: c_uint = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` (`cuuint64_t`)
pub const POOL_RESERVED_CURRENT: c_uint = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT` (`cuuint64_t`)
pub const POOL_USED_CURRENT: c_uint = 7;
/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT` (`cuuint64_t`)
pub const GRAPH_USED_CURRENT: c_uint = 0;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT` (`cuuint64_t`)
pub const GRAPH_RESERVED_CURRENT: c_uint = 2;
/// `CUDA_ARRAY3D_CUBEMAP`
pub const ARRAY3D_CUBEMAP: c_uint = 4;

/// `CUuuid`
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Uuid {
    /// The 16 bytes; NVML prints the same ones after `GPU-`.
    pub bytes: [u8; 16],
}

/// `CUipcMemHandle`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcMemHandle {
    /// Opaque.
    pub reserved: [u8; 64],
}

/// `CUlaunchConfig`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Grid size in blocks.
    pub grid: [c_uint; 3],
    /// Block size in threads.
    pub block: [c_uint; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_mem_bytes: c_uint,
    /// The stream.
    pub stream: Stream,
    /// `CUlaunchAttribute` list.
    pub attrs: *mut c_void,
    /// Its length.
    pub num_attrs: c_uint,
}

/// `CUDA_LAUNCH_PARAMS`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchParams {
    /// The kernel.
    pub function: Function,
    /// Grid size in blocks.
    pub grid: [c_uint; 3],
    /// Block size in threads.
    pub block: [c_uint; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_mem_bytes: c_uint,
    /// The stream, of the device that shall run this part.
    pub stream: Stream,
    /// Pointers to the arguments.
    pub kernel_params: *mut *mut c_void,
}

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemLocation {
    /// `CUmemLocationType`
    pub kind: c_uint,
    /// Device ordinal or NUMA node, by `kind`.
    pub id: c_int,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProp {
    /// `CUmemAllocationType`
    pub kind: c_uint,
    /// `CUmemAllocationHandleType`
    pub handle_types: c_uint,
    /// Where the memory lives.
    pub location: MemLocation,
    /// Unused on Linux.
    pub win32_handle_meta_data: *mut c_void,
    /// `compressionType, gpuDirectRDMACapable, usage (2), reserved (4)`
    pub alloc_flags: [u8; 8],
}

impl AllocationProp {
    /// Nothing asked for.
    pub const EMPTY: Self = Self {
        kind: 0,
        handle_types: 0,
        location: MemLocation { kind: 0, id: 0 },
        win32_handle_meta_data: core::ptr::null_mut(),
        alloc_flags: [0; 8],
    };
}

/// `CUmemPoolProps`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolProps {
    /// `CUmemAllocationType`
    pub kind: c_uint,
    /// `CUmemAllocationHandleType`
    pub handle_types: c_uint,
    /// Where the pool's memory lives.
    pub location: MemLocation,
    /// Unused on Linux.
    pub win32_security_attributes: *mut c_void,
    /// Upper bound in bytes, 0 for the device's.
    pub max_size: usize,
    /// Bit mask of usages.
    pub usage: c_ushort,
    /// `gpuDirectRDMACapable` and reserved bytes.
    pub reserved: [u8; 54],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDesc {
    /// Who gets access.
    pub location: MemLocation,
    /// `CUmemAccess_flags`: 0 none, 1 read, 3 read and write.
    pub flags: c_uint,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS` (`_v1` and `_v2` are the same).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemAllocNodeParams {
    /// The pool that the allocation comes from, by properties.
    pub pool_props: PoolProps,
    /// Extra access.
    pub access_descs: *const AccessDesc,
    /// Its length.
    pub access_desc_count: usize,
    /// Size in bytes.
    pub bytesize: usize,
    /// Out: the address.
    pub dptr: DevicePtr,
}

impl MemAllocNodeParams {
    /// Nothing asked for.
    pub const EMPTY: Self = Self {
        pool_props: PoolProps {
            kind: 0,
            handle_types: 0,
            location: MemLocation { kind: 0, id: 0 },
            win32_security_attributes: core::ptr::null_mut(),
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        },
        access_descs: core::ptr::null(),
        access_desc_count: 0,
        bytesize: 0,
        dptr: 0,
    };
}

/// `CUDA_KERNEL_NODE_PARAMS_v2` and `_v3` (`_v1` ends after `extra`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelNodeParams {
    /// The kernel.
    pub function: Function,
    /// Grid size in blocks.
    pub grid: [c_uint; 3],
    /// Block size in threads.
    pub block: [c_uint; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_mem_bytes: c_uint,
    /// Pointers to the arguments.
    pub kernel_params: *mut *mut c_void,
    /// Or a packed argument buffer.
    pub extra: *mut *mut c_void,
    /// `CUkernel`, used where `function` is null.
    pub kernel: Function,
    /// The context to run in, null for the current one.
    pub context: Context,
}

/// `CUhostFn`
pub type HostFunction = extern "C" fn(*mut c_void);
/// `CUstreamCallback`
pub type StreamCallback = extern "C" fn(Stream, CuResult, *mut c_void);

/// `CUDA_HOST_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostNodeParams {
    /// What is called.
    pub function: Option<HostFunction>,
    /// Its argument.
    pub user_data: *mut c_void,
}

/// `CUDA_CHILD_GRAPH_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChildGraphNodeParams {
    /// The graph.
    pub graph: Graph,
    /// [`CHILD_CLONE`] or [`CHILD_MOVE`].
    pub ownership: c_uint,
}

/// `CUgraphNodeParams`: a node of any kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GraphNodeParams {
    /// `CUgraphNodeType`
    pub kind: c_uint,
    /// Reserved, zero.
    pub reserved0: [c_int; 3],
    /// The kind's own parameters.
    pub body: GraphNodeBody,
    /// Reserved, zero.
    pub reserved2: i64,
}

/// The union in `CUgraphNodeParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union GraphNodeBody {
    /// Its full size.
    pub reserved1: [i64; 29],
    /// For [`NODE_KERNEL`].
    pub kernel: KernelNodeParams,
    /// For [`NODE_HOST`].
    pub host: HostNodeParams,
    /// For [`NODE_GRAPH`].
    pub child: ChildGraphNodeParams,
    /// For [`NODE_MEM_ALLOC`].
    pub alloc: MemAllocNodeParams,
    /// For [`NODE_MEM_FREE`].
    pub free: DevicePtr,
}

/// `CUDA_ARRAY_DESCRIPTOR` (`_v2`)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArrayDescriptor {
    /// Width in elements.
    pub width: usize,
    /// Height in elements, 0 for one-dimensional.
    pub height: usize,
    /// `CUarray_format`
    pub format: c_uint,
    /// 1, 2 or 4.
    pub num_channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR` (`_v2`)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Array3dDescriptor {
    /// Width in elements.
    pub width: usize,
    /// Height in elements, may be 0.
    pub height: usize,
    /// Depth in elements or layers, may be 0.
    pub depth: usize,
    /// `CUarray_format`
    pub format: c_uint,
    /// 1, 2 or 4.
    pub num_channels: c_uint,
    /// `CUDA_ARRAY3D_*`
    pub flags: c_uint,
}

/// `CUDA_ARRAY_DESCRIPTOR_v1`, of CUDA 3.1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArrayDescriptorV1 {
    /// Width in elements.
    pub width: c_uint,
    /// Height in elements, 0 for one-dimensional.
    pub height: c_uint,
    /// `CUarray_format`
    pub format: c_uint,
    /// 1, 2 or 4.
    pub num_channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v1`, of CUDA 3.1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Array3dDescriptorV1 {
    /// Width in elements.
    pub width: c_uint,
    /// Height in elements, may be 0.
    pub height: c_uint,
    /// Depth in elements or layers, may be 0.
    pub depth: c_uint,
    /// `CUarray_format`
    pub format: c_uint,
    /// 1, 2 or 4.
    pub num_channels: c_uint,
    /// `CUDA_ARRAY3D_*`
    pub flags: c_uint,
}

impl From<ArrayDescriptor> for Array3dDescriptor {
    fn from(flat: ArrayDescriptor) -> Self {
        let ArrayDescriptor { width, height, format, num_channels } = flat;
        Self { width, height, depth: 0, format, num_channels, flags: 0 }
    }
}

impl From<ArrayDescriptorV1> for Array3dDescriptor {
    fn from(flat: ArrayDescriptorV1) -> Self {
        let ArrayDescriptorV1 { width, height, format, num_channels } = flat;
        let (width, height) = (width as usize, height as usize);
        Self { width, height, depth: 0, format, num_channels, flags: 0 }
    }
}

impl From<Array3dDescriptorV1> for Array3dDescriptor {
    fn from(old: Array3dDescriptorV1) -> Self {
        let Array3dDescriptorV1 { width, height, depth, format, num_channels, flags } = old;
        let (width, height, depth) = (width as usize, height as usize, depth as usize);
        Self { width, height, depth, format, num_channels, flags }
    }
}

/// `CUdevSmResource`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DevSmResource {
    /// Multiprocessors.
    pub sm_count: c_uint,
    /// Least number of a partition.
    pub min_sm_partition_size: c_uint,
    /// Their number is a multiple of this.
    pub sm_coscheduled_alignment: c_uint,
}

/// `CUdevResource`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DevResource {
    /// `CUdevResourceType`
    pub kind: c_uint,
    /// The driver's own.
    pub padding: [u8; 92],
    /// For [`DEV_RESOURCE_SM`].
    pub sm: DevSmResource,
    /// The rest of the union.
    pub rest: [u8; 36],
}

/// `CUmulticastObjectProp`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MulticastProp {
    /// Devices that take part.
    pub num_devices: c_uint,
    /// Bytes that can be bound on each.
    pub size: usize,
    /// Bit mask of `CUmemAllocationHandleType`.
    pub handle_types: u64,
    /// Zero.
    pub flags: u64,
}

/// `CUarrayMapInfo`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArrayMapInfo {
    /// [`RESOURCE_ARRAY`] or [`RESOURCE_MIPMAPPED_ARRAY`].
    pub resource_type: c_uint,
    /// The array's handle.
    pub resource: *mut c_void,
    /// 0 for a level, 1 for the tail of small levels.
    pub subresource_type: c_uint,
    /// Keeps the union at a multiple of eight.
    pub padding: c_uint,
    /// Level: level, layer, offsets, extents. Tail: layer, (padding), offset and size, 64 bits each.
    pub subresource: [c_uint; 8],
    /// 1 maps, 2 unmaps.
    pub mem_operation_type: c_uint,
    /// 0, `CU_MEM_HANDLE_TYPE_GENERIC`.
    pub mem_handle_type: c_uint,
    /// What is mapped; zero when unmapping.
    pub mem_handle: AllocationHandle,
    /// Where in it.
    pub offset: u64,
    /// The device, one bit.
    pub device_bit_mask: c_uint,
    /// Zero.
    pub flags: c_uint,
    /// Zero.
    pub reserved: [c_uint; 2],
}

/// `CUDA_ARRAY_SPARSE_PROPERTIES`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SparseProperties {
    /// Width, height and depth of a tile in elements.
    pub tile_extent: [c_uint; 3],
    /// First level of the tail.
    pub miptail_first_level: c_uint,
    /// Bytes of the tail.
    pub miptail_size: u64,
    /// Whether all layers share a tail.
    pub flags: c_uint,
    /// Unused.
    pub reserved: [c_uint; 4],
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExternalMemoryHandleDesc {
    /// `CUexternalMemoryHandleType`
    pub kind: c_uint,
    /// Keeps the union at a multiple of eight.
    pub padding: c_uint,
    /// The descriptor, for [`EXTERNAL_MEMORY_OPAQUE_FD`].
    pub fd: c_int,
    /// The rest of the union.
    pub rest: [c_int; 3],
    /// Size in bytes.
    pub size: u64,
    /// 1 for a dedicated resource.
    pub flags: c_uint,
    /// Zero.
    pub reserved: [c_uint; 16],
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExternalMemoryBufferDesc {
    /// Where in the object.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// Zero.
    pub flags: c_uint,
    /// Zero.
    pub reserved: [c_uint; 16],
}

/// `CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExternalMemoryMipmapDesc {
    /// Where in the object.
    pub offset: u64,
    /// The first level.
    pub array: Array3dDescriptor,
    /// Levels.
    pub num_levels: c_uint,
    /// Zero.
    pub reserved: [c_uint; 16],
}

/// `CUDA_ARRAY3D_SPARSE`: memory is mapped tile by tile.
pub const ARRAY3D_SPARSE: c_uint = 0x40;
/// `CUDA_ARRAY3D_DEFERRED_MAPPING`: memory is mapped afterwards, as a whole.
pub const ARRAY3D_DEFERRED_MAPPING: c_uint = 0x80;
/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_NVSCIBUF`
pub const EXTERNAL_NVSCIBUF: c_uint = 8;
/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD`
pub const EXTERNAL_DMABUF_FD: c_uint = 9;
/// `CU_MEM_OPERATION_TYPE_MAP`
pub const OPERATION_MAP: c_uint = 1;
/// `CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL`
pub const SUBRESOURCE_MIPTAIL: c_uint = 1;

/// The driver's marker for an ordinal that names no device (`CU_DEVICE_INVALID`).
pub const DEVICE_INVALID: Device = -2;

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::size_of;

    /// Sizes as a C compiler gives them for `cuda.h` on x86-64.
    #[test]
    fn layouts_match_the_header() {
        assert_eq!(size_of::<LaunchConfig>(), 56);
        assert_eq!(size_of::<LaunchParams>(), 56);
        assert_eq!(size_of::<AllocationProp>(), 32);
        assert_eq!(size_of::<PoolProps>(), 88);
        assert_eq!(size_of::<AccessDesc>(), 12);
        assert_eq!(size_of::<MemAllocNodeParams>(), 120);
        assert_eq!(size_of::<KernelNodeParams>(), 72);
        assert_eq!(size_of::<GraphNodeParams>(), 256);
        assert_eq!(size_of::<ArrayDescriptor>(), 24);
        assert_eq!(size_of::<Array3dDescriptor>(), 40);
        assert_eq!(size_of::<IpcMemHandle>(), 64);
        assert_eq!(size_of::<MulticastProp>(), 32);
        assert_eq!(size_of::<DevResource>(), 144);
        assert_eq!(size_of::<ArrayMapInfo>(), 96);
        assert_eq!(size_of::<SparseProperties>(), 48);
        assert_eq!(size_of::<ExternalMemoryHandleDesc>(), 104);
        assert_eq!(size_of::<ExternalMemoryBufferDesc>(), 88);
        assert_eq!(size_of::<ExternalMemoryMipmapDesc>(), 120);
    }
}

//! Graphs and their nodes.

use super::handle::{Context, DevicePtr, Function, Graph};
use super::memory::{AccessDesc, MemLocation, PoolProps};
use super::stream::HostFunction;
use core::ffi::{c_int, c_uint, c_void};

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
/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT` (`cuuint64_t`)
pub const GRAPH_USED_CURRENT: c_uint = 0;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT` (`cuuint64_t`)
pub const GRAPH_RESERVED_CURRENT: c_uint = 2;

/// `CUDA_MEM_ALLOC_NODE_PARAMS` (`_v1` and `_v2` are the same).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemAllocNodeParams {
    /// Properties of the pool that the allocation comes from.
    pub pool_props: PoolProps,
    /// Access rights beyond the pool's.
    pub access_descs: *const AccessDesc,
    /// Length of `access_descs`.
    pub access_desc_count: usize,
    /// Size in bytes.
    pub bytesize: usize,
    /// Out: the address.
    pub dptr: DevicePtr,
}

impl MemAllocNodeParams {
    /// All fields zero.
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
    /// Alternatively a packed argument buffer.
    pub extra: *mut *mut c_void,
    /// `CUkernel`, used if `function` is null.
    pub kernel: Function,
    /// The context to run in; null: the current one.
    pub context: Context,
}

/// `CUDA_HOST_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostNodeParams {
    /// The called function.
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
    /// Parameters of the kind.
    pub body: GraphNodeBody,
    /// Reserved, zero.
    pub reserved2: i64,
}

/// The union in `CUgraphNodeParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union GraphNodeBody {
    /// The union's full size.
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

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::size_of;

    /// Sizes as a C compiler gives them for `cuda.h` on x86-64.
    #[test]
    fn layouts_match_the_header() {
        assert_eq!(size_of::<MemAllocNodeParams>(), 120);
        assert_eq!(size_of::<KernelNodeParams>(), 72);
        assert_eq!(size_of::<GraphNodeParams>(), 256);
    }
}

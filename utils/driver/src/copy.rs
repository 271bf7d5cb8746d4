//! Descriptors of copies (`cuda.h`, CUDA 13.0; those of CUDA 2 from the header's internal part).

use super::cuda::{Array, Context, DevicePtr, MemLocation};
use core::ffi::{c_uchar, c_uint, c_void};

/// `CUdeviceptr_v1`: 32 bits.
pub type DevicePtrV1 = c_uint;

/// `CU_MEMORYTYPE_HOST`
pub const MEMORY_HOST: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`
pub const MEMORY_DEVICE: c_uint = 2;
/// `CU_MEMORYTYPE_ARRAY`
pub const MEMORY_ARRAY: c_uint = 3;
/// `CU_MEMORYTYPE_UNIFIED`: host or device, depending on the address.
pub const MEMORY_UNIFIED: c_uint = 4;

/// `CU_MEMCPY_OPERAND_TYPE_POINTER`
pub const OPERAND_POINTER: c_uint = 1;
/// `CU_MEMCPY_OPERAND_TYPE_ARRAY`
pub const OPERAND_ARRAY: c_uint = 2;

/// One side of [`Copy2d`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Side2d {
    /// Offset in a row, in bytes.
    pub x: usize,
    /// Row.
    pub y: usize,
    /// `CUmemorytype`: selects one of the next three fields.
    pub kind: c_uint,
    /// Host address.
    pub host: *const c_void,
    /// Device or unified address.
    pub device: DevicePtr,
    /// Array.
    pub array: Array,
    /// Distance between rows in bytes; not for arrays.
    pub pitch: usize,
}

/// `CUDA_MEMCPY2D` (`_v2`)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copy2d {
    /// Source.
    pub from: Side2d,
    /// Destination.
    pub to: Side2d,
    /// Bytes of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// One side of [`Copy3d`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Side3d {
    /// Offset in a row, in bytes.
    pub x: usize,
    /// Row.
    pub y: usize,
    /// Layer.
    pub z: usize,
    /// Level of detail: 0.
    pub lod: usize,
    /// `CUmemorytype`: selects one of the next three fields.
    pub kind: c_uint,
    /// Host address.
    pub host: *const c_void,
    /// Device or unified address.
    pub device: DevicePtr,
    /// Array.
    pub array: Array,
    /// The side's context in `CUDA_MEMCPY3D_PEER`, null in `CUDA_MEMCPY3D`.
    pub context: Context,
    /// Distance between rows in bytes; not for arrays.
    pub pitch: usize,
    /// Rows of a layer; not for arrays.
    pub height: usize,
}

/// `CUDA_MEMCPY3D` (`_v2`) and `CUDA_MEMCPY3D_PEER`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copy3d {
    /// Source.
    pub from: Side3d,
    /// Destination.
    pub to: Side3d,
    /// Bytes of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Layers.
    pub depth: usize,
}

/// `CUDA_MEMCPY2D_v1`, of CUDA 3.1. Without nested structs, because its sides are not padded to a multiple of eight
/// bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields of `Copy2d`")]
pub struct Copy2dV1 {
    pub from_x: c_uint,
    pub from_y: c_uint,
    pub from_kind: c_uint,
    pub from_host: *const c_void,
    pub from_device: DevicePtrV1,
    pub from_array: Array,
    pub from_pitch: c_uint,
    pub to_x: c_uint,
    pub to_y: c_uint,
    pub to_kind: c_uint,
    pub to_host: *const c_void,
    pub to_device: DevicePtrV1,
    pub to_array: Array,
    pub to_pitch: c_uint,
    pub width: c_uint,
    pub height: c_uint,
}

/// One side of [`Copy3dV1`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields of `Side3d`")]
pub struct Side3dV1 {
    pub x: c_uint,
    pub y: c_uint,
    pub z: c_uint,
    pub lod: c_uint,
    pub kind: c_uint,
    pub host: *const c_void,
    pub device: DevicePtrV1,
    pub array: Array,
    pub reserved: *mut c_void,
    pub pitch: c_uint,
    pub height: c_uint,
}

/// `CUDA_MEMCPY3D_v1`, of CUDA 3.1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields of `Copy3d`")]
pub struct Copy3dV1 {
    pub from: Side3dV1,
    pub to: Side3dV1,
    pub width: c_uint,
    pub height: c_uint,
    pub depth: c_uint,
}

impl From<Copy2dV1> for Copy2d {
    fn from(old: Copy2dV1) -> Self {
        Self {
            from: Side2d {
                x: old.from_x as usize,
                y: old.from_y as usize,
                kind: old.from_kind,
                host: old.from_host,
                device: u64::from(old.from_device),
                array: old.from_array,
                pitch: old.from_pitch as usize,
            },
            to: Side2d {
                x: old.to_x as usize,
                y: old.to_y as usize,
                kind: old.to_kind,
                host: old.to_host,
                device: u64::from(old.to_device),
                array: old.to_array,
                pitch: old.to_pitch as usize,
            },
            width: old.width as usize,
            height: old.height as usize,
        }
    }
}

impl From<Side3dV1> for Side3d {
    fn from(old: Side3dV1) -> Self {
        Self {
            x: old.x as usize,
            y: old.y as usize,
            z: old.z as usize,
            lod: old.lod as usize,
            kind: old.kind,
            host: old.host,
            device: u64::from(old.device),
            array: old.array,
            context: old.reserved,
            pitch: old.pitch as usize,
            height: old.height as usize,
        }
    }
}

impl From<Copy3dV1> for Copy3d {
    fn from(old: Copy3dV1) -> Self {
        Self {
            from: old.from.into(),
            to: old.to.into(),
            width: old.width as usize,
            height: old.height as usize,
            depth: old.depth as usize,
        }
    }
}

/// `CUmemcpyAttributes`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyAttributes {
    /// `CUmemcpySrcAccessOrder`: 1 stream, 2 during the call, 3 any.
    pub order: c_uint,
    /// Location of the source, for managed memory.
    pub from_hint: MemLocation,
    /// Location of the destination, for managed memory.
    pub to_hint: MemLocation,
    /// `CUmemcpyFlags`
    pub flags: c_uint,
}

/// Size of a batched 3-D copy, in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// Elements of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Layers.
    pub depth: usize,
}

/// `CUmemcpy3DOperand`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Operand {
    /// [`OPERAND_POINTER`] or [`OPERAND_ARRAY`].
    pub kind: c_uint,
    /// The operand, by `kind`.
    pub body: OperandBody,
}

/// The union in `CUmemcpy3DOperand`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union OperandBody {
    /// For [`OPERAND_POINTER`].
    pub pointer: PointerOperand,
    /// For [`OPERAND_ARRAY`].
    pub array: ArrayOperand,
}

/// An address, with the shape of its memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PointerOperand {
    /// Start of the copy.
    pub address: DevicePtr,
    /// Elements per row; 0: as in the copy.
    pub row: usize,
    /// Rows per layer; 0: as in the copy.
    pub height: usize,
    /// Location, for managed memory.
    pub hint: MemLocation,
}

/// A place in an array.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArrayOperand {
    /// The array.
    pub array: Array,
    /// Column, row and layer where the copy begins, in elements.
    pub offset: [usize; 3],
}

/// `CUDA_MEMCPY3D_BATCH_OP`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BatchedCopy3d {
    /// Source.
    pub from: Operand,
    /// Destination.
    pub to: Operand,
    /// Size of the copy.
    pub extent: Extent,
    /// Like [`CopyAttributes::order`].
    pub order: c_uint,
    /// `CUmemcpyFlags`
    pub flags: c_uint,
}

/// `CUmemDecompressParams`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DecompressParams {
    /// Compressed bytes.
    pub from_bytes: usize,
    /// Expected bytes, or 0.
    pub to_bytes: usize,
    /// Out: decompressed bytes.
    pub actual_bytes: *mut u32,
    /// Address of the compressed bytes.
    pub from: *const c_void,
    /// Address for the decompressed bytes.
    pub to: *mut c_void,
    /// `CUmemDecompressAlgorithm`
    pub algorithm: c_uint,
    /// Zero.
    pub padding: [c_uchar; 20],
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    /// Sizes and offsets as a C compiler gives them for `cuda.h` on x86-64.
    #[test]
    fn layouts_match_the_header() {
        assert_eq!((size_of::<Copy2d>(), offset_of!(Copy2d, to)), (128, 56));
        assert_eq!(offset_of!(Copy2d, width), 112);
        assert_eq!((size_of::<Copy3d>(), offset_of!(Copy3d, to)), (200, 88));
        assert_eq!((offset_of!(Copy3d, width), offset_of!(Side3d, context)), (176, 64));
        assert_eq!((size_of::<Copy2dV1>(), offset_of!(Copy2dV1, to_x)), (96, 44));
        assert_eq!(offset_of!(Copy2dV1, to_kind), 52);
        assert_eq!((offset_of!(Copy2dV1, to_device), offset_of!(Copy2dV1, width)), (64, 84));
        assert_eq!((size_of::<Copy3dV1>(), offset_of!(Copy3dV1, to)), (144, 64));
        assert_eq!(offset_of!(Copy3dV1, width), 128);
        assert_eq!(size_of::<CopyAttributes>(), 24);
        assert_eq!((size_of::<Operand>(), offset_of!(Operand, body)), (40, 8));
        assert_eq!((size_of::<BatchedCopy3d>(), offset_of!(BatchedCopy3d, extent)), (112, 80));
        assert_eq!(size_of::<DecompressParams>(), 64);
    }
}

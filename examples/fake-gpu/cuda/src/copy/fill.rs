//! Fills. The forms without a stream do not wait either ("API synchronization behavior").

use core::ffi::c_uint;

use driver::copy::DevicePtrV1;
use driver::cuda::{self, CuResult, DevicePtr};

use super::{DEFAULT, Place, Transfer, put};
use crate::ffi::api;

fn fill<const P: bool>(
    to: Place,
    pattern: u32,
    element: u64,
    size: (usize, usize),
    stream: cuda::Stream,
) -> CuResult {
    api(|| {
        let width = (size.0 as u64).checked_mul(element).ok_or(CuResult::INVALID_VALUE)?;
        let transfer = Transfer::Fill { to, pattern, element, width, rows: size.1 as u64 };
        put::<P>(|_| Ok(transfer), stream, false)
    })
}

macro_rules! fills {
    ($($element:literal $type:ty: $line:ident $line_async:ident $plane:ident $plane_async:ident
        $line_v1:ident $plane_v1:ident;)*) => {$(
        pub(crate) extern "C" fn $line<const P: bool>(
            to: DevicePtr,
            value: $type,
            count: usize,
        ) -> CuResult {
            fill::<P>(Place::device(to), u32::from(value), $element, (count, 1), DEFAULT)
        }

        pub(crate) extern "C" fn $line_async<const P: bool>(
            to: DevicePtr,
            value: $type,
            count: usize,
            stream: cuda::Stream,
        ) -> CuResult {
            fill::<P>(Place::device(to), u32::from(value), $element, (count, 1), stream)
        }

        pub(crate) extern "C" fn $plane<const P: bool>(
            to: DevicePtr,
            pitch: usize,
            value: $type,
            width: usize,
            height: usize,
        ) -> CuResult {
            $plane_async::<P>(to, pitch, value, width, height, DEFAULT)
        }

        pub(crate) extern "C" fn $plane_async<const P: bool>(
            to: DevicePtr,
            pitch: usize,
            value: $type,
            width: usize,
            height: usize,
            stream: cuda::Stream,
        ) -> CuResult {
            let to = Place { pitch: pitch as u64, ..Place::device(to) };
            fill::<P>(to, u32::from(value), $element, (width, height), stream)
        }

        pub(crate) extern "C" fn $line_v1(
            to: DevicePtrV1,
            value: $type,
            count: c_uint,
        ) -> CuResult {
            $line::<false>(u64::from(to), value, count as usize)
        }

        pub(crate) extern "C" fn $plane_v1(
            to: DevicePtrV1,
            pitch: c_uint,
            value: $type,
            width: c_uint,
            height: c_uint,
        ) -> CuResult {
            let (pitch, width, height) = (pitch as usize, width as usize, height as usize);
            $plane::<false>(u64::from(to), pitch, value, width, height)
        }
    )*};
}

fills! {
    1 u8: fill_8 fill_8_async fill_plane_8 fill_plane_8_async fill_8_v1 fill_plane_8_v1;
    2 u16: fill_16 fill_16_async fill_plane_16 fill_plane_16_async fill_16_v1 fill_plane_16_v1;
    4 u32: fill_32 fill_32_async fill_plane_32 fill_plane_32_async fill_32_v1 fill_plane_32_v1;
}

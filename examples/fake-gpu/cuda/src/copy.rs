//! Copies and fills. The bytes move when the call is made, which no correct program can tell from
//! moving them later; the time that it takes is spent on the device's timeline, in stream order.

use core::ffi::{c_uint, c_void};

use fake_node::layout::{Kind as OpKind, Op};
use utils::driver::cuda::{self, CuResult, DevicePtr};

use crate::array;
use crate::ffi::{Api, In, api, ensure};
use crate::graph::Work;
use crate::memory::{self, Kind};
use crate::state::{Inner, driver, queue_error};
use crate::{capture, managed, stream};

/// Bytes per microsecond between host and device.
const BUS: u64 = 25_000;
/// Bytes per microsecond within a device.
const DEVICE: u64 = 2_000_000;
/// What starting one takes, in nanoseconds.
const START_NS: u64 = 1_000;

/// A copy or fill of rows (one row for the plain ones).
#[derive(Clone, Copy)]
pub(crate) enum Transfer {
    Copy { to: Place, from: Place, width: u64, rows: u64 },
    Fill { to: Place, pattern: u32, element: u64, width: u64, rows: u64 },
}

/// A start address and the distance of its rows.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    /// Whether it has to be memory that the driver knows.
    pub(crate) device: bool,
}

impl Place {
    fn device(address: u64) -> Self {
        Self { address, pitch: 0, device: true }
    }

    fn host(address: u64) -> Self {
        Self { address, pitch: 0, device: false }
    }

    fn extent(&self, width: u64, rows: u64) -> Api<u64> {
        let rest = rows.checked_sub(1).and_then(|r| r.checked_mul(self.pitch));
        rest.and_then(|r| r.checked_add(width)).ok_or(CuResult::INVALID_VALUE)
    }

    fn check(&self, inner: &Inner, width: u64, rows: u64) -> Api {
        ensure(self.address != 0, CuResult::INVALID_VALUE)?;
        ensure(rows < 2 || self.pitch >= width, CuResult::INVALID_VALUE)?;
        if self.device { span(inner, self.address, self.extent(width, rows)?) } else { Ok(()) }
    }
}

/// Whether the driver knows all of `length` bytes from `address`; ranges may be mapped side by
/// side.
fn span(inner: &Inner, address: u64, length: u64) -> Api {
    let end = address.checked_add(length).ok_or(CuResult::INVALID_VALUE)?;
    let mut at = address;
    while at < end {
        let (base, found) = memory::find(inner, at).ok_or(CuResult::INVALID_VALUE)?;
        let usable = !matches!(
            found.kind,
            Kind::Mapped { accessible: false } | Kind::Graph { live: false, .. }
        );
        ensure(usable, CuResult::INVALID_VALUE)?;
        at = base + found.size;
    }
    Ok(())
}

impl Transfer {
    fn size(&self) -> (u64, u64) {
        match *self {
            Self::Copy { width, rows, .. } | Self::Fill { width, rows, .. } => (width, rows),
        }
    }

    /// How long it takes.
    pub(crate) fn nanoseconds(&self) -> u64 {
        let (width, rows) = self.size();
        let across = match self {
            Self::Copy { to, from, .. } => !(to.device && from.device),
            Self::Fill { .. } => false,
        };
        let rate = if across { BUS } else { DEVICE };
        START_NS + (width * rows).saturating_mul(1000) / rate
    }

    fn check(&self, inner: &Inner) -> Api {
        let (width, rows) = self.size();
        match self {
            Self::Copy { to, from, .. } => {
                to.check(inner, width, rows)?;
                from.check(inner, width, rows)
            }
            Self::Fill { to, element, .. } => {
                ensure(to.address % element == 0, CuResult::INVALID_VALUE)?;
                to.check(inner, width, rows)
            }
        }
    }

    /// Moves the bytes.
    pub(crate) fn apply(&self, inner: &mut Inner) -> Api {
        self.check(inner)?;
        match *self {
            Self::Copy { to, from, width, rows } => {
                for row in 0..rows {
                    // SAFETY: device sides were checked against the table of allocations just
                    // now, under its lock; host sides are the caller's word, as in the driver API.
                    unsafe {
                        core::ptr::copy(
                            (from.address + row * from.pitch) as *const u8,
                            (to.address + row * to.pitch) as *mut u8,
                            width as usize,
                        );
                    }
                }
            }
            Self::Fill { to, pattern, element, width, rows } => {
                for row in 0..rows {
                    let start = to.address + row * to.pitch;
                    let count = (width / element) as usize;
                    // SAFETY: the range was checked against the table of allocations just now,
                    // under its lock, and `start` is aligned for its elements.
                    unsafe {
                        match element {
                            1 => core::ptr::write_bytes(start as *mut u8, pattern as u8, count),
                            2 => core::slice::from_raw_parts_mut(start as *mut u16, count)
                                .fill(pattern as u16),
                            _ => core::slice::from_raw_parts_mut(start as *mut u32, count)
                                .fill(pattern),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn device_side(&self) -> u64 {
        match self {
            Self::Copy { to, .. } | Self::Fill { to, .. } => to.address,
        }
    }
}

/// Puts a transfer into a stream; a synchronous one is waited for.
fn put<const P: bool>(transfer: Transfer, stream: cuda::Stream, wait: bool) -> Api {
    let driver = driver()?;
    let (target, ns) = {
        let inner = &mut *driver.inner();
        let target = stream::target::<P>(driver, inner, stream)?;
        let (width, rows) = transfer.size();
        if width == 0 || rows == 0 {
            return Ok(());
        }
        transfer.check(inner)?;
        if wait {
            capture::forbid_on(inner, target)?;
            capture::unsafe_call(inner)?;
        } else if capture::add(inner, target, |_, _| Ok(Work::Transfer(transfer)))? {
            return Ok(());
        }
        // Managed memory that the device writes comes to the device.
        if let (Transfer::Fill { .. }, Some((base, _))) =
            (&transfer, memory::find(inner, transfer.device_side()))
        {
            let (_, device) = crate::context::device_of(inner, target.context)?;
            managed::bring(driver, inner, base, device);
        }
        transfer.apply(inner)?;
        (target, transfer.nanoseconds())
    };
    let end = driver.node.submit(target.id, Op::work(OpKind::Copy, ns)).map_err(queue_error)?;
    if wait { stream::wait_all(&[(target.id, end)]) } else { Ok(()) }
}

/// The default stream, by the function's suffix.
const DEFAULT: cuda::Stream = core::ptr::null_mut();

fn line(to: Place, from: Place, bytes: usize) -> Transfer {
    Transfer::Copy { to, from, width: bytes as u64, rows: 1 }
}

/// For the functions that take any address: the driver's own, or else the host's.
fn anywhere(address: u64) -> Place {
    let known = driver().is_ok_and(|driver| memory::find(&driver.inner(), address).is_some());
    Place { address, pitch: 0, device: known }
}

pub(crate) extern "C" fn any<const P: bool>(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
) -> CuResult {
    api(|| put::<P>(line(anywhere(to), anywhere(from), bytes), DEFAULT, true))
}

pub(crate) extern "C" fn any_async<const P: bool>(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    api(|| put::<P>(line(anywhere(to), anywhere(from), bytes), stream, false))
}

pub(crate) extern "C" fn to_device<const P: bool>(
    to: DevicePtr,
    from: *const c_void,
    bytes: usize,
) -> CuResult {
    api(|| put::<P>(line(Place::device(to), Place::host(from as u64), bytes), DEFAULT, true))
}

pub(crate) extern "C" fn to_device_async<const P: bool>(
    to: DevicePtr,
    from: *const c_void,
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    api(|| put::<P>(line(Place::device(to), Place::host(from as u64), bytes), stream, false))
}

pub(crate) extern "C" fn to_host<const P: bool>(
    to: *mut c_void,
    from: DevicePtr,
    bytes: usize,
) -> CuResult {
    api(|| put::<P>(line(Place::host(to as u64), Place::device(from), bytes), DEFAULT, true))
}

pub(crate) extern "C" fn to_host_async<const P: bool>(
    to: *mut c_void,
    from: DevicePtr,
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    api(|| put::<P>(line(Place::host(to as u64), Place::device(from), bytes), stream, false))
}

/// Within a device a copy is not waited for ("API synchronization behavior").
pub(crate) extern "C" fn within<const P: bool>(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
) -> CuResult {
    api(|| put::<P>(line(Place::device(to), Place::device(from), bytes), DEFAULT, false))
}

pub(crate) extern "C" fn within_async<const P: bool>(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    api(|| put::<P>(line(Place::device(to), Place::device(from), bytes), stream, false))
}

pub(crate) extern "C" fn peer<const P: bool>(
    to: DevicePtr,
    _to_context: cuda::Context,
    from: DevicePtr,
    _from_context: cuda::Context,
    bytes: usize,
) -> CuResult {
    within::<P>(to, from, bytes)
}

pub(crate) extern "C" fn peer_async<const P: bool>(
    to: DevicePtr,
    _to_context: cuda::Context,
    from: DevicePtr,
    _from_context: cuda::Context,
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    within_async::<P>(to, from, bytes, stream)
}

// The forms of CUDA 2, with 32-bit addresses and sizes.

pub(crate) extern "C" fn to_device_v1(to: c_uint, from: *const c_void, bytes: c_uint) -> CuResult {
    to_device::<false>(u64::from(to), from, bytes as usize)
}

pub(crate) extern "C" fn to_host_v1(to: *mut c_void, from: c_uint, bytes: c_uint) -> CuResult {
    to_host::<false>(to, u64::from(from), bytes as usize)
}

pub(crate) extern "C" fn within_v1(to: c_uint, from: c_uint, bytes: c_uint) -> CuResult {
    within::<false>(u64::from(to), u64::from(from), bytes as usize)
}

/// One side of `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Side {
    x: usize,
    y: usize,
    /// `CUmemorytype`: 1 host, 2 device, 3 array, 4 unified.
    kind: c_uint,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

/// `CUDA_MEMCPY2D_v2`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Copy2d {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
}

impl Side {
    fn place(&self, width: usize) -> Api<Place> {
        let pitch = if self.pitch == 0 { width } else { self.pitch } as u64;
        let (base, pitch, device) = match self.kind {
            1 => (self.host, pitch, false),
            2 => (self.device, pitch, true),
            3 => {
                let driver = driver()?;
                let (base, row) = array::rows(&driver.inner(), self.array)?;
                (base, row, true)
            }
            4 => (self.device, pitch, anywhere(self.device).device),
            _ => return Err(CuResult::INVALID_VALUE),
        };
        let address = base + self.y as u64 * pitch + self.x as u64;
        Ok(Place { address, pitch, device })
    }
}

fn plane(copy: In<Copy2d>) -> Api<Transfer> {
    driver()?;
    let copy = copy.get()?;
    Ok(Transfer::Copy {
        to: copy.to.place(copy.width)?,
        from: copy.from.place(copy.width)?,
        width: copy.width as u64,
        rows: copy.height as u64,
    })
}

pub(crate) extern "C" fn plane_sync<const P: bool>(copy: In<Copy2d>) -> CuResult {
    api(|| put::<P>(plane(copy)?, DEFAULT, true))
}

pub(crate) extern "C" fn plane_async<const P: bool>(
    copy: In<Copy2d>,
    stream: cuda::Stream,
) -> CuResult {
    api(|| put::<P>(plane(copy)?, stream, false))
}

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
        put::<P>(transfer, stream, false)
    })
}

macro_rules! fills {
    ($($element:literal $type:ty: $line:ident $line_async:ident $plane:ident $plane_async:ident
        $line_v1:ident;)*) => {$(
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

        pub(crate) extern "C" fn $line_v1(to: c_uint, value: $type, count: c_uint) -> CuResult {
            $line::<false>(u64::from(to), value, count as usize)
        }
    )*};
}

fills! {
    1 u8: fill_8 fill_8_async fill_plane_8 fill_plane_8_async fill_8_v1;
    2 u16: fill_16 fill_16_async fill_plane_16 fill_plane_16_async fill_16_v1;
    4 u32: fill_32 fill_32_async fill_plane_32 fill_plane_32_async fill_32_v1;
}

//! Copies and fills. The bytes move when the call is made, which no correct program can distinguish from moving them
//! later. The time passes on the device's timeline, in stream order.

pub(crate) mod batch;
pub(crate) mod fill;
pub(crate) mod linear;
pub(crate) mod shaped;

use driver::cuda::{self, CuResult};
use fake_node::layout::{Kind as OpKind, Op, Order};

use crate::ffi::{Api, ensure};
use crate::graph::Work;
use crate::memory::{self, Kind};
use crate::state::{Inner, driver, queue_error};
use crate::{capture, managed, stream};

/// Bytes per microsecond between host and device, and between devices. Tens of times slower than real hardware, because
/// the host's memory moves the bytes, which must not take longer than the simulated copy.
const BUS: u64 = 1_000;
/// Bytes per microsecond within a device; slow for the same reason.
const DEVICE: u64 = 2_000;
/// Time to start a copy, in ns.
const START_NS: u64 = 1_000;

/// The default stream; the function's suffix decides which one.
const DEFAULT: cuda::Stream = core::ptr::null_mut();

/// A copy or fill of rows and layers; a plain one has one row in one layer.
#[derive(Clone, Copy)]
pub(crate) enum Transfer {
    Copy { to: Place, from: Place, width: u64, rows: u64, layers: u64, route: Route },
    Fill { to: Place, pattern: u32, element: u64, width: u64, rows: u64 },
}

/// The path of a copy's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Within the host.
    Host,
    Bus,
    Device,
}

/// A start address, and the distances (bytes) between rows and layers.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) layer: u64,
    /// Whether the address must be the driver's memory.
    pub(crate) device: bool,
}

impl Place {
    fn device(address: u64) -> Self {
        Self { address, pitch: 0, layer: 0, device: true }
    }

    fn host(address: u64) -> Self {
        Self { address, pitch: 0, layer: 0, device: false }
    }

    /// For functions that accept any address: the driver's memory, or otherwise the host's.
    fn anywhere(inner: &Inner, address: u64) -> Self {
        Self { device: memory::find(inner, address).is_some(), ..Self::device(address) }
    }

    fn extent(&self, width: u64, rows: u64, layers: u64) -> Api<u64> {
        let rest = |count: u64, distance: u64| count.checked_sub(1)?.checked_mul(distance);
        let total =
            || rest(layers, self.layer)?.checked_add(rest(rows, self.pitch)?)?.checked_add(width);
        total().ok_or(CuResult::INVALID_VALUE)
    }

    fn check(&self, inner: &Inner, width: u64, rows: u64, layers: u64) -> Api {
        ensure(self.address != 0, CuResult::INVALID_VALUE)?;
        ensure(rows < 2 || self.pitch >= width, CuResult::INVALID_VALUE)?;
        let extent = self.extent(width, rows, layers)?;
        if self.device { span(inner, self.address, extent) } else { Ok(()) }
    }

    /// The device that holds the memory; `None`: the host.
    fn holder(&self, inner: &Inner) -> Option<u32> {
        let (_, found) = memory::find(inner, self.address)?;
        let host = matches!(found.kind, Kind::Host | Kind::Registered);
        (self.device && !host).then_some(found.device)
    }
}

/// Checks that the driver knows all of `length` bytes from `address`, possibly in several adjacent mappings.
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
    /// A copy of contiguous bytes.
    fn line(to: Place, from: Place, bytes: u64) -> Self {
        Self::Copy { to, from, width: bytes, rows: 1, layers: 1, route: Route::Bus }
    }

    fn size(&self) -> (u64, u64, u64) {
        match *self {
            Self::Copy { width, rows, layers, .. } => (width, rows, layers),
            Self::Fill { width, rows, .. } => (width, rows, 1),
        }
    }

    fn is_empty(&self) -> bool {
        let (width, rows, layers) = self.size();
        width == 0 || rows == 0 || layers == 0
    }

    /// Whether no device is involved.
    fn is_on_host(&self) -> bool {
        matches!(self, Self::Copy { route: Route::Host, .. })
    }

    /// The transfer's duration, in ns.
    pub(crate) fn nanoseconds(&self) -> u64 {
        let (width, rows, layers) = self.size();
        let route = match self {
            Self::Copy { route, .. } => *route,
            Self::Fill { .. } => Route::Device,
        };
        let rate = match route {
            Route::Host => return 0,
            Route::Bus => BUS,
            Route::Device => DEVICE,
        };
        START_NS + (width * rows * layers).saturating_mul(1000) / rate
    }

    fn check(&self, inner: &Inner) -> Api {
        match self {
            Self::Copy { to, from, width, rows, layers, .. } => {
                to.check(inner, *width, *rows, *layers)?;
                from.check(inner, *width, *rows, *layers)
            }
            Self::Fill { to, element, width, rows, .. } => {
                let aligned = to.address % element == 0 && to.pitch % element == 0;
                ensure(aligned, CuResult::INVALID_VALUE)?;
                to.check(inner, *width, *rows, 1)
            }
        }
    }

    /// Determines a copy's route.
    fn set_route(&mut self, inner: &Inner) {
        if let Self::Copy { to, from, route, .. } = self {
            *route = match (to.holder(inner), from.holder(inner)) {
                (None, None) => Route::Host,
                (Some(one), Some(other)) if one == other => Route::Device,
                _ => Route::Bus,
            };
        }
    }

    /// Moves the bytes.
    pub(crate) fn apply(&self, inner: &mut Inner) -> Api {
        self.check(inner)?;
        match *self {
            Self::Copy { to, from, width, rows, layers, .. } => {
                let lines = (0..layers).flat_map(|layer| (0..rows).map(move |row| (layer, row)));
                for (layer, row) in lines {
                    // SAFETY: device sides were checked against the table of allocations just now,
                    // under its lock; the caller vouches for host sides, as in the driver API.
                    unsafe {
                        core::ptr::copy(
                            (from.address + layer * from.layer + row * from.pitch) as *const u8,
                            (to.address + layer * to.layer + row * to.pitch) as *mut u8,
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

    fn destination(&self) -> u64 {
        match self {
            Self::Copy { to, .. } | Self::Fill { to, .. } => to.address,
        }
    }
}

/// Submits a transfer to a stream; waits for it if `wait` is set.
fn put<const P: bool>(
    describe: impl FnOnce(&Inner) -> Api<Transfer>,
    stream: cuda::Stream,
    wait: bool,
) -> Api {
    let driver = driver()?;
    let (target, transfer) = {
        let inner = &mut *driver.inner();
        let target = stream::target::<P>(driver, inner, stream)?;
        let mut transfer = describe(inner)?;
        if transfer.is_empty() {
            return Ok(());
        }
        transfer.check(inner)?;
        transfer.set_route(inner);
        if wait {
            capture::forbid_on(inner, target)?;
            capture::unsafe_call(inner)?;
        } else if capture::add(inner, target, |_, _| Ok(Work::Transfer(transfer)))? {
            return Ok(());
        }
        // Managed memory that the device writes moves to the device.
        if let (Transfer::Fill { .. }, Some((base, _))) =
            (&transfer, memory::find(inner, transfer.destination()))
        {
            let (_, device) = crate::context::device_of(inner, target.context)?;
            managed::bring(driver, inner, base, device);
        }
        (target, transfer)
    };
    let work = Op::work(OpKind::Copy, transfer.nanoseconds());
    let end = driver.node.submit(target.id, work).map_err(queue_error)?;
    // While the simulated time passes, so that the host's part does not prolong the copy.
    transfer.apply(&mut driver.inner())?;
    // Copies within the host are always synchronous ("API synchronization behavior").
    if wait || transfer.is_on_host() { stream::wait_all(&[(target.id, end)]) } else { Ok(()) }
}

/// Submits transfers to a stream as one operation. All are checked before the first one is made; `failed` gets the
/// index of an invalid one.
fn put_batch<const P: bool>(
    count: usize,
    describe: impl Fn(&Inner, usize) -> Api<Transfer>,
    stream: cuda::Stream,
    failed: &mut usize,
) -> Api {
    let driver = driver()?;
    let (target, ns) = {
        let inner = &mut *driver.inner();
        let target = stream::target::<P>(driver, inner, stream)?;
        let legacy = inner.streams.get(&target.key).is_some_and(|s| s.order == Order::Legacy);
        ensure(!legacy, CuResult::INVALID_VALUE)?;
        let mut transfers = Vec::new();
        for index in 0..count {
            *failed = index;
            let mut transfer = describe(inner, index)?;
            if !transfer.is_empty() {
                transfer.check(inner)?;
                transfer.set_route(inner);
                transfers.push(transfer);
            }
        }
        *failed = usize::MAX;
        let mut captured = false;
        for &transfer in &transfers {
            captured = capture::add(inner, target, |_, _| Ok(Work::Transfer(transfer)))?;
            if !captured {
                break;
            }
        }
        if captured || transfers.is_empty() {
            return Ok(());
        }
        for transfer in &transfers {
            transfer.apply(inner)?;
        }
        (target, transfers.iter().map(Transfer::nanoseconds).sum())
    };
    driver.node.submit(target.id, Op::work(OpKind::Copy, ns)).map(|_| ()).map_err(queue_error)
}

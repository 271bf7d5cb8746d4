//! The [`Source`] of readings, and the thread that runs it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use limits::GpuId;

use crate::reading::AllReadings;
use crate::xid::Xid;

/// Delay before a source that failed is started again.
const AGAIN: Duration = Duration::from_secs(10);
/// How often a sleeping thread checks whether it should end.
const STEP: Duration = Duration::from_millis(100);

/// A report of a source.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A reading of all devices.
    Devices(AllReadings),
    /// The driver reported an error of a device (XID).
    Xid(GpuId, Xid),
    /// The devices cannot be observed.
    Blind(Blind),
}

/// Why the devices cannot be observed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Blind(pub String);

/// A source of readings.
pub trait Source: Send {
    /// Passes readings at intervals, and errors as they occur, to `take` until `over` is set. Blocks.
    ///
    /// # Errors
    /// [`Blind`]: the devices cannot be observed. The caller may retry later.
    fn watch(&mut self, over: &AtomicBool, take: &mut dyn FnMut(Seen)) -> Result<(), Blind>;
}

/// The thread that runs a source. Dropping this tells the thread to end and does not wait for it: a driver call may
/// never return.
#[derive(Debug)]
pub struct Watch {
    over: Arc<AtomicBool>,
}

impl Watch {
    /// Starts the thread, which passes all reports to `take`.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(
        mut source: Box<dyn Source>,
        mut take: impl FnMut(Seen) + Send + 'static,
    ) -> io::Result<Self> {
        let over = Arc::<AtomicBool>::default();
        let until = Arc::clone(&over);
        let look = move || {
            while let Err(blind) = source.watch(&until, &mut take) {
                take(Seen::Blind(blind));
                sleep(AGAIN, &until);
            }
        };
        thread::Builder::new().name("observer".to_owned()).spawn(look)?;
        Ok(Self { over })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

pub(crate) fn sleep(time: Duration, over: &AtomicBool) {
    let mut left = time;
    while !left.is_zero() && !over.load(Ordering::Acquire) {
        let step = left.min(STEP);
        thread::sleep(step);
        left -= step;
    }
}

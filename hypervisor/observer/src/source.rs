//! Something that shows devices, and the thread that looks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use limits::GpuId;

use crate::reading::AllReadings;
use crate::xid::Xid;

/// How often it is tried again to see anything.
const AGAIN: Duration = Duration::from_secs(10);
/// How often a thread that sleeps looks whether it is still wanted.
const STEP: Duration = Duration::from_millis(100);

/// Something that was seen.
#[derive(Clone, Debug)]
pub enum Seen {
    /// All devices.
    Devices(AllReadings),
    /// The driver reported an error of a device.
    Xid(GpuId, Xid),
    /// Nothing can be seen.
    Blind(Blind),
}

/// Why nothing can be observed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Blind(pub String);

/// Something that shows devices.
pub trait Source: Send {
    /// Shows the devices again and again, and errors as they come, until `over` is set.
    ///
    /// # Errors
    /// [`Blind`]: nothing can be seen, or no more. It may be tried again later.
    fn watch(&mut self, over: &AtomicBool, take: &mut dyn FnMut(Seen)) -> Result<(), Blind>;
}

/// The thread that looks. It ends after this is dropped. Nobody waits for it: a call of the driver may never
/// return.
#[derive(Debug)]
pub struct Watch {
    over: Arc<AtomicBool>,
}

impl Watch {
    /// Looks by a thread of its own, which hands on what it sees.
    ///
    /// # Errors
    /// The system has no thread.
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

/// Sleeps, or for less if it is over.
pub(crate) fn sleep(time: Duration, over: &AtomicBool) {
    let mut left = time;
    while !left.is_zero() && !over.load(Ordering::Acquire) {
        let step = left.min(STEP);
        thread::sleep(step);
        left -= step;
    }
}

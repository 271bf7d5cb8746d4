//! Processes on devices that belong to no session.

use std::collections::BTreeMap;

use limits::GpuId;

/// A process on a device that belongs to no session: no limit applies to it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProcess {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot, if known; distinguishes it from a later process with the same id.
    pub started: Option<u64>,
    /// User id, if known.
    pub uid: Option<u32>,
    /// Name of the program, if known.
    pub name: Option<String>,
    /// Device memory in use, in bytes. `None`: unknown to the driver.
    pub bytes: Option<u64>,
}

impl UnknownProcess {
    fn is(&self, other: &Self) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }
}

/// The processes without a session on one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unknown {
    pub(crate) present: Vec<UnknownProcess>,
    /// Number of processes seen so far.
    pub(crate) seen: u64,
}

impl Unknown {
    /// Replaces the processes on the device. Returns the new ones and those that left.
    pub(crate) fn replace(
        &mut self,
        now: Vec<UnknownProcess>,
    ) -> (Vec<UnknownProcess>, Vec<UnknownProcess>) {
        let before = core::mem::replace(&mut self.present, now);
        let missing_in =
            |all: &[UnknownProcess], one: &UnknownProcess| !all.iter().any(|other| other.is(one));
        let came: Vec<_> =
            self.present.iter().filter(|one| missing_in(&before, one)).cloned().collect();
        let went = before.into_iter().filter(|one| missing_in(&self.present, one)).collect();
        self.seen = self.seen.saturating_add(came.len() as u64);
        (came, went)
    }
}

/// Processes without a session, by device.
pub(crate) type ByDevice = BTreeMap<GpuId, Vec<UnknownProcess>>;

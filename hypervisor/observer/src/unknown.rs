//! Processes on devices that no session knows.

use std::collections::BTreeMap;

use limits::GpuId;

/// A process on a device that no session knows: nothing limits it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProcess {
    /// Its id.
    pub pid: u32,
    /// When it started, in clock ticks since boot, if that is known. It tells it from another one with its id.
    pub started: Option<u64>,
    /// Its user, if that is known.
    pub uid: Option<u32>,
    /// The name of its program, if that is known.
    pub name: Option<String>,
    /// Device memory that it has, in bytes. `None`: the driver does not tell.
    pub bytes: Option<u64>,
}

impl UnknownProcess {
    fn is(&self, other: &Self) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }
}

/// Those of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unknown {
    pub(crate) present: Vec<UnknownProcess>,
    /// How many there were since the beginning.
    pub(crate) seen: u64,
}

impl Unknown {
    /// Takes those that are on the device now. Returns who came, and who went.
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

/// The processes that no session knows, by device.
pub(crate) type ByDevice = BTreeMap<GpuId, Vec<UnknownProcess>>;

//! The operations on one device's block.
//!
//! # Memory orders
//!
//! `word` is only ever changed by read-modify-write operations, each with acquire and release. So
//! two of them are ordered, and the later one sees all that came before the earlier one. The
//! daemon stores `stop` and then clears the bit; the governor sets the bit and then reads `stop`.
//! If the daemon's operation is the earlier one, the governor reads its `stop`. If it is the later
//! one, the gate is closed. Therefore the daemon clears the bit whether it is set or not: if it
//! only looked, both could miss each other.
//!
//! The daemon does nothing here in a loop: the other side may change the words all the time.

use super::layout::{CHANGE, GateBlock, OPEN};
use super::protocol::{self, Opening, STOPPING, Step};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::time::Duration;
use limits::GpuId;
use rustix::thread::{Timespec, futex};

/// What became of opening a gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Opened {
    /// It is open.
    Open,
    /// It is closed: the lease has been ended early.
    Stopped,
}

/// The governor's side.
impl GateBlock {
    /// Opens the gate for a lease. `None`: one that the daemon has not granted, and cannot end.
    ///
    /// Also to be called when the bell has rung while the lease lasts: a late end of an earlier
    /// lease may have closed the gate. The bell is to be read ([`Self::rings`]) before.
    pub fn open(&self, lease: Option<u64>) -> Opened {
        let mut opening = Opening::new(lease);
        loop {
            match opening.next() {
                Ok(step) => opening.saw(self.carry_out(step, 0)),
                Err(true) => return Opened::Open,
                Err(false) => return Opened::Stopped,
            }
        }
    }

    /// Closes the gate.
    pub fn close(&self) {
        self.carry_out(Step::Close, 0);
    }

    /// Whether the gate is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.word.load(Acquire) & OPEN != 0
    }

    /// Whether the daemon has ended this lease early.
    #[must_use]
    pub fn is_stopped(&self, lease: u64) -> bool {
        protocol::is_stopped(Some(lease), self.stop.load(Acquire))
    }

    /// The process registers anew: leases are numbered from the start again.
    pub fn forget_stops(&self) {
        self.stop.store(0, Release);
    }

    /// How often the bell has rung, for [`Self::wait`].
    #[must_use]
    pub fn rings(&self) -> u32 {
        self.bell.load(Acquire)
    }

    /// Sleeps until the bell has rung since `rings` was read, at most for `most`. It may return
    /// earlier. One thread only can be sure to be woken.
    pub fn wait(&self, rings: u32, most: Duration) {
        let most = Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: most.subsec_nanos().into(),
        };
        // The daemon is another process, so the flag for futexes of one process is missing. An
        // error is a reason to look again, too.
        let _ = futex::wait(&self.bell, futex::Flags::empty(), rings, Some(&most));
    }

    /// Wakes the governor.
    pub fn ring(&self) {
        self.carry_out(Step::Ring, 0);
    }

    /// Says whether the process has work queued that has not begun.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted.into(), Relaxed);
    }

    /// Whether the process says that it has work queued.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed) != 0
    }

    /// Takes a free block.
    pub(super) fn give_to(&self, uuid: GpuId) {
        for (own, value) in self.uuid.iter().zip(halves(uuid)) {
            own.store(value, Release);
        }
    }
}

/// The daemon's side.
impl GateBlock {
    /// Whether the block says that it is this device's.
    pub(super) fn is_of(&self, uuid: GpuId) -> bool {
        self.uuid.iter().zip(halves(uuid)).all(|(own, value)| own.load(Acquire) == value)
    }

    /// Ends a lease early. The device stops after what runs, also if the governor is late.
    pub(super) fn stop_early(&self, lease: u64) {
        for step in STOPPING {
            self.carry_out(step, lease);
        }
    }
}

impl GateBlock {
    /// Carries out a step; returns what it has read.
    fn carry_out(&self, step: Step, lease: u64) -> u64 {
        match step {
            // The results are not used, so each is one instruction that always succeeds.
            Step::Open => {
                self.word.fetch_or(OPEN, AcqRel);
                self.word.fetch_add(CHANGE, AcqRel);
            }
            Step::Close => {
                self.word.fetch_and(!OPEN, AcqRel);
                self.word.fetch_add(CHANGE, AcqRel);
            }
            Step::LookAtStop => return self.stop.load(Acquire),
            Step::StoreStop => self.stop.store(lease, Release),
            Step::Ring => {
                self.bell.fetch_add(1, AcqRel);
                let _ = futex::wake(&self.bell, futex::Flags::empty(), 1);
            }
        }
        0
    }
}

/// A UUID as a block holds it.
fn halves(uuid: GpuId) -> [u64; 2] {
    let bytes = u128::from_ne_bytes(uuid.bytes());
    [bytes as u64, (bytes >> 64) as u64]
}

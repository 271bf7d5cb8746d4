//! The operations on one device's block of a gate page.
//!
//! # Memory orders
//!
//! `word` is only changed by read-modify-write operations, each with acquire and release. So any two of them are
//! ordered, and the later one sees everything before the earlier one. The daemon stores `stop` and then clears the bit;
//! the governor sets the bit and then reads `stop`. If the daemon's operation comes first, the governor reads its
//! `stop`; otherwise the gate is closed. The daemon therefore clears the bit whether or not it is set: if it only
//! checked, both could miss each other.
//!
//! A governor that asks for a lease names the present word, which no earlier request has named. The daemon opens the
//! gate by replacing exactly that word. So a grant for a withdrawn request has no effect.
//!
//! The daemon never loops here, because the other side may change the words all the time.

use super::layout::{ASK, GateBlock, OPEN};
use super::protocol::{self, Opening, STOPPING, Step, WITHDRAWING};
use crate::clock;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::time::Duration;
use limits::GpuId;
use rustix::thread::{Timespec, futex};

/// The result of opening a gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Opened {
    /// The gate is open.
    Open,
    /// The gate is closed, because the lease was ended early.
    Stopped,
}

/// The governor's operations.
impl GateBlock {
    /// Opens the gate for a lease. `None`: a lease that the daemon has not granted and cannot end.
    ///
    /// Must be called again when the bell rings during the lease: a late end of an earlier lease may have closed the
    /// gate. Read the bell ([`Self::rings`]) first.
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

    /// Begins a request for a lease, and returns the word of the closed gate to name in it. `None`: the gate is open.
    ///
    /// Until the answer or [`Self::withdraw`], the daemon may open the gate.
    pub fn ask(&self) -> Option<u32> {
        let word = (self.carry_out(Step::Count, 0) as u32).wrapping_add(ASK);
        (word & OPEN == 0).then_some(word)
    }

    /// Withdraws a request and closes the gate. Returns whether the gate had been opened: the answer was lost, or
    /// another thread of the process has opened it.
    pub fn withdraw(&self) -> bool {
        let [before] = WITHDRAWING.map(|step| self.carry_out(step, 0));
        before & u64::from(OPEN) != 0
    }

    /// The time ([`crate::clock`]) at which the daemon opened the gate for a lease, if it did.
    #[must_use]
    pub fn granted_at(&self, lease: u64) -> Option<u64> {
        (self.granted.load(Acquire) == lease).then(|| self.granted_at.load(Relaxed))
    }

    /// Reports that a lease's work is done: the device is free for the next holder.
    pub fn end(&self, lease: u64) {
        self.ended.store(number(lease), Release);
        let _ = futex::wake(&self.ended, futex::Flags::empty(), 1);
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

    /// Whether an unused lease may be kept, because no other session waits for it. The bell rings when one does.
    #[must_use]
    pub fn may_keep(&self, lease: u64) -> bool {
        lease != 0 && self.keep.load(Acquire) == lease
    }

    /// Marks a lease as kept but unused. The daemon may then revoke it without notice.
    pub fn rests(&self, lease: u64) {
        self.idle.store(lease, SeqCst);
    }

    /// Marks the lease as used again. Must be called before work is launched, so that a later revocation holds the work
    /// in its stream.
    pub fn goes_on(&self) {
        // Mostly unchanged, so the cache line stays shared.
        if self.idle.load(SeqCst) != 0 {
            self.idle.store(0, SeqCst);
        }
    }

    /// Forgets all leases when the process registers again: their numbers start anew.
    pub fn forget_leases(&self) {
        self.keep.store(0, Release);
        self.idle.store(0, Release);
        self.stop.store(0, Release);
        self.granted.store(0, Release);
        self.ended.store(0, Release);
    }

    /// Number of rings so far, for [`Self::wait`].
    #[must_use]
    pub fn rings(&self) -> u32 {
        self.bell.load(Acquire)
    }

    /// Sleeps until the bell has rung since `rings` was read, for at most `most`. May return earlier. Only one thread
    /// is sure to be woken.
    pub fn wait(&self, rings: u32, most: Duration) {
        let most = Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: most.subsec_nanos().into(),
        };
        // The daemon is another process, so the futex is not private. An error is a reason to check again as well.
        let _ = futex::wait(&self.bell, futex::Flags::empty(), rings, Some(&most));
    }

    /// Wakes the governor.
    pub fn ring(&self) {
        self.carry_out(Step::Ring, 0);
    }

    /// Makes the block unavailable to the daemon, whose further messages do not matter.
    pub fn leave(&self) {
        self.uuid.iter().for_each(|half| half.store(0, Release));
    }

    /// Assigns a free block to a device.
    pub(super) fn give_to(&self, uuid: GpuId) {
        for (own, value) in self.uuid.iter().zip(halves(uuid)) {
            own.store(value, Release);
        }
    }
}

/// The daemon's operations.
impl GateBlock {
    /// Whether the block names this device.
    pub(super) fn is_of(&self, uuid: GpuId) -> bool {
        self.uuid.iter().zip(halves(uuid)).all(|(own, value)| own.load(Acquire) == value)
    }

    /// Ends a lease early. The device stops after the running work, even if the governor is late.
    pub(super) fn stop_early(&self, lease: u64) {
        for step in STOPPING {
            self.carry_out(step, lease);
        }
    }

    /// Opens the gate for a lease, if its governor still waits for the answer to the request that named `word`.
    pub(super) fn grant(&self, lease: u64, word: u32) -> bool {
        let opened = word & OPEN == 0 && self.carry_out(Step::Grant, word.into()) != 0;
        if opened {
            self.granted_at.store(clock::now_ns(), Relaxed);
            self.granted.store(lease, Release);
        }
        opened
    }

    /// Whether the process keeps a lease and does not use it now.
    pub(super) fn is_idle(&self, lease: u64) -> bool {
        lease != 0 && self.idle.load(SeqCst) == lease
    }

    /// Sets whether an unused lease may be kept.
    pub(super) fn let_keep(&self, lease: u64, may: bool) {
        self.keep.store(if may { lease } else { 0 }, Release);
        if !may {
            self.ring();
        }
    }

    /// The futex word that changes when a lease's work is done.
    pub(super) const fn ended(&self) -> &AtomicU32 {
        &self.ended
    }
}

/// A lease's number as in [`GateBlock::ended`].
pub(super) const fn number(lease: u64) -> u32 {
    lease as u32
}

impl GateBlock {
    /// Carries out a step; returns the value read. `value`: the lease, or the word for [`Step::Grant`].
    fn carry_out(&self, step: Step, value: u64) -> u64 {
        match step {
            // The results are unused, so each is one instruction that always succeeds.
            Step::Open => _ = self.word.fetch_or(OPEN, AcqRel),
            Step::Close => _ = self.word.fetch_and(!OPEN, AcqRel),
            // So is this one, whose result is used.
            Step::Count => return self.word.fetch_add(ASK, AcqRel).into(),
            Step::Withdraw => {
                let withdrawn = |word: u32| word.wrapping_add(ASK) & !OPEN;
                let mut word = self.word.load(Relaxed);
                // The daemon changes the word once per call, so this loop ends.
                while let Err(present) =
                    self.word.compare_exchange_weak(word, withdrawn(word), AcqRel, Relaxed)
                {
                    word = present;
                }
                return word.into();
            }
            Step::Grant => {
                let asked = value as u32;
                let opens = self.word.compare_exchange(asked, asked | OPEN, AcqRel, Relaxed);
                return opens.is_ok().into();
            }
            Step::LookAtStop => return self.stop.load(Acquire),
            Step::StoreStop => self.stop.store(value, Release),
            Step::Ring => {
                self.bell.fetch_add(1, AcqRel);
                let _ = futex::wake(&self.bell, futex::Flags::empty(), 1);
            }
        }
        0
    }
}

/// A UUID in a block's form.
fn halves(uuid: GpuId) -> [u64; 2] {
    let bytes = u128::from_ne_bytes(uuid.bytes());
    [bytes as u64, (bytes >> 64) as u64]
}

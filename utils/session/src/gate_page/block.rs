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
//! A governor that asks names the word, which no earlier ask has named. The daemon opens by
//! replacing just that word. So a grant for an ask that was given up does nothing.
//!
//! The daemon does nothing here in a loop: the other side may change the words all the time.

use super::layout::{ASK, GateBlock, OPEN};
use super::protocol::{self, Opening, STOPPING, Step, WITHDRAWING};
use crate::clock;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
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

    /// The governor asks for a lease, and names this word of the closed gate. `None`: it is open.
    ///
    /// Until [`Self::withdraw`] or the answer, the daemon may open the gate.
    pub fn ask(&self) -> Option<u32> {
        let word = (self.carry_out(Step::Count, 0) as u32).wrapping_add(ASK);
        (word & OPEN == 0).then_some(word)
    }

    /// The governor has got no lease. Whether the gate had been opened all the same: the answer was
    /// lost on its way, or somebody else has opened it. It is closed then.
    pub fn withdraw(&self) -> bool {
        let [before] = WITHDRAWING.map(|step| self.carry_out(step, 0));
        before & u64::from(OPEN) != 0
    }

    /// When the daemon opened the gate for a lease, if it did. On [`crate::clock`].
    #[must_use]
    pub fn granted_at(&self, lease: u64) -> Option<u64> {
        (self.granted.load(Acquire) == lease).then(|| self.granted_at.load(Relaxed))
    }

    /// The work of a lease is done: the device is free for the next holder.
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

    /// Whether a lease may be kept while it is not used, because nobody waits for it. The bell rings when somebody does.
    #[must_use]
    pub fn may_keep(&self, lease: u64) -> bool {
        lease != 0 && self.keep.load(Acquire) == lease
    }

    /// A lease is kept and not used. The daemon may take it away without a word.
    pub fn rests(&self, lease: u64) {
        self.idle.store(lease, SeqCst);
    }

    /// It is used again. To be called before work is launched: what the daemon takes away later is held in its stream.
    pub fn goes_on(&self) {
        // Most calls find it so, and leave the cache line to all.
        if self.idle.load(SeqCst) != 0 {
            self.idle.store(0, SeqCst);
        }
    }

    /// The process registers anew: leases are numbered from the start again.
    pub fn forget_leases(&self) {
        self.keep.store(0, Release);
        self.idle.store(0, Release);
        self.stop.store(0, Release);
        self.granted.store(0, Release);
        self.ended.store(0, Release);
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

    /// The daemon finds no gate of this device any more. What it still has to say does not matter.
    pub fn leave(&self) {
        self.uuid.iter().for_each(|half| half.store(0, Release));
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

    /// Opens the gate for a lease, if its governor still waits for the answer to the ask that named
    /// `word`.
    pub(super) fn grant(&self, lease: u64, word: u32) -> bool {
        let opened = word & OPEN == 0 && self.carry_out(Step::Grant, word.into()) != 0;
        if opened {
            self.granted_at.store(clock::now_ns(), Relaxed);
            self.granted.store(lease, Release);
        }
        opened
    }

    /// Whether its process keeps a lease and does not use it now.
    pub(super) fn is_idle(&self, lease: u64) -> bool {
        lease != 0 && self.idle.load(SeqCst) == lease
    }

    /// Says whether a lease may be kept while it is not used.
    pub(super) fn let_keep(&self, lease: u64, may: bool) {
        self.keep.store(if may { lease } else { 0 }, Release);
        if !may {
            self.ring();
        }
    }

    /// The word that changes when a lease's work is done.
    pub(super) const fn ended(&self) -> &AtomicU32 {
        &self.ended
    }
}

/// A lease's number as [`GateBlock::ended`] has it.
pub(super) const fn number(lease: u64) -> u32 {
    lease as u32
}

impl GateBlock {
    /// Carries out a step; returns what it has read. `value`: the lease, or for [`Step::Grant`] the
    /// word.
    fn carry_out(&self, step: Step, value: u64) -> u64 {
        match step {
            // The results are not used, so each is one instruction that always succeeds.
            Step::Open => _ = self.word.fetch_or(OPEN, AcqRel),
            Step::Close => _ = self.word.fetch_and(!OPEN, AcqRel),
            // As are these two, whose results are.
            Step::Count => return self.word.fetch_add(ASK, AcqRel).into(),
            Step::Withdraw => {
                let withdrawn = |word: u32| word.wrapping_add(ASK) & !OPEN;
                let mut word = self.word.load(Relaxed);
                // The daemon changes the word once for each call of its own, so this ends.
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

/// A UUID as a block holds it.
fn halves(uuid: GpuId) -> [u64; 2] {
    let bytes = u128::from_ne_bytes(uuid.bytes());
    [bytes as u64, (bytes >> 64) as u64]
}

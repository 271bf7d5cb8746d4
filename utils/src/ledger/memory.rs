//! Bytes: reserve, charge, release.

use super::Book;
use crate::page::layout::Kind;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// A reservation that does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{asked} bytes do not fit: {used} of {limit} bytes are in use")]
pub struct Refusal {
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes in use by the session.
    pub used: u64,
    /// The session's limit.
    pub limit: u64,
}

/// A value in the page that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the session's page is damaged: slot {slot} gives back {asked} bytes and has {has}")]
pub struct Damaged {
    /// The slot.
    pub slot: usize,
    /// Bytes given back.
    pub asked: u64,
    /// Bytes on record.
    pub has: u64,
}

fn add(cell: &AtomicU64, bytes: u64) {
    cell.store(cell.load(Relaxed).saturating_add(bytes), Relaxed);
}

impl Book<'_> {
    /// Takes `bytes` out of what is left of the limit.
    ///
    /// # Errors
    /// [`Refusal`] where it does not fit; nothing has changed then.
    pub fn reserve(&mut self, slot: usize, kind: Kind, bytes: u64) -> Result<(), Refusal> {
        let (limit, used) = (self.limit(), self.used());
        match used.checked_add(bytes) {
            Some(sum) if sum <= limit => {
                self.charge(slot, kind, bytes);
                Ok(())
            }
            _ => Err(Refusal { asked: bytes, used, limit }),
        }
    }

    /// Takes `bytes` whether they fit or not: memory that the driver has taken already.
    pub fn charge(&mut self, slot: usize, kind: Kind, bytes: u64) {
        if let Some(slot) = self.slot(slot) {
            add(&slot.bytes[kind as usize], bytes);
            add(&self.0.used, bytes);
        }
    }

    /// Gives `bytes` back.
    ///
    /// # Errors
    /// [`Damaged`] where the slot has fewer; it has none of that kind afterwards.
    pub fn release(&mut self, slot: usize, kind: Kind, bytes: u64) -> Result<(), Damaged> {
        let index = slot;
        let Some(slot) = self.slot(slot) else { return Ok(()) };
        let has = slot.bytes[kind as usize].load(Relaxed);
        let given = has.min(bytes);
        slot.bytes[kind as usize].store(has - given, Relaxed);
        self.0.used.store(self.used().saturating_sub(given), Relaxed);
        if given == bytes { Ok(()) } else { Err(Damaged { slot: index, asked: bytes, has }) }
    }

    /// The session's limit in bytes, [`NO_LIMIT`](crate::page::layout::NO_LIMIT) for none.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.memory_limit.load(Relaxed)
    }

    /// Bytes in use by the session.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }
}

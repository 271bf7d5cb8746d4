//! The layout of a gate page. A limiter and a daemon of different builds share it: a change of any
//! offset or meaning raises [`VERSION`].

use core::sync::atomic::{AtomicU32, AtomicU64};

/// "sluicegt" in ASCII.
pub const MAGIC: u64 = 0x736c_7569_6365_6774;
/// Version of this layout.
pub const VERSION: u32 = 2;
/// How many devices a page has blocks for: as many as the driver knows at most.
pub const BLOCKS: usize = 64;
/// The length of a page in bytes.
pub const LENGTH: usize = size_of::<GatePageLayout>();

/// In [`GateBlock::word`]: the gate is open. It is the bit that streams wait for.
pub const OPEN: u32 = 1;
/// What [`GateBlock::word`] grows by with each ask, above [`OPEN`].
pub(super) const ASK: u32 = 2;

/// One device: two cache lines. What the device reads is in the first, so that who writes the
/// others does not disturb it.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct GateBlock {
    /// The device's UUID, in the byte order of the machine; zero: the block is free.
    pub(super) uuid: [AtomicU64; 2],
    /// Whether the gate is open ([`OPEN`]), and above that a count of asks. Streams wait for the
    /// bit.
    pub(super) word: AtomicU32,
    /// For later fields.
    pub(super) unused: [AtomicU32; 11],
    /// Number of the last lease that the daemon ended early; zero: none. Leases are numbered from 1.
    pub(super) stop: AtomicU64,
    /// Number of the last lease for which the daemon opened the gate, and when it did, on
    /// [`crate::clock`].
    pub(super) granted: AtomicU64,
    pub(super) granted_at: AtomicU64,
    /// Changes when the process's governor has something to look at. The governor sleeps on it.
    pub(super) bell: AtomicU32,
    /// Number of the last lease whose work is done, modulo 2^32. The daemon sleeps on it.
    pub(super) ended: AtomicU32,
    /// Number of the lease that the process may keep while it does not use it: nobody waits for it. Zero: none. A daemon
    /// that does not know this field leaves it so.
    pub(super) keep: AtomicU64,
    /// Number of the lease that the process keeps and does not use now; zero: it uses it, or has none.
    pub(super) idle: AtomicU64,
    /// For later fields.
    pub(super) more_unused: [AtomicU32; 4],
}

/// A page.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct GatePageLayout {
    /// [`MAGIC`]
    pub(super) magic: AtomicU64,
    /// [`VERSION`]
    pub(super) version: AtomicU32,
    /// [`BLOCKS`]
    pub(super) count: AtomicU32,
    /// For later fields.
    pub(super) unused: [AtomicU64; 14],
    /// The devices.
    pub(super) blocks: [GateBlock; BLOCKS],
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    /// Another build reads these offsets, and so does the device.
    #[test]
    fn offsets_are_fixed() {
        assert_eq!(offset_of!(GatePageLayout, version), 8);
        assert_eq!(offset_of!(GatePageLayout, count), 12);
        assert_eq!(offset_of!(GatePageLayout, blocks), 128);
        assert_eq!(offset_of!(GateBlock, word), 16);
        assert_eq!(offset_of!(GateBlock, stop), 64);
        assert_eq!(offset_of!(GateBlock, granted), 72);
        assert_eq!(offset_of!(GateBlock, granted_at), 80);
        assert_eq!(offset_of!(GateBlock, bell), 88);
        assert_eq!(offset_of!(GateBlock, ended), 92);
        assert_eq!(offset_of!(GateBlock, keep), 96);
        assert_eq!(offset_of!(GateBlock, idle), 104);
        assert_eq!(size_of::<GateBlock>(), 128);
        assert_eq!(LENGTH, 12_288);
    }
}

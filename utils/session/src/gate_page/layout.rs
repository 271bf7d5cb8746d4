//! The layout of a gate page. Limiters and daemons of different builds share it: a change of any offset or meaning
//! increments [`VERSION`].

use core::sync::atomic::{AtomicU32, AtomicU64};

/// "sluicegt" in ASCII.
pub const MAGIC: u64 = 0x736c_7569_6365_6774;
/// Version of this layout.
pub const VERSION: u32 = 2;
/// Number of blocks; the driver supports no more devices.
pub const BLOCKS: usize = 64;
/// The length of a page in bytes.
pub const LENGTH: usize = size_of::<GatePageLayout>();

/// In [`GateBlock::word`]: the gate is open. Streams wait for this bit.
pub const OPEN: u32 = 1;
/// Added to [`GateBlock::word`] by each request, above [`OPEN`].
pub(super) const ASK: u32 = 2;

/// One device: two cache lines. The device reads only the first, so that stores to the other fields do not disturb it.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct GateBlock {
    /// The device's UUID, in the machine's byte order; 0: the block is free.
    pub(super) uuid: [AtomicU64; 2],
    /// Whether the gate is open ([`OPEN`], the bit that streams wait for), and above it a count of requests.
    pub(super) word: AtomicU32,
    /// For later fields.
    pub(super) unused: [AtomicU32; 11],
    /// The last lease that the daemon ended early; 0: none. Leases are numbered from 1.
    pub(super) stop: AtomicU64,
    /// The last lease for which the daemon opened the gate, and when it did ([`crate::clock`], ns).
    pub(super) granted: AtomicU64,
    pub(super) granted_at: AtomicU64,
    /// Changes when the process's governor has something to check. The governor sleeps on it.
    pub(super) bell: AtomicU32,
    /// The last lease whose work is done, modulo 2^32. The daemon sleeps on it.
    pub(super) ended: AtomicU32,
    /// The lease that the process may keep unused, because no other session waits for it; 0: none. Older daemons leave
    /// it at 0.
    pub(super) keep: AtomicU64,
    /// The lease that the process keeps and does not use now; 0: it uses its lease, or has none.
    pub(super) idle: AtomicU64,
    /// For later fields.
    pub(super) more_unused: [AtomicU32; 4],
}

/// The whole page.
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
    /// One block per device.
    pub(super) blocks: [GateBlock; BLOCKS],
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    /// Other builds and the device rely on these offsets.
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

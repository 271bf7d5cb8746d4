//! Records of this process's allocations on a device, by the handle that frees them.

use core::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use crossbeam::utils::CachePadded;
use session::layout::MemoryKind;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Enough shards that concurrently allocating threads seldom contend.
const SHARDS: usize = 16;

/// The handle that frees an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handle {
    /// `cuMemFree`, `cuMemFreeAsync`
    Address(u64),
    /// `cuArrayDestroy`
    Array(usize),
    /// `cuMipmappedArrayDestroy`
    MipmappedArray(usize),
    /// `cuDestroyExternalMemory`
    External(usize),
    /// `cuMemPoolDestroy` of an imported pool.
    Pool(usize),
}

impl Hash for Handle {
    /// Hashes the number only: handles of different kinds seldom share it.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(match *self {
            Self::Address(address) => address,
            Self::Array(number)
            | Self::MipmappedArray(number)
            | Self::External(number)
            | Self::Pool(number) => number as u64,
        });
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allocation {
    /// The kind as which it is charged.
    pub(crate) kind: MemoryKind,
    /// Bytes charged.
    pub(crate) bytes: u64,
    /// The context with which it ends; 0: none.
    pub(crate) context: usize,
}

/// Hashes numbers that the driver chose. Not safe against chosen keys, which do not occur here, and much cheaper than
/// the standard hasher.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Allocations = HashMap<Handle, Allocation, BuildHasherDefault<Spread>>;

/// The allocations on one device.
#[derive(Default)]
pub(crate) struct Tracker {
    shards: [CachePadded<Mutex<Allocations>>; SHARDS],
}

impl Tracker {
    fn shard(&self, handle: Handle) -> &Mutex<Allocations> {
        // Use bits that the hash table does not use first.
        let hash = BuildHasherDefault::<Spread>::default().hash_one(handle) >> 40;
        &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)]
    }

    /// Records an allocation; returns the previous one with the same handle.
    #[must_use]
    pub(super) fn insert(&self, handle: Handle, allocation: Allocation) -> Option<Allocation> {
        let mut shard = self.shard(handle).lock().unwrap_or_else(PoisonError::into_inner);
        shard.insert(handle, allocation)
    }

    /// Removes and returns an allocation's record.
    pub(super) fn take(&self, handle: Handle) -> Option<Allocation> {
        self.shard(handle).lock().unwrap_or_else(PoisonError::into_inner).remove(&handle)
    }

    pub(super) fn kind_of(&self, handle: Handle) -> Option<MemoryKind> {
        let shard = self.shard(handle).lock().unwrap_or_else(PoisonError::into_inner);
        shard.get(&handle).map(|allocation| allocation.kind)
    }

    /// Removes and returns the allocations that end with a context.
    pub(crate) fn end_context(&self, context: usize) -> Vec<Allocation> {
        let mut ended = Vec::new();
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, allocation| {
                let ends = allocation.context == context;
                if ends {
                    ended.push(*allocation);
                }
                !ends
            });
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses are multiples of page sizes, and must still spread over the shards.
    #[test]
    fn handles_spread_over_the_shards() {
        for step in [512, 1 << 12, 2 << 20, 1 << 30] {
            let tracker = Tracker::default();
            let allocation = Allocation { kind: MemoryKind::Data, bytes: 1, context: 7 };
            let handles =
                |count: u64| (0..count).map(|n| Handle::Address(0x7f00_0000_0000 + n * step));
            for handle in handles(1600) {
                assert_eq!(tracker.insert(handle, allocation), None);
            }
            for shard in &tracker.shards {
                let length = shard.lock().unwrap().len();
                assert!((30..=300).contains(&length), "{length} of 1600 at steps of {step}");
            }
            assert!(handles(800).all(|handle| tracker.take(handle) == Some(allocation)));
            assert_eq!(tracker.end_context(7).len(), 800);
        }
    }
}

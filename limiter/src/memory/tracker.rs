//! What this process has allocated, by the handle that frees it.

use crate::device::Device;
use crate::runtime;
use core::hash::{BuildHasher, Hash};
use crossbeam::utils::CachePadded;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Mutex, PoisonError};
use utils::page::layout::Kind;

/// Enough that threads which allocate at the same time seldom meet.
const SHARDS: usize = 16;

/// By what an allocation is freed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Handle {
    /// An address: `cuMemFree`, `cuMemFreeAsync`.
    Address(u64),
    /// `cuArrayDestroy`
    Array(usize),
    /// `cuMipmappedArrayDestroy`
    MipmappedArray(usize),
    /// `cuDestroyExternalMemory`
    External(usize),
}

/// One allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allocation {
    /// What it was charged as.
    pub(crate) kind: Kind,
    /// Bytes charged.
    pub(crate) bytes: u64,
    /// The context that it ends with, zero for none.
    pub(crate) context: usize,
}

/// The allocations on one device.
pub(crate) struct Tracker {
    shards: [CachePadded<Mutex<HashMap<Handle, Allocation>>>; SHARDS],
    hasher: RandomState,
}

impl Default for Tracker {
    fn default() -> Self {
        Self {
            shards: [const { None }; SHARDS].map(|_: Option<()>| CachePadded::default()),
            hasher: RandomState::new(),
        }
    }
}

impl Tracker {
    fn shard(&self, handle: Handle) -> &Mutex<HashMap<Handle, Allocation>> {
        let hash = usize::try_from(self.hasher.hash_one(handle) % SHARDS as u64).unwrap_or(0);
        &self.shards[hash]
    }

    /// Remembers an allocation.
    pub(crate) fn insert(&self, handle: Handle, allocation: Allocation) {
        let mut shard = self.shard(handle).lock().unwrap_or_else(PoisonError::into_inner);
        shard.insert(handle, allocation);
    }

    /// Forgets an allocation.
    fn take(&self, handle: Handle) -> Option<Allocation> {
        self.shard(handle).lock().unwrap_or_else(PoisonError::into_inner).remove(&handle)
    }

    /// Forgets everything that ended with a context, and tells what it was.
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

/// Finds an allocation on whatever device it is, and forgets it. A free may come from a thread with
/// another device's context, or with none.
pub(crate) fn take(handle: Handle) -> Option<(&'static Device, Allocation)> {
    let runtime = runtime::existing()?;
    runtime.devices().into_iter().find_map(|device| Some((device, device.tracker.take(handle)?)))
}

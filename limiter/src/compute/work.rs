//! What is launched, as far as its duration follows from it.

use core::ffi::c_uint;
use utils::driver::cuda::{Function, GraphExec};

/// Launches of the same work take about the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Work(u64);

/// A large odd number with its bits spread evenly (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

const fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(SPREAD).rotate_left(29)
}

impl Work {
    /// A kernel on a grid of blocks.
    #[inline]
    pub(crate) fn kernel(function: Function, grid: [c_uint; 3], block: [c_uint; 3]) -> Self {
        let pair = |high: c_uint, low: c_uint| u64::from(high) << 32 | u64::from(low);
        let hash = mix(function as u64, pair(grid[0], block[0]));
        let hash = mix(hash, pair(grid[1], block[1]));
        Self(mix(hash, pair(grid[2], block[2])))
    }

    /// A graph, as instantiated.
    #[inline]
    pub(crate) fn graph(graph: GraphExec) -> Self {
        Self(mix(graph as u64, 1))
    }

    /// A copy or fill of so many bytes. `kind` tells the kinds of transfer apart.
    #[inline]
    pub(crate) const fn transfer(kind: u8, bytes: u64) -> Self {
        Self(mix(mix(2, kind as u64), bytes))
    }

    /// Several transfers or kernels at once, of which nothing is known in common.
    pub(crate) const UNKNOWN: Self = Self(0);
}

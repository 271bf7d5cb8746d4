//! Work kinds: the properties of a launch that determine how long it takes. The hooks make a [`Work`] for each launch.

use core::ffi::c_uint;
use driver::cuda::{Function, GraphExec};

/// The work kind of a launch: launches of one kind take about the same time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Work(u64);

pub(super) use limiter_core::SPREAD;

const fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(SPREAD).rotate_left(29)
}

/// A launch's work kind, and for a kernel the function, grid and block size.
#[derive(Clone, Copy)]
pub(crate) struct Launched {
    pub(super) work: Work,
    kernel: Option<(Function, [c_uint; 3], [c_uint; 3])>,
}

impl From<Work> for Launched {
    #[inline]
    fn from(work: Work) -> Self {
        Self { work, kernel: None }
    }
}

impl Launched {
    /// A kernel on a grid of blocks.
    #[inline]
    pub(crate) fn kernel(function: Function, grid: [c_uint; 3], block: [c_uint; 3]) -> Self {
        let work = Work::kernel(function, grid, block);
        Self { work, kernel: Some((function, grid, block)) }
    }

    /// For a kernel: its function, and the number of threads of its grid.
    pub(super) fn function(&self) -> Option<(usize, u64)> {
        let (function, grid, block) = self.kernel?;
        let sizes = grid.into_iter().chain(block);
        // Dimensions that are 0 (unknown) count as 1.
        let threads = sizes.fold(1_u64, |product, n| product.saturating_mul(u64::from(n.max(1))));
        Some((function as usize, threads))
    }
}

impl Work {
    /// Several transfers or kernels at once, which have no common duration.
    pub(crate) const UNKNOWN: Self = Self(0);
    /// The shared kind of work that is not distinguished.
    pub(super) const OTHER: Self = Self(2);
    /// Bit of calls that may return only when the work is done.
    const MAY_BLOCK: u64 = 1;

    /// A kernel on a grid of blocks.
    #[inline]
    pub(crate) fn kernel(function: Function, grid: [c_uint; 3], block: [c_uint; 3]) -> Self {
        let pair = |high: c_uint, low: c_uint| u64::from(high) << 32 | u64::from(low);
        let hash = mix(function as u64, pair(grid[0], block[0]));
        let hash = mix(hash, pair(grid[1], block[1]));
        Self::launched(mix(hash, pair(grid[2], block[2])))
    }

    /// An instantiated graph.
    #[inline]
    pub(crate) fn graph(graph: GraphExec) -> Self {
        Self::launched(mix(graph as u64, 1))
    }

    /// A copy or fill of `bytes` bytes; `kind` distinguishes kinds of transfers. Sizes within an eighth of each other
    /// are one kind, or programs with ever-changing sizes would never have estimates.
    #[inline]
    pub(crate) fn transfer(kind: u8, bytes: u64) -> Self {
        let octave = bytes.checked_ilog2().unwrap_or(0);
        let size = if octave > 3 { bytes >> (octave - 3) << (octave - 3) } else { bytes };
        Self(mix(mix(2, u64::from(kind)), size) | Self::MAY_BLOCK)
    }

    /// The same work by a call that returns at once, whatever is queued in the stream.
    #[inline]
    pub(crate) const fn at_once(self) -> Self {
        Self::launched(self.0)
    }

    const fn launched(hash: u64) -> Self {
        Self((hash | 4) & !Self::MAY_BLOCK)
    }

    /// Whether the call may return only when the work is done, as for a copy.
    #[inline]
    pub(super) const fn may_block(self) -> bool {
        self.0 & Self::MAY_BLOCK != 0
    }

    /// A number whose lowest bits are spread evenly among kinds.
    #[inline]
    pub(super) const fn spread(self) -> usize {
        (self.0 >> 40) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_same_order_are_the_same_work() {
        assert_eq!(Work::transfer(1, 4096), Work::transfer(1, 4097));
        assert_ne!(Work::transfer(1, 4096), Work::transfer(1, 4096 + 512));
        assert_ne!(Work::transfer(1, 4096), Work::transfer(2, 4096));
        assert_ne!(Work::transfer(1, 0), Work::UNKNOWN);
        assert_ne!(Work::transfer(1, 1), Work::transfer(1, 2));
    }

    #[test]
    fn a_transfer_may_wait_unless_its_call_returns_at_once() {
        let fill = Work::transfer(1, 4096);
        assert!(fill.may_block() && !fill.at_once().may_block());
        assert_eq!(fill.at_once(), Work::transfer(1, 4097).at_once());
        assert_ne!(fill.at_once(), Work::transfer(1, 8192).at_once());
    }

    #[test]
    fn a_kernel_has_as_many_threads_as_its_grid_and_blocks_say() {
        let function = core::ptr::without_provenance_mut(64);
        let threads = |grid, block| Launched::kernel(function, grid, block).function();
        assert_eq!(threads([2, 3, 4], [32, 1, 1]), Some((64, 768)));
        assert_eq!(threads([5, 1, 1], [0; 3]), Some((64, 5)));
        assert_eq!(threads([u32::MAX; 3], [u32::MAX; 3]), Some((64, u64::MAX)));
        assert_eq!(Launched::from(Work::UNKNOWN).function(), None);
    }

    #[test]
    fn a_kernel_is_told_by_its_function_and_its_size() {
        let function = |n: usize| core::ptr::without_provenance_mut(n);
        let one = Work::kernel(function(64), [1, 2, 3], [4, 5, 6]);
        assert_eq!(one, Work::kernel(function(64), [1, 2, 3], [4, 5, 6]));
        for other in [
            Work::kernel(function(128), [1, 2, 3], [4, 5, 6]),
            Work::kernel(function(64), [2, 1, 3], [4, 5, 6]),
            Work::kernel(function(64), [1, 2, 3], [4, 6, 5]),
        ] {
            assert_ne!(one, other);
        }
    }
}

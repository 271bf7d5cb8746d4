//! The tiles of sparse arrays and the memory mapped to them; [`physical`](super::physical) uses them.

/// A box of tiles in one layer of one level, or a range of a mip tail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    /// Level and layer; boxes of different planes never overlap.
    pub(crate) plane: (u32, u32),
    /// First tile of each dimension.
    pub(crate) low: [u64; 3],
    /// One past the last tile of each dimension.
    pub(crate) high: [u64; 3],
}

impl Region {
    /// Pseudo-level of the mip tail.
    pub(crate) const TAIL: u32 = u32::MAX;

    /// The whole of an array that is mapped at once.
    const WHOLE: Self = Self { plane: (0, 0), low: [0; 3], high: [u64::MAX; 3] };

    fn is_empty(&self) -> bool {
        self.low.iter().zip(&self.high).any(|(low, high)| low >= high)
    }

    fn meets(&self, other: &Self) -> bool {
        self.plane == other.plane
            && (0..3).all(|d| self.low[d] < other.high[d] && other.low[d] < self.high[d])
    }

    /// This region without `other`: at most two boxes per dimension.
    fn without(self, other: &Self) -> Vec<Self> {
        if !self.meets(other) {
            return vec![self];
        }
        let (mut left, mut rest) = (Vec::new(), self);
        for d in 0..3 {
            let (mut below, mut above) = (rest, rest);
            below.high[d] = other.low[d];
            above.low[d] = other.high[d];
            left.extend([below, above].into_iter().filter(|part| !part.is_empty()));
            rest.low[d] = rest.low[d].max(other.low[d]);
            rest.high[d] = rest.high[d].min(other.high[d]);
        }
        left
    }
}

/// The mapped tiles of one array, as boxes with the memory of each.
pub(super) struct Tiles<T> {
    context: usize,
    /// Whether the array is always mapped as a whole, whatever region a change names.
    at_once: bool,
    mapped: Vec<(Region, T)>,
}

/// The memory whose number of boxes has changed: one entry per box.
pub(super) struct Change<T> {
    pub(super) more: Vec<T>,
    pub(super) fewer: Vec<T>,
}

impl<T: Copy> Tiles<T> {
    pub(super) const fn new(context: usize, at_once: bool) -> Self {
        Self { context, at_once, mapped: Vec::new() }
    }

    /// The context at whose end the array ends.
    pub(super) const fn context(&self) -> usize {
        self.context
    }

    /// Maps `what` in a region in place of the previous memory; `None` unmaps.
    pub(super) fn put(&mut self, region: Region, what: Option<T>) -> Change<T> {
        let region = if self.at_once { Region::WHOLE } else { region };
        let mut change = Change { more: Vec::new(), fewer: Vec::new() };
        let (met, mut mapped): (Vec<_>, Vec<_>) =
            self.mapped.drain(..).partition(|(old, _)| old.meets(&region));
        for (old, of) in met {
            change.fewer.push(of);
            let left = old.without(&region);
            change.more.extend(left.iter().map(|_| of));
            mapped.extend(left.into_iter().map(|part| (part, of)));
        }
        if let Some(what) = what.filter(|_| !region.is_empty()) {
            change.more.push(what);
            mapped.push((region, what));
        }
        self.mapped = mapped;
        change
    }

    /// The mapped memory, one entry per box.
    pub(super) fn into_held(self) -> impl Iterator<Item = T> {
        self.mapped.into_iter().map(|(_, what)| what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn region(low: [u64; 3], high: [u64; 3]) -> Region {
        Region { plane: (0, 0), low, high }
    }

    /// Random boxes agree with a plain grid on mapped tiles and on reference counts.
    #[test]
    fn boxes_agree_with_a_grid() {
        const SIDE: u64 = 5;
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        let mut tiles = Tiles::new(0, false);
        let mut grid: HashMap<[u64; 3], u64> = HashMap::new();
        let mut holders: HashMap<u64, i64> = HashMap::new();
        for step in 0..2000 {
            let low = [(); 3].map(|()| random(SIDE));
            let high = low.map(|low| low + 1 + random(SIDE - low));
            let what = (random(3) > 0).then_some(step % 7);
            let change = tiles.put(region(low, high), what);
            change.more.iter().for_each(|of| *holders.entry(*of).or_default() += 1);
            change.fewer.iter().for_each(|of| *holders.entry(*of).or_default() -= 1);
            for x in low[0]..high[0] {
                for y in low[1]..high[1] {
                    for z in low[2]..high[2] {
                        match what {
                            Some(what) => grid.insert([x, y, z], what),
                            None => grid.remove(&[x, y, z]),
                        };
                    }
                }
            }
            for what in 0..7 {
                let held = holders.get(&what).copied().unwrap_or(0);
                assert!(held >= 0);
                assert_eq!(held > 0, grid.values().any(|&of| of == what), "{step}: {what}");
            }
            let volume: u64 = tiles
                .mapped
                .iter()
                .map(|(of, _)| (0..3).map(|d| of.high[d] - of.low[d]).product::<u64>())
                .sum();
            assert_eq!(volume, grid.len() as u64, "{step}");
        }
    }

    #[test]
    fn other_levels_are_left_alone() {
        let mut tiles = Tiles::new(0, false);
        let tail = Region { plane: (Region::TAIL, 0), ..region([0; 3], [8, 1, 1]) };
        let _ = tiles.put(region([0; 3], [8, 1, 1]), Some(1));
        let _ = tiles.put(tail, Some(2));
        let change = tiles.put(tail, None);
        assert_eq!((change.fewer, change.more), (vec![2], vec![]));
        assert_eq!(tiles.into_held().collect::<Vec<_>>(), [1]);
    }
}

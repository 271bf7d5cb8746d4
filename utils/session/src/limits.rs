//! Reads and writes a session's limits in its page.

use crate::layout::{NO_LIMIT, PageLayout};
use ::limits::{ComputeLimit, Limits, MemoryLimit, Policy, Priority};
use core::sync::atomic::Ordering::{Relaxed, Release};

impl PageLayout {
    /// Reads the limits. Impossible values are replaced by the nearest possible ones.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let bytes = |value: u64| (value != NO_LIMIT).then_some(value);
        let real = bytes(self.memory_real.load(Relaxed));
        let memory = bytes(self.memory_limit.load(Relaxed));
        let compute = ComputeLimit {
            share_ppm: self.share_ppm.load(Relaxed),
            policy: match self.policy.load(Relaxed) {
                1 => Policy::Balance,
                2 => Policy::None,
                _ => Policy::Fixed,
            },
            soft_ppm: match self.soft_share_ppm.load(Relaxed) {
                0 => None,
                ppm => Some(ppm),
            },
            weight: self.weight.load(Relaxed),
            priority: match self.priority.load(Relaxed) {
                0 => Priority::High,
                _ => Priority::Low,
            },
        };
        let memory = memory.map(|limit| MemoryLimit { limit, real });
        Limits { memory, compute: compute.in_range() }
    }

    /// Writes the limits and increments [`PageLayout::limit_changes`]. Returns the number of the change.
    pub fn set_limits(&self, limits: &Limits) -> u32 {
        let Limits { memory, compute } = limits;
        // A limit equal to `NO_LIMIT` is stored as the next lower number.
        let bytes = |limit: Option<u64>| limit.map_or(NO_LIMIT, |limit| limit.min(NO_LIMIT - 1));
        let real = memory.and_then(|memory| memory.real);
        // The real part first, so that it never exceeds an unrelated limit.
        self.memory_real.store(bytes(real), Relaxed);
        self.memory_limit.store(bytes(memory.map(|memory| memory.limit)), Relaxed);
        self.share_ppm.store(compute.share_ppm, Relaxed);
        let policy = match compute.policy {
            Policy::Fixed => 0,
            Policy::Balance => 1,
            Policy::None => 2,
        };
        self.policy.store(policy, Relaxed);
        self.soft_share_ppm.store(compute.soft_ppm.unwrap_or(0), Relaxed);
        self.weight.store(compute.weight, Relaxed);
        self.priority.store(u32::from(compute.priority == Priority::Low), Relaxed);
        self.limit_changes.fetch_add(1, Release).wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Page;
    use ::limits::GpuId;

    #[test]
    fn limits_come_back_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits {
            memory: Some(MemoryLimit { limit: 5, real: Some(4) }),
            compute: ComputeLimit {
                soft_ppm: Some(500_000),
                priority: Priority::Low,
                ..ComputeLimit::balance(250_000, 3)
            },
        };
        let page = Page::open(dir.path(), GpuId::from_bytes([1; 16]), &limits).unwrap();
        assert_eq!(page.layout().limits(), limits);
        let before = page.layout().limit_changes.load(Relaxed);
        page.layout().set_limits(&Limits::NONE);
        assert_eq!(page.layout().limits(), Limits::NONE);
        assert_ne!(page.layout().limit_changes.load(Relaxed), before);
        assert_eq!(page.layout().memory_limit.load(Relaxed), NO_LIMIT);
        let most = Limits { memory: Some(MemoryLimit::new(u64::MAX)), ..Limits::NONE };
        page.layout().set_limits(&most);
        assert!(page.layout().limits().memory.is_some());
    }

    #[test]
    fn whatever_a_page_holds_is_a_limit_that_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let page = Page::open(dir.path(), GpuId::from_bytes([1; 16]), &Limits::NONE).unwrap();
        for value in [0, 1, 10_001, 1_000_001, u32::MAX] {
            let layout = page.layout();
            for cell in [&layout.share_ppm, &layout.policy, &layout.soft_share_ppm] {
                cell.store(value, Relaxed);
            }
            layout.weight.store(value, Relaxed);
            layout.priority.store(value, Relaxed);
            assert_eq!(layout.limits().compute.check(), Ok(()), "{value}");
        }
    }
}

//! Counters of leases and waits, by session, process and device, for metrics. Cheap enough to update on every decision.

use ::limits::GpuId;
use scheduler::WorkerId;

use super::Node;

/// Upper bounds of the histogram of waits, in microseconds; longer waits have a bucket of their own. No program notices
/// a wait within the first bound; a wait beyond the last deserves an alert.
pub(crate) const WAITS_UP_TO_US: [u64; 12] = [
    500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000,
];

/// A process that has not asked for this long has stopped waiting. A waiting process asks again whenever its poll ends.
const GONE_NS: u64 = 200_000_000;

/// Most devices whose counters are kept; beyond it, devices without a session are dropped.
const MOST_DEVICES: usize = 256;

/// Leases, and the waits before them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// Leases granted.
    pub(crate) turns: u64,
    /// Total wait for those leases, in nanoseconds.
    pub(crate) waited_ns: u64,
    /// Waits by bucket of [`WAITS_UP_TO_US`]; the last bucket counts longer ones.
    pub(crate) waits: [u64; WAITS_UP_TO_US.len() + 1],
    /// Leases ended early.
    pub(crate) stopped: u64,
}

impl Served {
    fn add(&mut self, waited_ns: u64) {
        self.turns += 1;
        self.waited_ns = self.waited_ns.saturating_add(waited_ns);
        let bucket = WAITS_UP_TO_US.partition_point(|&most| most.saturating_mul(1_000) < waited_ns);
        self.waits[bucket] += 1;
    }
}

/// Leases and waits of a process on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkerServed {
    pub(crate) turns: u64,
    pub(crate) waited_ns: u64,
    waiting: Option<Waiting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    since: u64,
    /// When the process last asked.
    seen_at: u64,
}

impl WorkerServed {
    fn asks(&mut self, now: u64) {
        let present = self.waiting.filter(|wait| now.saturating_sub(wait.seen_at) <= GONE_NS);
        let since = present.map_or(now, |wait| wait.since);
        self.waiting = Some(Waiting { since, seen_at: now });
    }

    fn granted(&mut self, now: u64) -> u64 {
        let waited = self.waiting.take().map_or(0, |wait| now.saturating_sub(wait.since));
        self.turns += 1;
        self.waited_ns = self.waited_ns.saturating_add(waited);
        waited
    }
}

impl Node {
    /// Records a request for a lease. Waiting for a device on which leases are withheld does not count.
    pub(crate) fn asks(&mut self, worker: WorkerId, uuid: GpuId, now: u64) {
        let withheld = self.withheld_from(worker, uuid).is_some();
        let Some(member) = self.members.get_mut(&worker) else { return };
        let served = member.served.entry(uuid).or_default();
        if withheld {
            served.waiting = None;
        } else {
            served.asks(now);
        }
    }

    /// Records a poll that ended without a lease: the wait continues if the worker asks again soon.
    pub(crate) fn still_waits(&mut self, worker: WorkerId, uuid: GpuId, now: u64) {
        let served = self.members.get_mut(&worker).and_then(|member| member.served.get_mut(&uuid));
        if let Some(waiting) = served.and_then(|served| served.waiting.as_mut()) {
            waiting.seen_at = now;
        }
    }

    /// Records a granted lease of which the worker knows.
    pub(crate) fn was_granted(&mut self, worker: WorkerId, uuid: GpuId, now: u64) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        let waited_ns = member.served.entry(uuid).or_default().granted(now);
        if let Some(session) = self.sessions.get_mut(&member.session) {
            session.served.entry(uuid).or_default().add(waited_ns);
        }
        if self.served.len() >= MOST_DEVICES && !self.served.contains_key(&uuid) {
            self.served.retain(|device, _| self.devices.contains_key(device));
        }
        self.served.entry(uuid).or_default().add(waited_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn each_wait_is_counted_once_and_under_its_length() {
        let mut served = Served::default();
        for waited in [0, 500_000, 500_001, 5_000 * MS, 5_000 * MS + 1] {
            served.add(waited);
        }
        assert_eq!(served.turns, 5);
        let counted = |bucket: usize| served.waits[bucket];
        let last = WAITS_UP_TO_US.len();
        assert_eq!([counted(0), counted(1), counted(last - 1), counted(last)], [2, 1, 1, 1]);
        assert_eq!(served.waits.iter().sum::<u64>(), served.turns);
    }

    #[test]
    fn a_wait_goes_on_from_poll_to_poll_until_the_process_asks_no_more() {
        let mut served = WorkerServed::default();
        for poll in 0..10 {
            served.asks(poll * 100 * MS);
        }
        assert_eq!(served.granted(950 * MS), 950 * MS);
        // A lease granted without a wait, as to a gang, adds no wait.
        assert_eq!(served.granted(960 * MS), 0);
        served.asks(1_000 * MS);
        served.asks(2_000 * MS);
        assert_eq!(served.granted(2_010 * MS), 10 * MS);
        assert_eq!((served.turns, served.waited_ns), (3, 960 * MS));
    }
}

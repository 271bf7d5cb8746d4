//! How often sessions and processes got a turn, and how long they waited for it. Only counters: a
//! decision adds to them.

use ::limits::GpuId;
use scheduler::WorkerId;

use super::Node;

/// What a wait is counted under: it lasted no longer than this, in microseconds. Longer ones come on
/// top. A wait shorter than the first is none that a program feels; one longer than the last is worth an
/// alert.
pub(crate) const WAITS_UP_TO_US: [u64; 12] = [
    500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000,
];

/// A process that does not ask for this long has stopped waiting. It asks anew each time its poll ends.
const GONE_NS: u64 = 200_000_000;

/// Devices whose counters are kept while no session uses them.
const MOST_DEVICES: usize = 256;

/// Turns, and the waits before them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// Leases that were granted.
    pub(crate) turns: u64,
    /// The time that was waited for them, in nanoseconds.
    pub(crate) waited_ns: u64,
    /// How many waits were as long as [`WAITS_UP_TO_US`] says; the last is those that were longer.
    pub(crate) waits: [u64; WAITS_UP_TO_US.len() + 1],
    /// Leases that were ended before their time.
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

/// A process on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkerServed {
    pub(crate) turns: u64,
    pub(crate) waited_ns: u64,
    waiting: Option<Waiting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    since: u64,
    /// When it was last known to wait.
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
    /// A worker asks for a lease. A wait for a device that is withheld from it is no wait for a turn.
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

    /// A worker's poll ended without a lease. It goes on waiting, if it asks again soon.
    pub(crate) fn still_waits(&mut self, worker: WorkerId, uuid: GpuId, now: u64) {
        let served = self.members.get_mut(&worker).and_then(|member| member.served.get_mut(&uuid));
        if let Some(waiting) = served.and_then(|served| served.waiting.as_mut()) {
            waiting.seen_at = now;
        }
    }

    /// A worker was granted a lease, and knows of it.
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
        // What is granted without a wait, as by a gang, counts as none.
        assert_eq!(served.granted(960 * MS), 0);
        served.asks(1_000 * MS);
        served.asks(2_000 * MS);
        assert_eq!(served.granted(2_010 * MS), 10 * MS);
        assert_eq!((served.turns, served.waited_ns), (3, 960 * MS));
    }
}

//! Checks the promises after each event.
//!
//! A session's use is what the simulated devices executed, not what anybody reports.

use std::collections::BTreeMap;
use std::fmt;

use limits::turns::{self, Handover};
use limits::{ComputeLimit, Policy};

use crate::scenario::{Scenario, Tenant, Words};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const WHOLE: i128 = 1_000_000;
/// The largest lasting deviation of a share, in millionths of the device: docs/specification.md promises 2 points, and
/// 5 for sessions with false reports and those beside them.
const OFF_PPM: u32 = 20_000;
const OFF_BY_LIES_PPM: u32 = 50_000;
/// Work from this length on takes far longer than a turn.
const LONG_NS: u64 = 8 * MS;

/// A promise that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// No session gets more than its limit.
    Limit,
    /// A session that always wants the device gets its guarantee.
    Guarantee,
    /// No session waits for ever, and no devices wait for each other.
    Progress,
    /// Two workers that take turns never hold leases at once.
    Exclusion,
    /// If work waits at a gate, its governor will wake up.
    LookedAfter,
    /// Sessions used as much time as devices worked, and no more than the time that passed.
    Time,
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When that was noticed, in nanoseconds after the beginning.
    pub at: u64,
    /// The promise.
    pub promise: Promise,
    /// The session concerned, and the deviation.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, promise, what } = self;
        write!(f, "{promise:?} at {}.{:06} s: {what}", at / SECOND, at % SECOND / 1_000)
    }
}

/// The time that a session got of a device.
#[derive(Clone, Debug, Default)]
pub struct Got {
    /// How long the device worked for it, in nanoseconds.
    pub used_ns: u64,
    /// The furthest that it ever was ahead of its limit, in nanoseconds.
    pub most_over_ns: u64,
    /// The furthest that it ever was behind its guarantee, in nanoseconds.
    pub most_behind_ns: u64,
    /// The longest time without progress while work waited, in nanoseconds.
    pub longest_wait_ns: u64,
    over: i128,
    behind: i128,
    progressed_at: u64,
    /// Until then its share is not checked, because it was changed or disturbed.
    excused_until: u64,
}

/// The checks of a run.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) got: BTreeMap<(usize, u32), Got>,
    at: u64,
    lies: bool,
}

impl Watch {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let mut got = BTreeMap::new();
        for (tenant, its) in scenario.tenants.iter().enumerate() {
            for &device in &its.devices {
                let start = Got { excused_until: its.comes_at + 3 * SECOND, ..Got::default() };
                got.insert((tenant, device), start);
            }
        }
        let lies = scenario.tenants.iter().any(|tenant| tenant.words != Words::True);
        Self { got, at: 0, lies }
    }

    /// Suspends the checks of a session's share until a moment (`None`: of all sessions), because it was changed or
    /// disturbed.
    pub(crate) fn excuse(&mut self, tenant: Option<usize>, until: u64) {
        for ((other, _), got) in &mut self.got {
            if tenant.is_none_or(|tenant| tenant == *other) {
                got.excused_until = got.excused_until.max(until);
            }
        }
    }

    /// A device has worked `ns` for a session, of which `counts` count.
    pub(crate) fn used(&mut self, tenant: usize, device: u32, ns: u64, counts: u64, now: u64) {
        if let Some(got) = self.got.get_mut(&(tenant, device)) {
            got.used_ns += ns;
            got.over += i128::from(counts) * WHOLE;
            got.behind -= i128::from(counts) * WHOLE;
            if ns > 0 {
                got.progressed_at = now;
            }
        }
    }

    /// Time has passed; `wants`: whether each session has work on a device.
    pub(crate) fn check(
        &mut self,
        now: u64,
        tenants: &[Tenant],
        quotas: impl Fn(usize) -> ComputeLimit,
        wants: impl Fn(usize, u32) -> bool,
    ) -> Option<Violation> {
        let passed = i128::from(now - self.at);
        self.at = now;
        let lies = self.lies;
        let off = if lies { OFF_BY_LIES_PPM } else { OFF_PPM };
        for (&(number, device), got) in &mut self.got {
            let (tenant, quota) = (&tenants[number], quotas(number));
            let wanted = wants(number, device);
            if !wanted {
                got.progressed_at = now;
            }
            let most = limit_ppm(&quota);
            got.over = (got.over - passed * i128::from(most.saturating_add(off))).max(0);
            let least = quota.guaranteed_ppm();
            let due = (least - least / 20).saturating_sub(off);
            got.behind = (got.behind + passed * i128::from(due)).max(0);
            if now < got.excused_until {
                (got.over, got.behind, got.progressed_at) = (0, 0, now);
                continue;
            }
            if !wanted || !tenant.program.fills() || beside_long(tenants, number, device) {
                got.behind = 0;
            }
            let over = (got.over / WHOLE) as u64;
            let behind = (got.behind / WHOLE) as u64;
            let waits = now - got.progressed_at;
            got.most_over_ns = got.most_over_ns.max(over);
            got.most_behind_ns = got.most_behind_ns.max(behind);
            got.longest_wait_ns = got.longest_wait_ns.max(waits);
            let broken = |promise, ns: u64, bound: u64| {
                (ns > bound).then(|| {
                    let us = [ns, bound].map(|ns| ns / 1_000);
                    let what = format!(
                        "session {number} on device {device}: {} us, {} allowed; {tenant:?}, now {quota:?}",
                        us[0], us[1]
                    );
                    Violation { at: now, promise, what }
                })
            };
            let (over_bound, behind_bound) =
                (most_over_ns(tenant, &quota), most_behind_ns(tenant, &quota));
            let wait_bound = longest_wait_ns(tenant, &quota);
            // A lie's gain is bounded by what others lose, so no other session may want the device.
            let honest = tenant.words == Words::True;
            let violation = broken(Promise::Limit, over, over_bound)
                .filter(|_| honest)
                .or_else(|| broken(Promise::Guarantee, behind, behind_bound))
                .or_else(|| broken(Promise::Progress, waits, wait_bound));
            if violation.is_some() {
                return violation;
            }
        }
        None
    }
}

/// The largest share that a session gets, however little others want.
fn limit_ppm(quota: &ComputeLimit) -> u32 {
    match quota.policy {
        Policy::Fixed => quota.share_ppm,
        Policy::Balance => quota.ceiling_ppm().unwrap_or(1_000_000),
        Policy::None => 1_000_000,
    }
}

fn handover(tenant: &Tenant) -> Handover {
    match (tenant.devices.len() > 1, tenant.in_stream) {
        (true, _) => Handover::Together,
        (false, true) => Handover::InStream,
        (false, false) => Handover::OnThread,
    }
}

/// The most that a session may have used at once: what it may save up, with the daemon and on its own account, and what
/// runs past the end of a lease in each of its processes, with what was queued behind it.
fn most_over_ns(tenant: &Tenant, quota: &ComputeLimit) -> u64 {
    let burst = turns::burst_ns(limit_ppm(quota), handover(tenant));
    let past = 2 * tenant.program.longest().max(2 * MS) + turns::LONGEST_LEASE_NS;
    2 * burst + u64::from(tenant.processes) * past
}

/// Whether another session's work on the device may take far longer than a turn: others do not wait for such work when
/// it runs on, and get less than their guarantee beside it (`tests/suite/long_work.rs` says how much).
fn beside_long(tenants: &[Tenant], number: usize, device: u32) -> bool {
    let mut others = tenants.iter().enumerate().filter(|(other, _)| *other != number);
    others.any(|(_, other)| {
        other.in_stream && other.devices.contains(&device) && other.program.longest() > LONG_NS
    })
}

/// How far a session may be behind its guarantee for a while: what it may save up, a few turns, and what it costs to
/// try whether more gets done if all hold leases at once.
fn most_behind_ns(tenant: &Tenant, quota: &ComputeLimit) -> u64 {
    let share = quota.guaranteed_ppm();
    turns::burst_ns(share, handover(tenant)) + 2 * tenant.program.longest() + 300 * MS
}

/// The longest time that a session may wait: until a small share has earned the cost of one launch, and the turns of
/// the others.
fn longest_wait_ns(tenant: &Tenant, quota: &ComputeLimit) -> u64 {
    let share = u64::from(quota.guaranteed_ppm()).max(1);
    let turn = 8 * MS + 4 * tenant.program.longest() * u64::from(tenant.processes);
    5 * SECOND + turn * 1_000_000 / share
}

//! A session's account on one device: what it has earned, used and owes. The roster holds one per session.
//!
//! * `own` is the bucket of the guaranteed share.
//! * `ceiling` is a second bucket, for a session that may exceed its guaranteed share up to a bound (the burst limit).
//!   All use is taken from it.
//! * Spare time is counted, and taken from `ceiling` only.
//!
//! Use is charged when it is reported. Until then, unreported time (`Untold`) counts as used, so that no worker gains
//! by not reporting.

use limits::bucket::{self, Bucket, DEEPEST_DEBT_NS};
use limits::recent::{Recent, WINDOW_NS, share_ppm};
use limits::turns;
use limits::units::PPM_ONE;
use limits::{ComputeLimit, Priority};

use crate::order::Order;
use crate::types::Paid;

/// Time since the last reports on leases, as far as it was probably used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Untold {
    pub(crate) own_ns: u64,
    pub(crate) all_ns: u64,
    /// The longest time since the last report of any holder; 0: no worker holds a lease.
    pub(crate) longest_ns: u64,
}

/// The balances of an account: positive is savings, negative is debt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedBalance {
    /// Guaranteed time, in nanoseconds.
    pub balance_ns: i64,
    /// Time below the burst limit, in nanoseconds; `None`: no burst limit.
    pub ceiling_ns: Option<i64>,
}

/// All time charged to an account since it was added.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charged {
    pub(crate) all_ns: u64,
    pub(crate) spare_ns: u64,
    since_ns: u64,
    recent: Recent,
}

impl Charged {
    /// The share of the device's time charged in the last ten seconds, or since the account was added, in millionths.
    /// Excludes unreported time.
    pub(crate) fn recent_share_ppm(&self, now: u64) -> Option<u32> {
        self.recent.share_ppm(now, now.saturating_sub(self.since_ns).min(WINDOW_NS))
    }

    /// The share of the device's time charged since the account was added, in millionths.
    pub(crate) fn mean_share_ppm(&self, now: u64) -> Option<u32> {
        share_ppm(self.all_ns.into(), now.saturating_sub(self.since_ns))
    }
}

#[derive(Debug)]
pub(crate) struct Account {
    quota: ComputeLimit,
    own: Bucket,
    ceiling: Option<(u32, Bucket)>,
    untold: Untold,
    /// Time in which any worker held a lease and which has not been charged. Workers that hold leases at once are
    /// together charged for no more than the time that passed. Reaches back to the oldest last report.
    held_ns: u64,
    charged: Charged,
    order: Order,
    /// The earliest starts of a turn, of guaranteed and of spare time. Computed once, so that sessions that wait for
    /// long cost little. Further use can only make them later.
    not_before: [u64; 2],
}

impl Account {
    pub(crate) fn new(quota: ComputeLimit, now: u64) -> Self {
        Self {
            quota,
            own: Bucket::empty_at(now),
            ceiling: quota.ceiling_ppm().map(|ppm| (ppm, Bucket::empty_at(now))),
            untold: Untold::default(),
            held_ns: 0,
            charged: Charged { since_ns: now, ..Charged::default() },
            order: Order::new(quota.guaranteed_ppm()),
            not_before: [0; 2],
        }
    }

    /// Continues with earlier balances, as of `at`.
    pub(crate) fn restore(&mut self, left: SavedBalance, at: u64) {
        let bucket = |ns: i64| Bucket { balance_ns: ns.max(DEEPEST_DEBT_NS), settled_at_ns: at };
        self.own = bucket(left.balance_ns);
        if let (Some((_, ceiling)), Some(left_ns)) = (&mut self.ceiling, left.ceiling_ns) {
            *ceiling = bucket(left_ns);
        }
    }

    pub(crate) fn left(&self) -> SavedBalance {
        let ceiling_ns = self.ceiling.is_some().then(|| self.headroom_ns());
        SavedBalance { balance_ns: self.balance_ns(), ceiling_ns }
    }

    /// Whether the session owes nothing.
    pub(crate) fn is_settled_up(&self) -> bool {
        self.balance_ns() >= 0 && self.headroom_ns() >= 0
    }

    pub(crate) fn quota(&self) -> &ComputeLimit {
        &self.quota
    }

    pub(crate) fn guaranteed_ppm(&self) -> u32 {
        self.quota.guaranteed_ppm()
    }

    /// The largest share that the session gets, however little others want.
    pub(crate) fn most_ppm(&self) -> u32 {
        if self.quota.takes_spare() {
            self.quota.ceiling_ppm().unwrap_or(PPM_ONE)
        } else {
            self.quota.share_ppm
        }
    }

    pub(crate) fn charged(&self) -> &Charged {
        &self.charged
    }

    /// Time probably used since the last reports (ns).
    pub(crate) fn untold_ns(&self) -> u64 {
        self.untold.all_ns
    }

    pub(crate) fn order(&self) -> &Order {
        &self.order
    }

    pub(crate) fn order_mut(&mut self) -> &mut Order {
        &mut self.order
    }

    /// Sets the share by which the session takes turns: all of its own, or `(part, whole)` of it.
    pub(crate) fn take_turns_by(&mut self, part: Option<(u64, u64)>) {
        self.order.take_turns_by(self.guaranteed_ppm(), part.unwrap_or((1, 1)));
    }

    /// The guaranteed time with which a turn may start (ns). Sessions of low priority only start whole turns, because
    /// each turn delays the preferred sessions.
    pub(crate) fn entry_ns(&self) -> u64 {
        match self.quota.priority {
            Priority::High => self.order.entry_ns(self.guaranteed_ppm()),
            Priority::Low => bucket::balance_for(self.order.full_turn_ns(), self.guaranteed_ppm()),
        }
    }

    /// Sets the length of the rounds in which the session takes part.
    pub(crate) fn set_round(&mut self, round_ns: u64) {
        if self.order.set_round(round_ns, self.quota.priority) {
            self.not_before = [0; 2];
        }
    }

    /// The guaranteed time that is left, as of the last settlement (ns); negative: owed.
    pub(crate) fn balance_ns(&self) -> i64 {
        less(self.own.balance_ns, self.untold.own_ns)
    }

    /// The time that is left below the burst limit (ns).
    fn headroom_ns(&self) -> i64 {
        self.ceiling.map_or(i64::MAX, |(_, bucket)| less(bucket.balance_ns, self.untold.all_ns))
    }

    fn burst_ns(&self, share_ppm: u32) -> u64 {
        turns::burst_ns(share_ppm, self.order.handover())
    }

    pub(crate) fn settle(&mut self, now: u64, untold: Untold) {
        let passed = now.saturating_sub(self.own.settled_at_ns);
        self.held_ns = self.held_ns.saturating_add(passed).min(untold.longest_ns);
        let untold = Untold {
            own_ns: untold.own_ns.min(self.held_ns),
            all_ns: untold.all_ns.min(self.held_ns),
            ..untold
        };
        // Unreported time will be subtracted later; until then the bucket may hold that much more.
        let guaranteed_ppm = self.guaranteed_ppm();
        let burst = self.burst_ns(guaranteed_ppm).saturating_add(untold.own_ns);
        self.own.settle(now, guaranteed_ppm, burst, false);
        let handover = self.order.handover();
        if let Some((ppm, bucket)) = &mut self.ceiling {
            let burst = turns::burst_ns(*ppm, handover).saturating_add(untold.all_ns);
            bucket.settle(now, *ppm, burst, false);
        }
        self.untold = untold;
    }

    /// Charges for time that one of the workers used, in a turn or not. Called after [`Self::settle`].
    pub(crate) fn charge(&mut self, used_ns: u64, paid: Paid, turn: bool) {
        let charge = used_ns.min(self.held_ns);
        self.held_ns -= charge;
        self.charge_more(charge, paid, turn);
    }

    /// Charges for time that was reported as unused but was used. Called after [`Self::settle`].
    pub(crate) fn charge_more(&mut self, charge: u64, paid: Paid, turn: bool) {
        self.charged.all_ns = self.charged.all_ns.saturating_add(charge);
        self.charged.recent.note(self.own.settled_at_ns, charge);
        if let Some((_, bucket)) = &mut self.ceiling {
            bucket.charge(charge);
        }
        match paid {
            Paid::Own => {
                self.own.charge(charge);
                if turn {
                    self.order.use_own(charge);
                }
            }
            Paid::Spare => {
                self.charged.spare_ns = self.charged.spare_ns.saturating_add(charge);
                // All time counts towards the guarantee of low priority, so a session that has just had spare time does
                // not interrupt preferred sessions.
                if self.quota.priority == Priority::Low {
                    self.own.spend(charge);
                }
                self.order.use_spare(charge, self.quota.weight);
            }
        }
    }

    /// Changes the quota from now on. Savings and debts remain. Called after [`Self::settle`].
    pub(crate) fn set_quota(&mut self, quota: ComputeLimit, now: u64) {
        let part = (u64::from(self.order.share_ppm()), u64::from(self.guaranteed_ppm()));
        self.quota = quota;
        self.not_before = [0; 2];
        self.take_turns_by(Some(part));
        let bucket = self.ceiling.map_or(Bucket::empty_at(now), |(_, bucket)| bucket);
        self.ceiling = quota.ceiling_ppm().map(|ppm| (ppm, bucket));
    }

    /// Removes the savings. Debts remain.
    pub(crate) fn forget_savings(&mut self) {
        let ceiling = self.ceiling.as_mut().map(|(_, bucket)| bucket);
        for bucket in ceiling.into_iter().chain([&mut self.own]) {
            bucket.balance_ns = bucket.balance_ns.min(0);
        }
    }

    /// How full the account is, relative to the most that can be saved up, in millionths.
    pub(crate) fn fullness_ppm(&self) -> u64 {
        let balance = u64::try_from(self.balance_ns()).unwrap_or(0);
        turns::ratio_ppm(balance, self.burst_ns(self.guaranteed_ppm()))
    }

    /// Whether a turn can start or, if `going_on`, a lease can be prolonged, as of the last settlement. `kept_ns` of
    /// the guaranteed time must not be used.
    pub(crate) fn can_pay(&self, paid: Paid, going_on: bool, kept_ns: u64) -> bool {
        let least = |entry: u64| if going_on { entry.min(1) } else { entry };
        let holds =
            |balance: i64, least: u64| u64::try_from(balance).is_ok_and(|balance| balance >= least);
        match paid {
            Paid::Own => {
                let balance = less(self.balance_ns(), kept_ns);
                holds(balance, least(self.entry_ns())) && self.headroom_ns() >= 0
            }
            Paid::Spare => {
                let entry = self.ceiling.map_or(0, |(ppm, _)| least(self.order.entry_ns(ppm)));
                self.quota.takes_spare() && holds(self.headroom_ns(), entry)
            }
        }
    }

    /// When [`Self::can_pay`] will hold for a new turn, if nothing is used until then.
    pub(crate) fn ready_at(&self, paid: Paid) -> Option<u64> {
        let ceiling = |least: &dyn Fn(u32) -> u64| match &self.ceiling {
            None => Some(0),
            Some((ppm, bucket)) => {
                reach(bucket, least(*ppm).saturating_add(self.untold.all_ns), *ppm)
            }
        };
        match paid {
            Paid::Own => {
                let least = self.entry_ns().saturating_add(self.untold.own_ns);
                Some(reach(&self.own, least, self.guaranteed_ppm())?.max(ceiling(&|_| 0)?))
            }
            Paid::Spare if self.quota.takes_spare() => ceiling(&|ppm| self.order.entry_ns(ppm)),
            Paid::Spare => None,
        }
    }

    /// Whether a new turn can start by now, if nothing was used since the last settlement.
    pub(crate) fn is_ready(&self, paid: Paid, now: u64) -> bool {
        self.ready_at(paid).is_some_and(|at| at <= now)
    }

    /// Like [`Self::is_ready`], using the remembered earliest start for sessions that wait for long.
    pub(crate) fn could_begin(&self, paid: Paid, now: u64) -> bool {
        self.not_before(paid) <= now && self.is_ready(paid, now)
    }

    /// Until this time [`Self::can_pay`] is known to be false for a new turn.
    pub(crate) fn not_before(&self, paid: Paid) -> u64 {
        self.not_before[paid as usize]
    }

    /// Remembers until when no turn can start. Called if none can start now.
    pub(crate) fn remember_wait(&mut self, paid: Paid) {
        self.not_before[paid as usize] = self.ready_at(paid).unwrap_or(u64::MAX);
    }

    /// How long (ns) a lease that starts now can be held by workers that use `density_ppm` of the time.
    pub(crate) fn affordable_ns(&self, paid: Paid, density_ppm: u64, kept_ns: u64) -> u64 {
        let below_ceiling =
            self.ceiling.map_or(u64::MAX, |(ppm, _)| lasts(self.headroom_ns(), ppm, density_ppm));
        match paid {
            Paid::Own => {
                let balance = less(self.balance_ns(), kept_ns);
                lasts(balance, self.guaranteed_ppm(), density_ppm).min(below_ceiling)
            }
            Paid::Spare => below_ceiling,
        }
    }
}

fn less(balance_ns: i64, untold_ns: u64) -> i64 {
    balance_ns.saturating_sub(i64::try_from(untold_ns).unwrap_or(i64::MAX))
}

/// When the bucket holds `balance_ns` if nothing is taken from it.
fn reach(bucket: &Bucket, balance_ns: u64, share_ppm: u32) -> Option<u64> {
    let wait = bucket.ready_in(balance_ns, share_ppm)?;
    Some(bucket.settled_at_ns.saturating_add(wait))
}

/// How long (ns) a balance lasts while a share fills it and use empties it.
fn lasts(balance_ns: i64, share_ppm: u32, density_ppm: u64) -> u64 {
    let Ok(balance) = u64::try_from(balance_ns) else { return 0 };
    let drain = density_ppm.min(PPM_ONE.into()).saturating_sub(share_ppm.into());
    let length = (u128::from(balance) * u128::from(PPM_ONE)).checked_div(u128::from(drain));
    length.map_or(u64::MAX, |length| u64::try_from(length).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn untold(ns: u64) -> Untold {
        Untold { own_ns: ns, all_ns: ns, longest_ns: ns }
    }

    #[test]
    fn workers_that_hold_at_once_are_charged_at_most_the_time_that_passed() {
        let mut account = Account::new(ComputeLimit::fixed(500_000), 0);
        account.settle(20 * MS, untold(20 * MS));
        account.charge(15 * MS, Paid::Own, true);
        account.charge(15 * MS, Paid::Own, true);
        assert_eq!(account.charged().all_ns, 20 * MS);
        // Two workers that use a third each are both charged, however far apart their reports are.
        account.settle(40 * MS, untold(20 * MS));
        account.charge(6 * MS, Paid::Own, true);
        account.settle(50 * MS, untold(30 * MS));
        account.charge(9 * MS, Paid::Own, true);
        assert_eq!(account.charged().all_ns, 35 * MS);
        account.settle(60 * MS, untold(10 * MS));
        account.charge(u64::MAX, Paid::Own, true);
        assert_eq!(account.charged().all_ns, 45 * MS);
        // No worker holds a lease, so there is nothing to charge for.
        account.settle(90 * MS, Untold::default());
        account.charge(10 * MS, Paid::Own, true);
        assert_eq!(account.charged().all_ns, 45 * MS);
    }

    #[test]
    fn what_is_earned_during_a_long_silence_is_not_lost() {
        let mut account = Account::new(ComputeLimit::fixed(250_000), 0);
        let long = 4_000 * MS;
        account.settle(long, untold(long));
        account.charge(long, Paid::Own, true);
        account.settle(long, Untold::default());
        assert_eq!(account.balance_ns(), -3_000_000_000);
    }

    #[test]
    fn spare_time_is_charged_to_the_ceiling_only() {
        let quota = ComputeLimit { soft_ppm: Some(500_000), ..ComputeLimit::balance(200_000, 2) };
        let mut account = Account::new(quota, 0);
        account.settle(100 * MS, untold(100 * MS));
        account.charge(30 * MS, Paid::Spare, true);
        account.settle(100 * MS, Untold::default());
        assert_eq!((account.balance_ns(), account.headroom_ns()), (20_000_000, 20_000_000));
        assert_eq!((account.charged().spare_ns, account.charged().all_ns), (30 * MS, 30 * MS));
        assert_eq!(account.order().virtual_time(Paid::Own), 0);
        account.settle(180 * MS, untold(80 * MS));
        account.charge(80 * MS, Paid::Spare, true);
        account.settle(180 * MS, Untold::default());
        assert!(!account.can_pay(Paid::Own, true, 0));
        let at = account.ready_at(Paid::Spare).unwrap();
        account.settle(at, Untold::default());
        assert!(account.can_pay(Paid::Spare, false, 0));
    }

    /// All time counts towards the guarantee of low priority, which comes in whole turns.
    #[test]
    fn low_priority_is_kept_from_starving_and_no_more() {
        let low = ComputeLimit { priority: Priority::Low, ..ComputeLimit::balance(500_000, 1) };
        let mut account = Account::new(low, 0);
        account.set_round(9 * MS);
        account.settle(12 * MS, Untold::default());
        assert_eq!(account.balance_ns(), 1_200_000, "a tenth, whatever its share");
        assert!(!account.can_pay(Paid::Own, false, 0), "for half a turn");
        account.settle(20 * MS, Untold::default());
        assert!(account.can_pay(Paid::Own, false, 0), "2 ms, a whole one");
        account.settle(30 * MS, untold(10 * MS));
        account.charge(2 * MS, Paid::Spare, true);
        account.settle(30 * MS, Untold::default());
        assert!(!account.can_pay(Paid::Own, false, 0));
        account.settle(50 * MS, untold(20 * MS));
        account.charge(18 * MS, Paid::Spare, true);
        assert_eq!(account.own.balance_ns, 0, "spare time makes no debt");
        account.settle(50 * MS, Untold::default());
        assert_eq!(account.ready_at(Paid::Own), Some(68 * MS));
    }

    #[test]
    fn a_balance_lasts_for_ever_where_less_is_used_than_earned() {
        assert_eq!(lasts(1, 500_000, 400_000), u64::MAX);
        assert_eq!(lasts(0, 500_000, 600_000), 0);
        assert_eq!(lasts(-1, 500_000, 400_000), 0);
        assert_eq!(lasts(10, 500_000, 1_000_000), 20);
        assert_eq!(lasts(i64::MAX, 0, u64::MAX), i64::MAX as u64);
    }
}

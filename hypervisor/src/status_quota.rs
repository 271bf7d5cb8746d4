//! Limits answers about the daemon's state. Such an answer may be long: it occupies memory until its caller has read
//! it, and the lock while it is made.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::identity::{Owner, Party};
use super::refused::CallRefused;

/// Most concurrent answers per party.
pub(super) const AT_ONCE: usize = 4;
/// A party's answers take at most this fraction (1/n) of the daemon's time.
const PARTS: u32 = 10;

/// Answers in progress by party: root in one container delays nobody else.
#[derive(Debug, Default)]
pub(super) struct StatusQuota(Mutex<HashMap<Party, Answers>>);

#[derive(Debug)]
struct Answers {
    under_way: usize,
    /// Earliest time of the next answer.
    next_at: Instant,
    /// How long the latest answer took to make.
    took: Duration,
}

/// The right to one answer; released on drop.
#[derive(Debug)]
pub(super) struct StatusPermit {
    quota: Arc<StatusQuota>,
    party: Party,
    /// Delay of the party's next answer that this answer causes; an estimate until it is made.
    ahead: Duration,
    /// How long the caller must wait.
    pub(super) wait: Duration,
}

impl StatusQuota {
    /// Takes a permit for an owner's process.
    pub(super) fn take(
        self: &Arc<Self>,
        owner: &Owner,
        now: Instant,
    ) -> Result<StatusPermit, CallRefused> {
        let mut all = self.answers();
        all.retain(|_, own| own.under_way > 0 || own.next_at > now);
        let fresh = Answers { under_way: 0, next_at: now, took: Duration::ZERO };
        let party = owner.party();
        let own = all.entry(party).or_insert(fresh);
        if own.under_way >= AT_ONCE {
            return Err(CallRefused::StatusNotRead { uid: owner.uid, own: own.under_way });
        }
        own.under_way += 1;
        let wait = own.next_at.saturating_duration_since(now);
        let ahead = own.took * PARTS;
        own.next_at = own.next_at.max(now) + ahead;
        Ok(StatusPermit { quota: Arc::clone(self), party, ahead, wait })
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<Party, Answers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StatusPermit {
    /// Records how long the answer took to make.
    pub(super) fn took(&mut self, took: Duration, now: Instant) {
        self.ahead = Duration::ZERO;
        if let Some(own) = self.quota.answers().get_mut(&self.party) {
            own.took = took;
            own.next_at = own.next_at.max(now + took * (PARTS - 1));
        }
    }
}

impl Drop for StatusPermit {
    fn drop(&mut self) {
        if let Some(own) = self.quota.answers().get_mut(&self.party) {
            own.under_way -= 1;
            // A caller that left without an answer delays nobody.
            own.next_at = own.next_at.checked_sub(self.ahead).unwrap_or(own.next_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Owner {
        Owner::user(uid)
    }

    #[test]
    fn who_goes_away_delays_nobody() {
        const LONG: Duration = Duration::from_millis(10);
        let (quota, now) = (Arc::new(StatusQuota::default()), Instant::now());
        let mut made = quota.take(&user(7), now).unwrap();
        made.took(LONG, now);
        let wait = quota.take(&user(7), now).unwrap().wait;
        for _ in 0..1000 {
            assert_eq!(quota.take(&user(7), now).unwrap().wait, wait);
        }
    }

    #[test]
    fn each_user_has_a_few_at_once() {
        let quota = Arc::new(StatusQuota::default());
        let now = Instant::now();
        let mut own: Vec<_> = (0..AT_ONCE).map(|_| quota.take(&user(7), now).unwrap()).collect();
        let refused = quota.take(&user(7), now).unwrap_err();
        assert_eq!(refused, CallRefused::StatusNotRead { uid: 7, own: AT_ONCE });
        drop(quota.take(&user(8), now).unwrap());
        own.pop();
        own.push(quota.take(&user(7), now).unwrap());
        drop(own);
        drop(quota.take(&user(9), now + Duration::from_secs(1)).unwrap());
        assert_eq!(quota.answers().len(), 1);
    }

    #[test]
    fn long_answers_come_seldom() {
        const LONG: Duration = Duration::from_millis(10);
        let quota = Arc::new(StatusQuota::default());
        let start = Instant::now();
        let (mut now, mut made) = (start, 0);
        while now < start + Duration::from_secs(1) {
            let mut permit = quota.take(&user(7), now).unwrap();
            now += permit.wait + LONG;
            permit.took(LONG, now);
            made += 1;
        }
        assert!((10..=11).contains(&made), "{made}");
        assert_eq!(quota.take(&user(8), now).unwrap().wait, Duration::ZERO);
    }
}

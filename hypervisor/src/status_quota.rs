//! Limits answers about the daemon's state. Such an answer may be long: it takes memory until its
//! caller has read it, and time in which nobody else is served.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::refused::CallRefused;

/// Answers for one user that are under way at once.
pub(super) const AT_ONCE: usize = 4;
/// A user's answers take one part in so many of the daemon's time.
const PARTS: u32 = 10;

/// The answers under way.
#[derive(Debug, Default)]
pub(super) struct StatusQuota(Mutex<HashMap<u32, Answers>>);

#[derive(Debug)]
struct Answers {
    under_way: usize,
    /// No answer is made before this.
    next_at: Instant,
    /// How long the last one took to make.
    took: Duration,
}

/// The right to one answer, until it is dropped.
#[derive(Debug)]
pub(super) struct StatusPermit {
    quota: Arc<StatusQuota>,
    uid: u32,
    /// How long the caller has to wait.
    pub(super) wait: Duration,
}

impl StatusQuota {
    /// Takes a permit for a user.
    pub(super) fn take(
        self: &Arc<Self>,
        uid: u32,
        now: Instant,
    ) -> Result<StatusPermit, CallRefused> {
        let mut all = self.answers();
        all.retain(|_, own| own.under_way > 0 || own.next_at > now);
        let fresh = Answers { under_way: 0, next_at: now, took: Duration::ZERO };
        let own = all.entry(uid).or_insert(fresh);
        if own.under_way >= AT_ONCE {
            return Err(CallRefused::StatusNotRead { uid, own: own.under_way });
        }
        own.under_way += 1;
        let wait = own.next_at.saturating_duration_since(now);
        own.next_at = own.next_at.max(now) + own.took * PARTS;
        Ok(StatusPermit { quota: Arc::clone(self), uid, wait })
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<u32, Answers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StatusPermit {
    /// Notes how long the answer took to make, until now.
    pub(super) fn took(&self, took: Duration, now: Instant) {
        if let Some(own) = self.quota.answers().get_mut(&self.uid) {
            own.took = took;
            own.next_at = own.next_at.max(now + took * (PARTS - 1));
        }
    }
}

impl Drop for StatusPermit {
    fn drop(&mut self) {
        if let Some(own) = self.quota.answers().get_mut(&self.uid) {
            own.under_way -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_few_at_once() {
        let quota = Arc::new(StatusQuota::default());
        let now = Instant::now();
        let mut own: Vec<_> = (0..AT_ONCE).map(|_| quota.take(7, now).unwrap()).collect();
        let refused = quota.take(7, now).unwrap_err();
        assert_eq!(refused, CallRefused::StatusNotRead { uid: 7, own: AT_ONCE });
        drop(quota.take(8, now).unwrap());
        own.pop();
        own.push(quota.take(7, now).unwrap());
        drop(own);
        drop(quota.take(9, now + Duration::from_secs(1)).unwrap());
        assert_eq!(quota.answers().len(), 1);
    }

    #[test]
    fn long_answers_come_seldom() {
        const LONG: Duration = Duration::from_millis(10);
        let quota = Arc::new(StatusQuota::default());
        let start = Instant::now();
        let (mut now, mut made) = (start, 0);
        while now < start + Duration::from_secs(1) {
            let permit = quota.take(7, now).unwrap();
            now += permit.wait + LONG;
            permit.took(LONG, now);
            made += 1;
        }
        assert!((10..=11).contains(&made), "{made}");
        assert_eq!(quota.take(8, now).unwrap().wait, Duration::ZERO);
    }
}

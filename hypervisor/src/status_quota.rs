//! Limits how many answers of the daemon's state are under way. Such an answer is long, and takes
//! memory until its caller has read it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::refused::CallRefused;

/// Answers for one user that are under way at once.
pub(super) const AT_ONCE: usize = 4;

/// The answers under way.
#[derive(Debug, Default)]
pub(super) struct StatusQuota(Mutex<HashMap<u32, usize>>);

/// The right to one answer, until it is dropped.
#[derive(Debug)]
pub(super) struct StatusPermit {
    quota: Arc<StatusQuota>,
    uid: u32,
}

impl StatusQuota {
    /// Takes a permit for a user.
    pub(super) fn take(self: &Arc<Self>, uid: u32) -> Result<StatusPermit, CallRefused> {
        let mut under_way = self.under_way();
        let own = under_way.entry(uid).or_insert(0);
        if *own >= AT_ONCE {
            return Err(CallRefused::StatusNotRead { uid, own: *own });
        }
        *own += 1;
        Ok(StatusPermit { quota: Arc::clone(self), uid })
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StatusPermit {
    fn drop(&mut self) {
        let mut under_way = self.quota.under_way();
        if let Some(own) = under_way.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                under_way.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_few_at_once() {
        let quota = Arc::new(StatusQuota::default());
        let mut own: Vec<_> = (0..AT_ONCE).map(|_| quota.take(7).unwrap()).collect();
        let refused = quota.take(7).unwrap_err();
        assert_eq!(refused, CallRefused::StatusNotRead { uid: 7, own: AT_ONCE });
        drop(quota.take(8).unwrap());
        own.pop();
        own.push(quota.take(7).unwrap());
        drop(own);
        assert!(quota.under_way().is_empty());
    }
}

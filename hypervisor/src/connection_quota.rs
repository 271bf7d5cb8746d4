//! Limits the file descriptors that each user occupies in the daemon.
//!
//! A connection takes one descriptor, and a watched process another. Without a quota one user with access to the socket
//! could take them all and lock out everybody else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use super::limits::{check_fair_part, most_of};
use super::refused::CallRefused;

/// Descriptors for all users together, even if the system allows more: each connection also takes memory.
const MOST: usize = 16_384;
/// Descriptors kept for the daemon itself and for connections about to be refused.
const RESERVE: usize = 64;
/// Shortest time between two log lines about refusals.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Counts the descriptors of each user.
#[derive(Debug)]
pub(super) struct ConnectionQuota {
    /// Without the reserve for users who hold few.
    most: usize,
    taken: Mutex<ConnectionCounts>,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    by_all: usize,
    by_user: HashMap<u32, usize>,
    /// All refusals, refusals since the latest log line about them, and the time of that line.
    refused_ever: u64,
    refused: u64,
    said: Option<Instant>,
}

/// The right to one descriptor; released on drop.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    quota: Arc<ConnectionQuota>,
    uid: u32,
}

impl ConnectionQuota {
    /// A quota of the descriptors that the system allows this process.
    pub(super) fn of_this_process() -> Arc<Self> {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        Self::new(most_of((files - RESERVE.min(files / 2)).min(MOST)))
    }

    fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    pub(super) fn take(self: &Arc<Self>, uid: u32) -> Result<ConnectionPermit, CallRefused> {
        let mut taken = self.taken();
        let own = taken.by_user.get(&uid).copied().unwrap_or(0);
        check_fair_part("connections and processes", uid, (own, taken.by_all), self.most)
            .inspect_err(|_| taken.refuse(uid, own))?;
        Ok(self.given(&mut taken, uid))
    }

    /// Takes a permit in place of another one of the same user; cannot fail.
    pub(super) fn exchange(self: &Arc<Self>, uid: u32) -> ConnectionPermit {
        self.given(&mut self.taken(), uid)
    }

    /// Refusals since the daemon's start.
    pub(super) fn refusals(&self) -> u64 {
        self.taken().refused_ever
    }

    fn given(self: &Arc<Self>, taken: &mut ConnectionCounts, uid: u32) -> ConnectionPermit {
        taken.by_all += 1;
        *taken.by_user.entry(uid).or_insert(0) += 1;
        ConnectionPermit { quota: Arc::clone(self), uid }
    }

    fn taken(&self) -> MutexGuard<'_, ConnectionCounts> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionCounts {
    fn refuse(&mut self, uid: u32, own: usize) {
        self.refused_ever += 1;
        self.refused += 1;
        if self.said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
            tracing::warn!(
                uid,
                own,
                all = self.by_all,
                refused = self.refused,
                "refused connections: the user has too many"
            );
            self.refused = 0;
            self.said = Some(Instant::now());
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.quota.taken();
        taken.by_all -= 1;
        if let Some(own) = taken.by_user.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                taken.by_user.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(quota: &Arc<ConnectionQuota>, uid: u32) -> Vec<ConnectionPermit> {
        std::iter::from_fn(|| quota.take(uid).ok()).collect()
    }

    #[test]
    fn a_user_leaves_as_much_as_it_takes() {
        let quota = ConnectionQuota::new(100);
        let first = all(&quota, 1000);
        assert_eq!(first.len(), 50);
        let second = all(&quota, 1001);
        assert_eq!(second.len(), 25);
        assert_eq!(all(&quota, 1002).len(), 13);
        // A returned permit can be taken by a user who holds less than is left.
        drop(first);
        assert_eq!(all(&quota, 1001).len(), 25);
        drop(second);
        assert_eq!(quota.taken().by_all, 0);
        assert!(quota.taken().by_user.is_empty());
        assert_eq!(all(&quota, 1000).len(), 50);
    }

    #[test]
    fn several_users_that_take_all_they_can_leave_room_for_the_next() {
        let quota = ConnectionQuota::new(1000);
        let crowds: Vec<_> = (0..9).map(|uid| all(&quota, uid)).collect();
        assert!(crowds.iter().all(|crowd| !crowd.is_empty()));
    }

    #[test]
    fn a_refusal_names_the_user_and_how_many_it_has() {
        let quota = ConnectionQuota::new(10);
        let _held = all(&quota, 1000);
        let words = quota.take(1000).unwrap_err().to_string();
        assert!(words.contains("user 1000") && words.contains('5'), "{words}");
    }
}

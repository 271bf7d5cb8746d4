//! What the sessions' pages say of their memory, looked at now and then by a thread of its own.
//!
//! The pages are the account by which the limiter decides, and the only one that knows kinds. They belong
//! to the sessions' users: who replaces the limiter can write there what it likes. So these figures are
//! for display and for bills among those who trust each other; what NVML shows of a process is beyond its
//! reach.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ::limits::GpuId;
use session::directory::{self, Found};
use session::layout::MemoryKind;
use session::process::may_be_of;
use session::{ProcessSummary, SessionSummary, Summary};

use crate::limits::check_fair_part;

/// How often the pages are looked at.
const EVERY: Duration = Duration::from_secs(5);
/// How many pages are looked at. A user has no more of them than are left for all others.
const PAGES: usize = 1024;

/// Bytes, by kind.
pub(crate) type ByKind = [u64; MemoryKind::ALL.len()];

/// A session on a device, as its page names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageKey {
    pub(crate) uid: u32,
    pub(crate) session: String,
    pub(crate) uuid: GpuId,
}

/// Its memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MemoryFigures {
    /// `None`: there is no limit.
    pub(crate) limit: Option<u64>,
    pub(crate) bytes: ByKind,
    /// Bytes, each for as long as it was in use.
    pub(crate) byte_seconds: f64,
    /// Allocations that were refused because they did not fit.
    pub(crate) refusals: u64,
    /// By process id, as the node knows it.
    pub(crate) processes: BTreeMap<u32, ByKind>,
}

impl MemoryFigures {
    fn total(&self) -> u64 {
        self.bytes.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    fn add(&mut self, summary: &Summary, uid: u32) {
        let limit = summary.limits.memory.map(|memory| memory.limit);
        self.limit = self.limit.max(limit);
        let refusals = summary.refused.map_or(0, |refused| refused.count);
        self.refusals = self.refusals.saturating_add(refusals);
        for process in &summary.processes {
            let bytes = MemoryKind::ALL.map(|kind| process.bytes(kind));
            add(&mut self.bytes, &bytes);
            if let Some(pid) = pid_of(process, uid) {
                add(self.processes.entry(pid).or_default(), &bytes);
            }
        }
    }
}

fn add(sum: &mut ByKind, more: &ByKind) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
}

/// What a page says of ids may be a lie.
fn pid_of(process: &ProcessSummary, uid: u32) -> Option<u32> {
    [process.host_pid, Some(process.pid)].into_iter().flatten().find(|&pid| may_be_of(pid, uid))
}

/// What the pages said when they were last looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) sessions: BTreeMap<PageKey, MemoryFigures>,
    /// Sessions that were too many.
    pub(crate) left_out: usize,
    pub(crate) at: Option<Instant>,
}

impl Sample {
    /// Goes on from what was seen before: time passed with a mean of what was in use before and after.
    fn after(mut self, before: &Self, now: Instant) -> Self {
        let passed = before.at.map(|at| now.saturating_duration_since(at).as_secs_f64());
        for (key, present) in &mut self.sessions {
            let former = before.sessions.get(key);
            if let (Some(passed), Some(former)) = (passed, former) {
                let mean = (former.total() as f64 + present.total() as f64) / 2.0;
                present.byte_seconds = former.byte_seconds + mean * passed;
            }
        }
        self.at = Some(now);
        self
    }
}

/// The last sample.
#[derive(Debug, Default)]
pub(crate) struct PageMemory(Mutex<Sample>);

impl PageMemory {
    pub(crate) fn last(&self) -> Sample {
        self.sample().clone()
    }

    fn sample(&self) -> MutexGuard<'_, Sample> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) {
        match directory::list() {
            Ok(listing) => {
                let seen = look_at(&listing.sessions);
                let mut sample = self.sample();
                *sample = seen.after(&sample, Instant::now());
            }
            Err(error) => tracing::debug!(%error, "the sessions' pages can not be listed"),
        }
    }
}

fn look_at(sessions: &[Found]) -> Sample {
    let mut sample = Sample::default();
    let mut of_user: BTreeMap<u32, usize> = BTreeMap::new();
    let mut all = 0;
    for found in sessions {
        let own = of_user.entry(found.uid).or_default();
        let pages = found.pages.len();
        if check_fair_part("pages", found.uid, (*own + pages, all + pages), PAGES).is_err() {
            sample.left_out += 1;
            continue;
        }
        let summary = SessionSummary::of(found);
        if !(found.owned || summary.is_in_use()) {
            continue;
        }
        (*own, all) = (*own + pages, all + pages);
        // The daemon knows a session by the last part of its name, as its processes tell it.
        let name = found.name.rsplit('/').next().unwrap_or(&found.name);
        for (uuid, device) in &summary.devices {
            let (session, uuid) = (name.to_owned(), *uuid);
            let key = PageKey { uid: found.uid, session, uuid };
            sample.sessions.entry(key).or_default().add(device, found.uid);
        }
    }
    sample
}

/// The thread that looks at the pages, until this is dropped.
#[derive(Debug)]
pub(crate) struct PageWatch {
    _over: Sender<()>,
}

impl PageWatch {
    pub(crate) fn start(memory: Arc<PageMemory>) -> io::Result<Self> {
        let (over, end): (Sender<()>, Receiver<()>) = channel();
        let watching = move || {
            loop {
                memory.look();
                if end.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        thread::Builder::new().name("pages".to_owned()).spawn(watching)?;
        Ok(Self { _over: over })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: GpuId = GpuId::from_bytes([7; 16]);

    fn sample(bytes: u64) -> Sample {
        let key = PageKey { uid: 1, session: "a".to_owned(), uuid: UUID };
        let figures =
            MemoryFigures { bytes: [bytes, 0, 0, 0, 0, 0, 0, 0], ..MemoryFigures::default() };
        Sample { sessions: BTreeMap::from([(key, figures)]), ..Sample::default() }
    }

    #[test]
    fn bytes_add_up_over_time_until_the_session_ends() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let billed = |sample: &Sample| {
            sample.sessions.values().map(|figures| figures.byte_seconds).collect::<Vec<_>>()
        };
        let first = sample(100).after(&Sample::default(), at(0));
        let second = sample(300).after(&first, at(5));
        assert_eq!((billed(&first), billed(&second)), (vec![0.0], vec![1_000.0]));
        let third = sample(300).after(&second, at(7));
        assert_eq!(billed(&third), [1_600.0]);
        let ended = Sample::default().after(&third, at(8));
        assert!(billed(&ended).is_empty());
        // Another session of that name begins at nothing.
        assert_eq!(billed(&sample(300).after(&ended, at(9))), [0.0]);
    }

    #[test]
    fn what_a_page_says_does_not_overflow() {
        let mut sum = [u64::MAX; 8];
        add(&mut sum, &[1; 8]);
        assert_eq!(sum, [u64::MAX; 8]);
    }
}

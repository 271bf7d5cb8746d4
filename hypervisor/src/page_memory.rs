//! Samples memory and limiter figures from the sessions' pages, in a thread of its own, for the API and metrics.
//!
//! The pages hold the account by which the limiter decides, and only they distinguish kinds of memory. They belong to
//! the sessions' users, and a user who replaces the limiter can write anything there. So these figures are for display,
//! and for bills among users who trust each other; users cannot falsify NVML's figures.
//!
//! The pages of a session in a container are found through its processes ([`crate::elsewhere`]). The container's file
//! systems can block a reader forever, so each such reading is an [errand](Errands) of another thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ::limits::GpuId;
use session::directory::{self, Found};
use session::kubelet_logs::{self, PodContainer};
use session::layout::MemoryKind;
use session::ledger::RefusedFor;
use session::process::{ProcessIdentity, may_be_of};
use session::{ProcessSummary, SessionSummary, Summary};

use crate::core::Core;
use crate::elsewhere;
use crate::identity::{ContainerId, Owner};
use crate::limits::check_fair_part;

/// Time between two samples.
const EVERY: Duration = Duration::from_secs(5);
/// Most pages in a sample. A user's pages may not exceed those left for all others.
const PAGES: usize = 1024;
/// Longest wait for the pages of a container, and most readings that may still be running after that.
const ERRAND: Duration = Duration::from_secs(1);
const MOST_ERRANDS: usize = 8;

/// Longest given name of a session, in characters; longer ones are ignored.
const LONGEST: usize = 128;

/// Bytes by kind of memory.
pub(crate) type ByKind = [u64; MemoryKind::ALL.len()];

/// Failed allocations by reason.
pub(crate) type ByReason = [u64; RefusedFor::ALL.len()];

/// A session on a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageKey {
    pub(crate) owner: Owner,
    pub(crate) session: String,
    pub(crate) uuid: GpuId,
}

/// Memory figures of a session on a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MemoryFigures {
    /// Bytes; `None`: no limit.
    pub(crate) limit: Option<u64>,
    /// The part of the limit that may be on the device, if less, in bytes.
    pub(crate) real: Option<u64>,
    pub(crate) bytes: ByKind,
    /// Highest use, in bytes.
    pub(crate) peak: u64,
    /// Integral of use over time.
    pub(crate) byte_seconds: f64,
    pub(crate) refused_for: ByReason,
    /// CPU time of the limiter's own threads.
    pub(crate) limiter_cpu_ns: u64,
    /// By pid in the daemon's pid namespace.
    pub(crate) processes: BTreeMap<u32, ByKind>,
}

impl MemoryFigures {
    pub(crate) fn total(&self) -> u64 {
        self.bytes.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    fn add(&mut self, summary: &Summary, uid: u32) {
        let memory = summary.limits.memory;
        self.limit = self.limit.max(memory.map(|memory| memory.limit));
        let real = memory.map(|memory| memory.on_device());
        self.real = self.real.max(real.filter(|&real| Some(real) < self.limit));
        self.peak = self.peak.max(summary.peak_bytes);
        add(&mut self.refused_for, &summary.refused_for);
        self.limiter_cpu_ns = self.limiter_cpu_ns.saturating_add(summary.limiter_cpu_ns);
        for process in &summary.processes {
            let bytes = MemoryKind::ALL.map(|kind| process.bytes(kind));
            add(&mut self.bytes, &bytes);
            if let Some(pid) = pid_of(process, uid) {
                add(self.processes.entry(pid).or_default(), &bytes);
            }
        }
    }
}

fn add<const N: usize>(sum: &mut [u64; N], more: &[u64; N]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
}

/// The page's pids are not trusted: only one that belongs to the user counts.
fn pid_of(process: &ProcessSummary, uid: u32) -> Option<u32> {
    [process.host_pid, Some(process.pid)].into_iter().flatten().find(|&pid| may_be_of(pid, uid))
}

/// The figures of the latest reading.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) sessions: BTreeMap<PageKey, MemoryFigures>,
    /// Sessions omitted because of the bound.
    pub(crate) left_out: usize,
    pub(crate) at: Option<Instant>,
    /// Names of pods' containers.
    pub(crate) names: BTreeMap<ContainerId, PodContainer>,
    /// Given names of sessions, by directory name.
    pub(crate) called: BTreeMap<Owner, BTreeMap<String, String>>,
}

impl Sample {
    /// The name given to a session by its user, if any.
    pub(crate) fn called(&self, owner: &Owner, session: &str) -> Option<&str> {
        self.called.get(owner)?.get(session).map(String::as_str)
    }

    /// The figures of one session, by device.
    pub(crate) fn of<'a>(
        &'a self,
        owner: &Owner,
        session: &str,
    ) -> impl Iterator<Item = (GpuId, &'a MemoryFigures)> + use<'a> {
        let key = |byte| PageKey {
            owner: *owner,
            session: session.to_owned(),
            uuid: GpuId::from_bytes([byte; 16]),
        };
        let pages = self.sessions.range(key(0)..=key(u8::MAX));
        pages.map(|(key, figures)| (key.uuid, figures))
    }

    /// Continues the integrals of `before`, with the mean of both samples' use.
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

/// The latest sample.
#[derive(Debug, Default)]
pub(crate) struct PageMemory(Mutex<Sample>);

impl PageMemory {
    pub(crate) fn last(&self) -> Sample {
        self.sample().clone()
    }

    fn sample(&self) -> MutexGuard<'_, Sample> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, core: &Core, errands: &mut Errands) {
        let mut seen = Looked::default();
        match directory::list() {
            Ok(listing) => seen.look_here(&listing.sessions, core.own()),
            Err(error) => tracing::debug!(%error, "cannot list the sessions' pages"),
        }
        let registered = core.registered();
        seen.sample.names = names(&registered);
        for session in registered {
            seen.look_elsewhere(session, errands);
        }
        let mut sample = self.sample();
        *sample = seen.sample.after(&sample, Instant::now());
    }
}

/// The kubelet's names of these sessions' containers.
fn names(sessions: &[Registered]) -> BTreeMap<ContainerId, PodContainer> {
    let ids: BTreeSet<ContainerId> =
        sessions.iter().filter_map(|session| Some(session.owner.container?.id)).collect();
    if ids.is_empty() {
        return BTreeMap::new();
    }
    let mut all = kubelet_logs::all(&Path::new("/").join(kubelet_logs::FOLDER));
    ids.into_iter().filter_map(|id| Some((id, all.remove(&id.to_string())?))).collect()
}

/// A session with processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(crate) owner: Owner,
    pub(crate) name: String,
    pub(crate) processes: Vec<ProcessIdentity>,
}

/// Figures read from one session's pages.
struct Seen {
    pages: usize,
    summary: SessionSummary,
    called: Option<String>,
}

impl Seen {
    fn of(found: &Found) -> Self {
        let called = found.settings().and_then(|settings| settings.name);
        let called = called.filter(|called| is_tellable(called));
        Self { pages: found.pages.len(), summary: SessionSummary::of(found), called }
    }
}

/// Whether a given name may be shown. Its user can write anything there.
fn is_tellable(called: &str) -> bool {
    let length = called.chars().count();
    (1..=LONGEST).contains(&length) && !called.chars().any(char::is_control)
}

/// A sample in progress.
#[derive(Default)]
struct Looked {
    sample: Sample,
    here: BTreeSet<(Owner, String)>,
    of_user: BTreeMap<u32, usize>,
    all: usize,
}

impl Looked {
    /// Whether more pages of a user may be read.
    fn fits(&mut self, uid: u32, pages: usize) -> bool {
        let own = self.of_user.get(&uid).copied().unwrap_or(0);
        let fits = check_fair_part("pages", uid, (own + pages, self.all + pages), PAGES).is_ok();
        self.sample.left_out += usize::from(!fits);
        fits
    }

    fn add(&mut self, owner: Owner, name: &str, seen: Seen) {
        let Seen { pages, summary, called } = seen;
        *self.of_user.entry(owner.uid).or_default() += pages;
        self.all += pages;
        if let Some(called) = called {
            self.sample.called.entry(owner).or_default().insert(name.to_owned(), called);
        }
        for (uuid, device) in &summary.devices {
            let (session, uuid) = (name.to_owned(), *uuid);
            let key = PageKey { owner, session, uuid };
            self.sample.sessions.entry(key).or_default().add(device, owner.uid);
        }
    }

    /// Reads the sessions whose pages are where the daemon's own would be.
    fn look_here(&mut self, sessions: &[Found], daemon: &Owner) {
        for found in sessions {
            if !self.fits(found.uid, found.pages.len()) {
                continue;
            }
            let seen = Seen::of(found);
            if !(found.owned || seen.summary.is_in_use()) {
                continue;
            }
            // The daemon knows a session by the last part of its directory's name, which its processes report.
            let name = found.name.rsplit('/').next().unwrap_or(&found.name);
            let owner = Owner { uid: found.uid, ..*daemon };
            self.here.insert((owner, name.to_owned()));
            self.add(owner, name, seen);
        }
    }

    /// Reads a session's pages through its processes, if their file systems differ from the daemon's.
    fn look_elsewhere(&mut self, session: Registered, errands: &mut Errands) {
        let Registered { owner, name, processes } = session;
        let key = (owner, name.clone());
        if self.here.contains(&key) || !processes.iter().any(elsewhere::is_elsewhere) {
            return;
        }
        let look = move || {
            let (found, process) = elsewhere::find(owner.uid, &name, &processes).ok()?;
            let seen = Seen::of(&found);
            // The pid may have been reused, in another container.
            process.is_running().then_some(seen)
        };
        let (name, seen) = (key.1.clone(), errands.run(key, look));
        if let Some(seen) = seen
            && self.fits(owner.uid, seen.pages)
        {
            self.add(owner, &name, seen);
        }
    }
}

/// Reads containers' pages, each in a thread of its own. A reading that takes too long is abandoned, and its session is
/// skipped until that thread returns.
struct Errands<T = Seen> {
    away: BTreeMap<(Owner, String), Receiver<Option<T>>>,
    patience: Duration,
}

impl<T: Send + 'static> Errands<T> {
    const fn new(patience: Duration) -> Self {
        Self { away: BTreeMap::new(), patience }
    }

    fn run(
        &mut self,
        what: (Owner, String),
        look: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        self.away
            .retain(|_, back| back.try_recv().is_err_and(|error| error == TryRecvError::Empty));
        if self.away.len() >= MOST_ERRANDS || self.away.contains_key(&what) {
            return None;
        }
        let (tell, back) = channel();
        let errand = move || _ = tell.send(look());
        thread::Builder::new().name("pages-of-one".to_owned()).spawn(errand).ok()?;
        match back.recv_timeout(self.patience) {
            Ok(seen) => seen,
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(session = what.1, "reading the session's pages takes too long");
                self.away.insert(what, back);
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

/// The sampling thread; ends on drop.
#[derive(Debug)]
pub(crate) struct PageWatch {
    _over: Sender<()>,
}

impl PageWatch {
    pub(crate) fn start(core: &Arc<Core>) -> io::Result<Self> {
        let (over, end): (Sender<()>, Receiver<()>) = channel();
        let core = Arc::clone(core);
        let watching = move || {
            let mut errands = Errands::new(ERRAND);
            loop {
                core.page_memory().look(&core, &mut errands);
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
        let key = PageKey { owner: Owner::user(1), session: "a".to_owned(), uuid: UUID };
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
        // Another session with the same name starts at zero.
        assert_eq!(billed(&sample(300).after(&ended, at(9))), [0.0]);
    }

    #[test]
    fn what_a_page_says_does_not_overflow() {
        let mut sum = [u64::MAX; 8];
        add(&mut sum, &[1; 8]);
        assert_eq!(sum, [u64::MAX; 8]);
    }

    #[test]
    fn a_session_has_its_own_pages_only() {
        let key = |uid, session: &str, byte| PageKey {
            owner: Owner::user(uid),
            session: session.to_owned(),
            uuid: GpuId::from_bytes([byte; 16]),
        };
        let keys =
            [key(1, "a", 3), key(1, "a", 0xff), key(1, "aa", 1), key(1, "b", 1), key(2, "a", 1)];
        let figures = |key: PageKey| (key, MemoryFigures::default());
        let sample = Sample { sessions: keys.map(figures).into(), ..Sample::default() };
        let of = |uid, session| sample.of(&Owner::user(uid), session).count();
        assert_eq!([of(1, "a"), of(1, "aa"), of(2, "a"), of(2, "b"), of(3, "a")], [2, 1, 1, 0, 0]);
    }

    #[test]
    fn what_a_session_is_called_is_told_where_it_is_a_name() {
        for called in ["train", "my train/2", &"ä".repeat(LONGEST)] {
            assert!(is_tellable(called), "{called}");
        }
        for called in ["", "a\nb", "a\u{1b}[2Jb", &"a".repeat(LONGEST + 1)] {
            assert!(!is_tellable(called), "{called:?}");
        }
        let names = BTreeMap::from([("4711-1".to_owned(), "train".to_owned())]);
        let called = BTreeMap::from([(Owner::user(1), names)]);
        let sample = Sample { called, ..Sample::default() };
        let of = |uid, session| sample.called(&Owner::user(uid), session);
        assert_eq!((of(1, "4711-1"), of(1, "4711"), of(2, "4711-1")), (Some("train"), None, None));
    }

    #[test]
    fn an_errand_that_does_not_come_back_holds_up_nobody() {
        let mut errands = Errands::new(Duration::from_millis(20));
        let key = |number: usize| (Owner::user(1), number.to_string());
        let mut holds = Vec::new();
        for number in 0..MOST_ERRANDS {
            let (hold, held) = channel::<()>();
            holds.push(hold);
            let stuck = move || {
                let _ = held.recv();
                Some(number)
            };
            assert_eq!(errands.run(key(number), stuck), None);
            // Skipped while the thread is away.
            assert_eq!(errands.run(key(number), move || Some(number)), None);
        }
        assert_eq!(errands.run(key(99), || Some(99)), None, "too many are away");
        holds.remove(0);
        let start = Instant::now();
        while errands.run(key(99), || Some(99)) != Some(99) {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        assert_eq!(errands.away.len(), MOST_ERRANDS - 1);
    }
}

//! The folder of allocations: one folder for each, by its key, which its container gets to see.
//!
//! `Allocate` makes it anew, so a container never sees what an earlier one with the same ids had. Its limits are
//! written when the kubelet has told whose it is, and it is removed when that container has ended.

mod granted;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dialects::{Resource, Share};
use limits::{GpuId, Limits, Policy, Priority};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use session::Page;
use session::allocation;
use session::settings::{FILE as SETTINGS, OwnerSettings};
use session::taken::{Changed, Took, wait_until_taken};

pub(crate) use self::granted::Grantor;
use crate::NodeError;
use crate::amounts::Part;
use crate::hidden::{Hidden, InUse, Taken, hidden};
use crate::identity::{Containers, Holder};
use crate::image_preloads;
use crate::injection;
use crate::pool::{Allocation, AllocationKey, Pool, UnitId};
use tokio::sync::{Notify, watch};

const LOCK: &str = ".lock";
/// What an allocation is, for the node's other parts.
const FACTS: &str = "allocation.json";
/// The folder of the session's pages.
const SESSION: &str = "session";
/// Says that the kubelet has begun to start a container with it, so that all of its resources are allocated.
const STARTED: &str = "started";
/// What is promised to its container, for the next run of the node's part.
const SHARES: &str = "shares.json";
/// The annotation by which its limits were last changed, for the next run.
const FOLLOWED: &str = "followed";
/// How long others are waited for who change the same limits. A container's own processes can make it long.
const LIMITS_WITHIN: Duration = Duration::from_millis(200);
/// How long a container's processes have to say that they go by changed limits.
const TAKEN_WITHIN: Duration = Duration::from_millis(500);
/// How long after its container was listed no more an allocation is removed.
const ENDED: Duration = Duration::from_secs(1);
/// The same for one whose container was never listed: the kubelet lists it as soon as all its resources are there, but
/// for an init container, which it never lists.
const NEVER_LISTED: Duration = Duration::from_secs(10);
/// For how long after `Allocate` a scheduler, or after its start a container's first process, may be waiting.
const URGENT: Duration = Duration::from_secs(15);

/// The folder.
#[derive(Debug)]
pub(crate) struct Allocations {
    folder: PathBuf,
    /// From which containers load the limiter, unless they were allocated by another version.
    library: PathBuf,
    drafts: AtomicU64,
    table: Mutex<BTreeMap<AllocationKey, Entry>>,
    /// Ids of cores and memory that the kubelet has given out.
    in_use: Mutex<InUse>,
    /// Counts changes of both.
    changes: watch::Sender<u64>,
    /// Told when the kubelet gives something out.
    given: Notify,
}

/// An allocation, as far as it is known.
#[derive(Clone, Debug)]
struct Entry {
    /// By whose name.
    resource: String,
    ids: BTreeSet<String>,
    gpus: Vec<GpuId>,
    /// The directory from which its container loads the limiter. `None`: only the kubelet knows.
    library: Option<PathBuf>,
    /// What it has, when that is known.
    shares: Vec<(GpuId, Share)>,
    /// What is promised because of it.
    promised: Vec<(GpuId, Share)>,
    /// Whether its container is an init container, which kubelets do not list.
    is_init: bool,
    /// When it was allocated, or found by this run.
    made: Instant,
    /// When a container with it was last about to start.
    started: Option<Instant>,
    /// Whose limits are written.
    holder: Option<Holder>,
    /// The UID of its pod. `None`: not known, as of what an earlier run left.
    pod: Option<String>,
    /// The annotation by which its limits were last changed, or were to be.
    followed: Option<String>,
    /// Whether its ids have been listed.
    listed: bool,
    /// Since when they are not.
    missing: Option<Instant>,
}

/// While this is there nobody else uses the folder.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// What stands in an allocation's folder.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Facts {
    version: u32,
    resource: String,
    ids: BTreeSet<String>,
    gpus: Vec<GpuId>,
    /// Earlier versions did not write it.
    #[serde(default)]
    library: Option<PathBuf>,
}

/// What holds for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) holder: Holder,
    /// The UID of its pod, where it is known.
    pub(crate) pod: Option<String>,
    pub(crate) parts: Vec<Part>,
    /// What others cannot have because of it. Of an init container: what it has beyond those that have its GPUs later.
    pub(crate) promised: Vec<(GpuId, Share)>,
    pub(crate) is_init: bool,
    /// How a share of time is meant.
    pub(crate) policy: Policy,
    /// Where the container sees the daemon's socket.
    pub(crate) daemon: PathBuf,
}

/// Why an allocation is not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocateError {
    /// The pool is one, and kubelets count each resource by itself.
    #[error("{id} is taken by the name {resource}: the kubelet has not heard of it yet")]
    Taken { id: String, resource: String },
    #[error("the allocation's folder: {0}")]
    Folder(#[from] io::Error),
}

/// Why limits are not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// Others have it, by these names or others.
    #[error("{what} of {gpu} are asked for: {asked}; {left} of {total} are left")]
    NoRoom { what: &'static str, gpu: GpuId, asked: u64, left: u64, total: u64 },
    /// It has ended.
    #[error("the container {0} has ended")]
    Gone(Box<Holder>),
    #[error("the container's page: {0}")]
    Page(#[from] session::PageError),
    #[error("the container's limits: {0}")]
    Settings(#[from] session::settings::SettingsError),
    #[error("the allocation's folder: {0}")]
    Folder(#[from] io::Error),
}

/// An allocation that waits for its limits.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) key: AllocationKey,
    pub(crate) resource: String,
    pub(crate) ids: BTreeSet<String>,
    pub(crate) gpus: Vec<GpuId>,
    /// Whether a container with it has begun to start.
    pub(crate) starts: bool,
}

/// An allocation whose limits are written.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) key: AllocationKey,
    pub(crate) holder: Holder,
    pub(crate) pod: Option<String>,
    pub(crate) gpus: Vec<GpuId>,
    pub(crate) shares: Vec<(GpuId, Share)>,
    pub(crate) promised: Vec<(GpuId, Share)>,
    pub(crate) followed: Option<String>,
}

impl Allocations {
    /// Takes the folder, with what an earlier run left there.
    pub(crate) fn take(folder: &Path, library: &Path) -> Result<(Self, Lock), NodeError> {
        let fault = |source| NodeError::Allocations { folder: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(fault)?;
        // Pages in it may be written by whoever gets to them. Containers do by their mounts.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(fault)?;
        let mut options = OpenOptions::new();
        let lock = options.write(true).create(true).truncate(false).mode(0o600);
        let lock = lock.open(folder.join(LOCK)).map_err(fault)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let table = found_in(folder).map_err(fault)?;
                let (drafts, table) = (AtomicU64::new(0), Mutex::new(table));
                let (in_use, changes) = (Mutex::default(), watch::Sender::new(0));
                let (folder, library) = (folder.to_owned(), library.to_owned());
                let given = Notify::new();
                let allocations = Self { folder, library, drafts, table, in_use, changes, given };
                Ok((allocations, Lock { _file: lock }))
            }
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
                Err(NodeError::AlreadyRuns { folder: folder.to_owned() })
            }
            Err(error) => Err(fault(error.into())),
        }
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<AllocationKey, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Told whenever something is taken or given back.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits until the kubelet gives something out, if it has not since this was last waited for.
    pub(crate) async fn given(&self) {
        self.given.notified().await;
    }

    fn has_changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// What each resource cannot give now.
    pub(crate) fn hidden(&self, pool: &Pool, resources: &[Resource]) -> Hidden {
        let taken: Vec<Taken> = self.table().values().map(Entry::taken).collect();
        let in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        hidden(pool, resources, &taken, &in_use)
    }

    /// The folder of an allocation.
    pub(crate) fn of(&self, key: &AllocationKey) -> PathBuf {
        self.folder.join(key.as_str())
    }

    /// Where its pages are.
    pub(crate) fn session_of(&self, key: &AllocationKey) -> PathBuf {
        self.of(key).join(SESSION)
    }

    /// A path that nobody else uses.
    fn draft(&self) -> PathBuf {
        self.folder.join(format!(".draft-{}", self.drafts.fetch_add(1, Ordering::Relaxed)))
    }

    /// Writes the list of libraries that containers preload.
    pub(crate) fn write_preload(&self) -> io::Result<PathBuf> {
        let (draft, path) = (self.draft(), image_preloads::of(&self.folder));
        fs::write(&draft, injection::preload_text())?;
        for_all_users(&draft, 0o644)?;
        fs::rename(draft, &path)?;
        Ok(path)
    }

    /// A container gets it: the folder is made anew.
    pub(crate) fn allocate(
        &self,
        resource: &Resource,
        allocation: &Allocation,
    ) -> Result<(), AllocateError> {
        let mut table = self.table();
        for entry in table.values().filter(|entry| entry.resource != resource.name) {
            let ids = allocation.ids.iter().map(ToString::to_string);
            if let Some(id) = ids.into_iter().find(|id| entry.ids.contains(id)) {
                return Err(AllocateError::Taken { id, resource: entry.resource.clone() });
            }
        }
        let entry = Entry::new(resource, allocation, Some(self.library.clone()));
        self.make(&allocation.key, &Facts::of(&entry))?;
        table.insert(allocation.key.clone(), entry);
        drop(table);
        self.has_changed();
        self.given.notify_one();
        Ok(())
    }

    /// A container with it is about to start. The folder is made again if it has gone: after a restart of the node the
    /// kubelet starts containers anew by what it remembers, and calls `Allocate` no more. Returns whose limits are
    /// written.
    pub(crate) fn start(
        &self,
        resource: &Resource,
        allocation: &Allocation,
    ) -> io::Result<Option<Holder>> {
        let mut table = self.table();
        if !table.contains_key(&allocation.key) || !self.session_of(&allocation.key).is_dir() {
            // The kubelet mounts what it was told by `Allocate`, perhaps by another version.
            let entry = Entry::new(resource, allocation, None);
            self.make(&allocation.key, &Facts::of(&entry))?;
            table.insert(allocation.key.clone(), entry);
        }
        let new = || Entry::new(resource, allocation, None);
        let entry = table.entry(allocation.key.clone()).or_insert_with(new);
        File::create(self.of(&allocation.key).join(STARTED))?;
        (entry.started, entry.missing) = (Some(Instant::now()), None);
        Ok(entry.holder.clone())
    }

    /// Another container of its pod starts with it than the one whose limits are written: the folder is made anew.
    pub(crate) fn vacate(&self, waiting: &Waiting) -> io::Result<()> {
        let mut table = self.table();
        let Some(entry) = table.get_mut(&waiting.key) else { return Ok(()) };
        (entry.holder, entry.followed) = (None, None);
        self.make(&waiting.key, &Facts::of(entry))?;
        File::create(self.of(&waiting.key).join(STARTED)).map(drop)
    }

    /// Removes what these init containers had, which have ended, but for one that is another container's by now.
    pub(crate) fn release(&self, ended: &[Holder], but: &AllocationKey) -> io::Result<()> {
        let is_theirs = |(key, entry): &(&AllocationKey, &Entry)| {
            *key != but
                && !entry.is_granted()
                && entry.holder.as_ref().is_some_and(|holder| ended.contains(holder))
        };
        self.remove_those(is_theirs)
    }

    /// Removes the allocations of which this holds, with their folders.
    fn remove_those(&self, is_one: impl Fn(&(&AllocationKey, &Entry)) -> bool) -> io::Result<()> {
        let mut table = self.table();
        let keys: Vec<_> = table.iter().filter(is_one).map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.remove(&self.of(key))?;
            table.remove(key);
        }
        drop(table);
        if !keys.is_empty() {
            self.has_changed();
        }
        Ok(())
    }

    /// Makes the folder, in full, and puts it in the place of an older one. Whoever has that one mounted keeps it.
    fn make(&self, key: &AllocationKey, facts: &Facts) -> io::Result<()> {
        let (draft, folder) = (self.draft(), self.of(key));
        // What an earlier run left.
        _ = fs::remove_dir_all(&draft);
        fs::create_dir(&draft)?;
        for_all_users(&draft, 0o755)?;
        let mut file = File::create(draft.join(FACTS))?;
        serde_json::to_writer(&mut file, facts)?;
        file.write_all(b"\n")?;
        for_all_users(&draft.join(FACTS), 0o644)?;
        // Whoever had it mounted before a restart of the node needs it, however the agent runs by now.
        let list = image_preloads::of(&draft);
        fs::write(&list, injection::preload_text())?;
        for_all_users(&list, 0o644)?;
        allocation::make_session(&draft.join(SESSION))?;
        self.remove(&folder)?;
        fs::rename(draft, folder)
    }

    /// Removes a folder: it goes in one step, and then what is in it.
    fn remove(&self, folder: &Path) -> io::Result<()> {
        let aside = self.draft();
        match fs::rename(folder, &aside) {
            Ok(()) => fs::remove_dir_all(aside),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Their names.
    pub(crate) fn keys(&self) -> Vec<AllocationKey> {
        self.table().keys().cloned().collect()
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        !self.table().is_empty()
    }

    /// Those whose limits are not known. The kubelet was asked at `asked`: what it said counts only for what was there before,
    /// since it may have told what held then. `counted`: what they are to have is what the kubelet counts, which it has done
    /// when a container has begun to start.
    pub(crate) fn waiting(&self, asked: Instant, counted: bool) -> Vec<Waiting> {
        let is_due = |entry: &&Entry| {
            entry.holder.is_none()
                && entry.counts_at(asked)
                && (!counted || entry.started.is_some())
        };
        let table = self.table();
        table.iter().filter(|(_, entry)| is_due(entry)).map(Entry::waiting).collect()
    }

    /// What is promised to the containers that are listed, and those of which that is not known yet. Where none is listed, all
    /// that are known count.
    pub(crate) fn promised(&self, listed: &Containers) -> (Vec<(GpuId, Share)>, Vec<Waiting>) {
        let counts = |(_, entry): &(_, &Entry)| listed.is_empty() || entry.is_there(listed);
        let table = self.table();
        let (decided, waiting): (Vec<_>, Vec<_>) =
            table.iter().filter(counts).partition(|(_, entry)| entry.holder.is_some());
        let shares = decided.into_iter().flat_map(|(_, entry)| entry.taken().shares);
        (shares.collect(), waiting.into_iter().map(Entry::waiting).collect())
    }

    /// Whether limits are likely to be known soon, and somebody waits for them.
    pub(crate) fn is_urgent(&self, counted: bool) -> bool {
        let waits = |entry: &Entry| {
            let is_due = !counted || entry.started.is_some();
            entry.holder.is_none() && is_due && entry.last_touched().elapsed() < URGENT
        };
        self.table().values().any(waits)
    }

    /// Writes what holds for the container of an allocation. `asked`: as for [`Self::waiting`]. `false`: it is another
    /// container's by now.
    pub(crate) fn decide(
        &self,
        key: &AllocationKey,
        decision: &Decision,
        listed: &Containers,
        asked: Instant,
    ) -> Result<bool, WriteError> {
        let mut table = self.table();
        let others = table.iter().filter(|(other, entry)| *other != key && entry.is_there(listed));
        let others: Vec<_> = others.flat_map(|(_, entry)| entry.promised.iter().copied()).collect();
        let Some(entry) = table.get_mut(key).filter(|entry| entry.counts_at(asked)) else {
            return Ok(false);
        };
        if let Some(before) = &entry.holder {
            return Ok(*before == decision.holder);
        }
        decision.has_room(&others)?;
        let limits: Vec<(GpuId, Limits)> =
            decision.parts.iter().map(|part| (part.gpu, part.limits)).collect();
        allocation::make_pages(&self.session_of(key), &limits)?;
        let shares = self.write_down(key, decision)?;
        (entry.holder, entry.shares) = (Some(decision.holder.clone()), shares);
        entry.promised.clone_from(&decision.promised);
        entry.is_init = decision.is_init;
        entry.pod.clone_from(&decision.pod);
        drop(table);
        self.has_changed();
        Ok(true)
    }

    /// Writes what holds, for the container and for the next run.
    fn write_down(
        &self,
        key: &AllocationKey,
        decision: &Decision,
    ) -> Result<Vec<(GpuId, Share)>, WriteError> {
        let draft = self.draft();
        _ = fs::remove_dir_all(&draft);
        fs::create_dir(&draft)?;
        let shares: Vec<_> = decision.parts.iter().map(|part| (part.gpu, part.share)).collect();
        let written = decision.settings().write(&draft).map_err(WriteError::from).and_then(|()| {
            write_shares(&draft.join(SHARES), decision)?;
            fs::rename(draft.join(SHARES), self.of(key).join(SHARES))?;
            fs::rename(draft.join(SETTINGS), self.of(key).join(SETTINGS)).map_err(Into::into)
        });
        _ = fs::remove_dir_all(&draft);
        written.map(|()| shares)
    }

    /// Those whose limits are written.
    pub(crate) fn held(&self) -> Vec<Held> {
        let one = |(key, entry): (&AllocationKey, &Entry)| {
            Some(Held {
                key: key.clone(),
                holder: entry.holder.clone().filter(|_| entry.counts())?,
                pod: entry.pod.clone(),
                gpus: entry.gpus.clone(),
                shares: entry.shares.clone(),
                promised: entry.promised.clone(),
                followed: entry.followed.clone(),
            })
        };
        self.table().iter().filter_map(one).collect()
    }

    /// Changes what holds for a container that runs. What it may have from now on is promised before it may take it.
    /// Returns who has taken the change, for each GPU.
    pub(crate) fn change(
        &self,
        key: &AllocationKey,
        decision: &Decision,
    ) -> Result<Vec<Vec<Took>>, WriteError> {
        {
            let mut table = self.table();
            let others = table.iter().filter(|(other, _)| *other != key);
            let others: Vec<_> = others.flat_map(|(_, entry)| entry.taken().shares).collect();
            let gone = || WriteError::Gone(Box::new(decision.holder.clone()));
            let is_its = |entry: &&mut Entry| entry.holder.as_ref() == Some(&decision.holder);
            let entry = table.get_mut(key).filter(is_its).ok_or_else(gone)?;
            decision.has_room(&others)?;
            entry.promised.clone_from(&decision.promised);
            entry.shares = self.write_down(key, decision)?;
        }
        self.has_changed();
        let until = Instant::now() + LIMITS_WITHIN;
        let mut changed = Vec::new();
        for Part { gpu, limits, .. } in &decision.parts {
            let page = Page::open_existing(&self.session_of(key).join(format!("{gpu}.page")))?;
            // Who keeps it for longer does not keep the limits.
            let lock = page.lock_limits(until);
            changed.push(Changed::make(page, limits)?);
            drop(lock);
        }
        Ok(wait_until_taken(&changed, Instant::now() + TAKEN_WITHIN)?)
    }

    /// By which annotation an allocation's limits were last changed, or were to be.
    pub(crate) fn followed(&self, key: &AllocationKey, text: Option<String>) -> io::Result<()> {
        let mut table = self.table();
        let Some(entry) = table.get_mut(key) else { return Ok(()) };
        entry.followed.clone_from(&text);
        let path = self.of(key).join(FOLLOWED);
        match text {
            Some(text) => {
                let draft = self.draft();
                fs::write(&draft, text)?;
                fs::rename(draft, path)
            }
            None => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }

    /// The kubelet has given out these ids of cores and memory. Returns whether these are others than before.
    fn are_in_use(&self, now: &InUse) -> bool {
        let mut before = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = *before != *now;
        if differs {
            before.clone_from(now);
        }
        differs
    }

    /// The directories from which present containers load the limiter, or will when they start again. `None`: that is not
    /// known of all of them.
    pub(crate) fn libraries(&self, listed: &Containers) -> Option<BTreeSet<PathBuf>> {
        let table = self.table();
        // A container that starts again, or joins a claim, loads the library of the agent that runs then.
        if table.values().any(Entry::is_granted) {
            return None;
        }
        let is_known = |ids: &BTreeSet<String>| table.values().any(|entry| entry.ids == *ids);
        if !listed.places().all(is_known) {
            return None;
        }
        table.values().map(|entry| entry.library.clone()).collect()
    }

    /// Removes the allocations of containers that have ended. `mounted` tells which of these some process still sees: a
    /// kubelet that has just started may not list what runs.
    pub(crate) fn remove_ended(
        &self,
        listed: &Containers,
        asked: Instant,
        mounted: impl FnOnce(&[AllocationKey]) -> BTreeSet<AllocationKey>,
    ) -> io::Result<Vec<AllocationKey>> {
        let mut has_changed = self.are_in_use(listed.in_use());
        let mut candidates = Vec::new();
        for (key, entry) in self.table().iter_mut().filter(|(_, entry)| !entry.is_granted()) {
            let was_missing = entry.missing.is_some();
            if listed.have_any(&entry.ids) {
                (entry.listed, entry.missing) = (true, None);
            } else if entry.is_over(asked) {
                candidates.push((key.clone(), entry.last_touched()));
            }
            has_changed |= was_missing != entry.missing.is_some();
        }
        if has_changed {
            self.has_changed();
        }
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = candidates.iter().map(|(key, _)| key.clone()).collect();
        let mounted = mounted(&keys);
        let mut removed = Vec::new();
        for (key, touched) in candidates {
            let mut table = self.table();
            let is_same = table.get(&key).is_some_and(|entry| entry.last_touched() == touched);
            if is_same && !mounted.contains(&key) {
                self.remove(&self.of(&key))?;
                table.remove(&key);
                removed.push(key);
            }
        }
        if !removed.is_empty() {
            self.has_changed();
        }
        Ok(removed)
    }
}

impl Facts {
    fn of(entry: &Entry) -> Self {
        Self {
            version: 1,
            resource: entry.resource.clone(),
            ids: entry.ids.clone(),
            gpus: entry.gpus.clone(),
            library: entry.library.clone(),
        }
    }
}

impl Entry {
    fn new(resource: &Resource, allocation: &Allocation, library: Option<PathBuf>) -> Self {
        Self {
            resource: resource.name.to_owned(),
            ids: allocation.ids.iter().map(ToString::to_string).collect(),
            gpus: allocation.gpus.clone(),
            library,
            shares: Vec::new(),
            promised: Vec::new(),
            is_init: false,
            made: Instant::now(),
            started: None,
            holder: None,
            pod: None,
            followed: None,
            listed: false,
            missing: None,
        }
    }

    fn waiting((key, entry): (&AllocationKey, &Self)) -> Waiting {
        Waiting {
            key: key.clone(),
            resource: entry.resource.clone(),
            ids: entry.ids.clone(),
            gpus: entry.gpus.clone(),
            starts: entry.started.is_some(),
        }
    }

    /// Whether what the kubelet was asked at that time is about the present container.
    fn counts_at(&self, asked: Instant) -> bool {
        self.last_touched() <= asked
    }

    /// Whether its container has it, as far as kubelets tell.
    fn counts(&self) -> bool {
        self.missing.is_none() || self.is_init
    }

    /// Whether somebody has it, as the kubelet lists it, or as it does not list: init containers, and what was granted.
    fn is_there(&self, listed: &Containers) -> bool {
        self.is_init || self.is_granted() || listed.have_any(&self.ids)
    }

    fn taken(&self) -> Taken {
        // The kubelet may have freed the ids of what it lists no more: these are not counted against it twice.
        let shares = if self.counts() { self.promised.clone() } else { Vec::new() };
        let places = self.ids.iter().filter_map(|id| UnitId::read(id)).collect();
        Taken { resource: self.resource.clone(), places, shares }
    }

    fn last_touched(&self) -> Instant {
        self.started.map_or(self.made, |started| started.max(self.made))
    }

    /// It is not listed: whether that has been so for long enough.
    fn is_over(&mut self, asked: Instant) -> bool {
        if self.last_touched() >= asked {
            return false;
        }
        let since = *self.missing.get_or_insert(asked);
        let (from, patience) =
            if self.listed { (since, ENDED) } else { (self.last_touched(), NEVER_LISTED) };
        asked.saturating_duration_since(from) >= patience
    }
}

impl Decision {
    /// What is promised is all that it has.
    pub(crate) fn in_full(
        holder: Holder,
        pod: Option<String>,
        parts: Vec<Part>,
        (policy, daemon): (Policy, PathBuf),
    ) -> Self {
        let promised = parts.iter().map(|part| (part.gpu, part.share)).collect();
        Self { holder, pod, parts, promised, is_init: false, policy, daemon }
    }

    /// Whether its GPUs have what it promises left beside others.
    fn has_room(&self, others: &[(GpuId, Share)]) -> Result<(), WriteError> {
        self.promised.iter().try_for_each(|(gpu, share)| {
            let parts = self.parts.iter().filter(|part| part.gpu == *gpu);
            let parts = parts.map(|part| Part { share: *share, ..*part });
            parts.into_iter().try_for_each(|part| has_room(&part, others))
        })
    }

    fn settings(&self) -> OwnerSettings {
        let Self { holder, parts, policy, daemon, .. } = self;
        let by_device = |value: &dyn Fn(&Limits) -> Option<serde_json::Value>| {
            let pairs =
                parts.iter().filter_map(|part| Some((part.gpu.to_string(), value(&part.limits)?)));
            let map: serde_json::Map<String, serde_json::Value> = pairs.collect();
            (!map.is_empty()).then(|| serde_json::Value::Object(map).to_string())
        };
        let memory = by_device(&|limits| Some(limits.memory?.limit.into()));
        let percent = |ppm: u32| f64::from(ppm) / 10_000.0;
        let share = by_device(&|limits| {
            limits.compute.is_limit().then(|| percent(limits.compute.share_ppm).into())
        });
        let real = by_device(&|limits| Some(limits.memory?.real?.into()));
        let balance = (*policy == Policy::Balance && share.is_some()).then(|| "balance".to_owned());
        let is_low = |part: &Part| part.limits.compute.priority == Priority::Low;
        let low = parts.iter().any(is_low).then(|| Priority::Low.name().to_owned());
        let limits = [
            (::limits::env::MEMORY_LIMIT, memory),
            (::limits::env::MEMORY_REAL, real),
            (::limits::env::COMPUTE_LIMIT, share),
            (::limits::env::POLICY, balance),
            (::limits::env::PRIORITY, low),
        ];
        let limits = limits.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let others = [
            (::limits::env::DAEMON_SOCKET, daemon.display().to_string()),
            ("POD_NAMESPACE", holder.namespace.clone()),
            ("POD_NAME", holder.pod.clone()),
            ("CONTAINER_NAME", holder.container.clone()),
        ];
        let pairs = limits.chain(others).map(|(name, value)| (name.to_owned(), value));
        OwnerSettings {
            variables: pairs.collect(),
            devices: Some(parts.iter().map(|part| part.gpu).collect()),
            name: Some(holder.to_string()),
            command: None,
        }
    }
}

/// Whether a GPU has so much left beside what others have of it.
pub(crate) fn has_room(part: &Part, others: &[(GpuId, Share)]) -> Result<(), WriteError> {
    let on_it = others.iter().filter(|(gpu, _)| *gpu == part.gpu);
    let taken = on_it.fold(Share::default(), |sum, (_, share)| Share {
        cores: sum.cores.saturating_add(share.cores),
        memory_mib: sum.memory_mib.saturating_add(share.memory_mib),
    });
    let Part { gpu, share, total, .. } = *part;
    for (what, asked, total, taken) in [
        ("cores", share.cores, total.cores, taken.cores),
        ("MiB", share.memory_mib, total.memory_mib, taken.memory_mib),
    ] {
        let left = total.saturating_sub(taken);
        // A total of 0: the driver does not tell.
        if asked > left && total > 0 {
            return Err(WriteError::NoRoom { what, gpu, asked, left, total });
        }
    }
    Ok(())
}

/// As it stands in a file.
#[derive(Serialize, Deserialize)]
struct WrittenShare {
    gpu: GpuId,
    #[serde(flatten)]
    share: Share,
    /// What an init container is promised. Others are promised what they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    promised: Option<Share>,
}

fn write_shares(path: &Path, decision: &Decision) -> io::Result<()> {
    let promised = decision.promised.iter().map(|(_, share)| *share);
    let one = |(part, promised): (&Part, Share)| WrittenShare {
        gpu: part.gpu,
        share: part.share,
        promised: decision.is_init.then_some(promised),
    };
    let all: Vec<WrittenShare> = decision.parts.iter().zip(promised).map(one).collect();
    fs::write(path, serde_json::to_vec(&all)?)
}

fn shares_of(folder: &Path) -> Option<Vec<WrittenShare>> {
    serde_json::from_slice(&fs::read(folder.join(SHARES)).ok()?).ok()
}

/// What a container's users read, whatever this process's umask is.
fn for_all_users(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// What an earlier run left.
fn found_in(folder: &Path) -> io::Result<BTreeMap<AllocationKey, Entry>> {
    let mut table = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(".draft-") {
            _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
        let Some(key) = AllocationKey::named(name) else { continue };
        // One whose facts cannot be read is nobody's, and goes as others that nobody has.
        let Facts { resource, ids, gpus, library, .. } = facts_of(&path).unwrap_or_default();
        let shares = shares_of(&path).unwrap_or_default();
        let is_init = shares.iter().any(|one| one.promised.is_some());
        let promised = shares.iter().map(|one| (one.gpu, one.promised.unwrap_or(one.share)));
        let now = Instant::now();
        let started = path.join(STARTED).exists().then_some(now);
        let holder = OwnerSettings::of(&path).ok().and_then(|settings| holder(&settings));
        let entry = Entry {
            resource,
            ids,
            gpus,
            library,
            promised: promised.collect(),
            shares: shares.iter().map(|one| (one.gpu, one.share)).collect(),
            is_init,
            made: now,
            started,
            listed: holder.is_some() && !is_init,
            holder,
            pod: None,
            followed: fs::read_to_string(path.join(FOLLOWED)).ok(),
            missing: None,
        };
        table.insert(key, entry);
    }
    Ok(table)
}

fn facts_of(folder: &Path) -> Option<Facts> {
    serde_json::from_slice(&fs::read(folder.join(FACTS)).ok()?).ok()
}

fn holder(settings: &OwnerSettings) -> Option<Holder> {
    let value = |name: &str| settings.variables.get(name).cloned();
    Some(Holder {
        namespace: value("POD_NAMESPACE")?,
        pod: value("POD_NAME")?,
        container: value("CONTAINER_NAME")?,
    })
}

//! The allocations of this node: one directory per allocation, named by its key and mounted into its container. The
//! device plugin, the DRA driver and the NRI plugin create them; the resolver writes their limits.
//!
//! `Allocate` always creates the directory anew, so a container never sees the data of an earlier container with the
//! same ids. The limits are written once the kubelet has told which container the allocation belongs to. The directory
//! is removed after that container has ended.

mod decision;
mod entry;
mod folder;
mod granted;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dialects::{Resource, Share};
use limits::GpuId;
use session::Page;
use session::taken::{Changed, Took, wait_until_taken};
use tokio::sync::{Notify, watch};

pub(crate) use self::decision::{Decision, WriteError};
use self::entry::Entry;
pub(crate) use self::entry::{Held, Waiting};
use self::folder::{Facts, Folder, Lock};
pub(crate) use self::granted::Grantor;
use crate::NodeError;
use crate::amounts::Part;
use crate::hidden::{Hidden, InUse, Taken, hidden};
use crate::identity::{Containers, Holder};
use crate::pool::{Allocation, AllocationKey, Pool};

/// How long to wait for another process that changes the same limits. A container's own processes can prolong this.
const LIMITS_WITHIN: Duration = Duration::from_millis(200);
/// How long a container's processes have to confirm changed limits.
const TAKEN_WITHIN: Duration = Duration::from_millis(500);
/// How long after `Allocate`, or after the start of a container, a scheduler or the container may be waiting for
/// limits.
const URGENT: Duration = Duration::from_secs(15);

/// The table of allocations, backed by a directory.
#[derive(Debug)]
pub(crate) struct Allocations {
    folder: Folder,
    /// Directory from which new containers load the limiter.
    library: PathBuf,
    table: Mutex<BTreeMap<AllocationKey, Entry>>,
    /// Ids of cores and memory that the kubelet has allocated.
    in_use: Mutex<InUse>,
    /// Counts the changes of `table` and `in_use`.
    changes: watch::Sender<u64>,
    /// Notified after each `Allocate`.
    given: Notify,
}

/// Why `Allocate` fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocateError {
    /// All resources share one pool of GPUs, but the kubelet counts each resource separately.
    #[error("{id} is taken by the name {resource}: the kubelet has not heard of it yet")]
    Taken { id: String, resource: String },
    #[error("the allocation's folder: {0}")]
    Folder(#[from] io::Error),
}

impl Allocations {
    /// Opens and locks the directory, and reads what an earlier run left in it.
    pub(crate) fn take(folder: &Path, library: &Path) -> Result<(Self, Lock), NodeError> {
        let fault = |source| NodeError::Allocations { folder: folder.to_owned(), source };
        let (folder, lock) = Folder::take(folder)?;
        let allocations = Self {
            table: Mutex::new(folder.found().map_err(fault)?),
            folder,
            library: library.to_owned(),
            in_use: Mutex::default(),
            changes: watch::Sender::new(0),
            given: Notify::new(),
        };
        Ok((allocations, lock))
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<AllocationKey, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notified of every change of the allocations or of the ids in use.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits for the next `Allocate`, or returns at once if one came since the last wait.
    pub(crate) async fn given(&self) {
        self.given.notified().await;
    }

    fn has_changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// The ids of each resource that must not be allocated now.
    pub(crate) fn hidden(&self, pool: &Pool, resources: &[Resource]) -> Hidden {
        let taken: Vec<Taken> = self.table().values().map(Entry::taken).collect();
        let in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        hidden(pool, resources, &taken, &in_use)
    }

    /// The directory of an allocation.
    pub(crate) fn of(&self, key: &AllocationKey) -> PathBuf {
        self.folder.of(key)
    }

    /// The directory of an allocation's session pages.
    pub(crate) fn session_of(&self, key: &AllocationKey) -> PathBuf {
        self.folder.session_of(key)
    }

    /// Writes the list of libraries that containers preload.
    pub(crate) fn write_preload(&self) -> io::Result<PathBuf> {
        self.folder.write_preload()
    }

    /// Creates the directory of a new allocation.
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
        let facts = Facts::new(resource, allocation, Some(self.library.clone()));
        self.folder.make(&allocation.key, &facts)?;
        table.insert(allocation.key.clone(), Entry::of(facts));
        drop(table);
        self.has_changed();
        self.given.notify_one();
        Ok(())
    }

    /// Records that a container with this allocation is about to start. Creates the directory again if it is gone:
    /// after a reboot the kubelet restarts containers from its checkpoint, without calling `Allocate`. Returns the
    /// container whose limits are written, if any.
    pub(crate) fn start(
        &self,
        resource: &Resource,
        allocation: &Allocation,
    ) -> io::Result<Option<Holder>> {
        let mut table = self.table();
        // The kubelet mounts what `Allocate` returned, perhaps from an agent of another version.
        let facts = || Facts::new(resource, allocation, None);
        if !table.contains_key(&allocation.key) || !self.session_of(&allocation.key).is_dir() {
            self.folder.make(&allocation.key, &facts())?;
            table.remove(&allocation.key);
        }
        let entry = table.entry(allocation.key.clone()).or_insert_with(|| Entry::of(facts()));
        self.folder.mark_started(&allocation.key)?;
        (entry.started, entry.missing) = (Some(Instant::now()), None);
        Ok(entry.holder.clone())
    }

    /// Creates the directory anew, without limits, because another container of the pod starts with this allocation
    /// than the one whose limits are written.
    pub(crate) fn vacate(&self, waiting: &Waiting) -> io::Result<()> {
        let mut table = self.table();
        let Some(entry) = table.get_mut(&waiting.key) else { return Ok(()) };
        (entry.holder, entry.followed) = (None, None);
        self.folder.make(&waiting.key, &Facts::of(entry))?;
        self.folder.mark_started(&waiting.key)
    }

    /// Removes the allocations of these ended init containers, except `but`, which another container uses by now.
    pub(crate) fn release(&self, ended: &[Holder], but: &AllocationKey) -> io::Result<()> {
        let is_theirs = |(key, entry): &(&AllocationKey, &Entry)| {
            *key != but
                && !entry.is_granted()
                && entry.holder.as_ref().is_some_and(|holder| ended.contains(holder))
        };
        self.remove_those(is_theirs)
    }

    /// Removes the allocations for which `is_one` is true, with their directories.
    fn remove_those(&self, is_one: impl Fn(&(&AllocationKey, &Entry)) -> bool) -> io::Result<()> {
        let mut table = self.table();
        let keys: Vec<_> = table.iter().filter(is_one).map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.folder.remove(key)?;
            table.remove(key);
        }
        drop(table);
        if !keys.is_empty() {
            self.has_changed();
        }
        Ok(())
    }

    /// The keys of all allocations.
    pub(crate) fn keys(&self) -> Vec<AllocationKey> {
        self.table().keys().cloned().collect()
    }

    pub(crate) fn any(&self) -> bool {
        !self.table().is_empty()
    }

    /// The allocations without limits. `asked`: when the kubelet was asked; allocations touched later are left out,
    /// because the answer may be older than they are. `counted`: the limits come from the ids that the kubelet counts,
    /// which are complete only once the container has begun to start.
    pub(crate) fn waiting(&self, asked: Instant, counted: bool) -> Vec<Waiting> {
        let is_due = |entry: &&Entry| {
            entry.holder.is_none()
                && entry.counts_at(asked)
                && (!counted || entry.started.is_some())
        };
        let table = self.table();
        table.iter().filter(|(_, entry)| is_due(entry)).map(Entry::waiting).collect()
    }

    /// The shares promised to listed containers, and the listed allocations that still wait for limits. If the list is
    /// empty, all allocations count.
    pub(crate) fn promised(&self, listed: &Containers) -> (Vec<(GpuId, Share)>, Vec<Waiting>) {
        let counts = |(_, entry): &(_, &Entry)| listed.is_empty() || entry.is_there(listed);
        let table = self.table();
        let (decided, waiting): (Vec<_>, Vec<_>) =
            table.iter().filter(counts).partition(|(_, entry)| entry.holder.is_some());
        let shares = decided.into_iter().flat_map(|(_, entry)| entry.counted());
        (shares.copied().collect(), waiting.into_iter().map(Entry::waiting).collect())
    }

    /// Whether a scheduler or a container is probably waiting for limits.
    pub(crate) fn is_urgent(&self, counted: bool) -> bool {
        let waits = |entry: &Entry| {
            let is_due = !counted || entry.started.is_some();
            entry.holder.is_none() && is_due && entry.last_touched().elapsed() < URGENT
        };
        self.table().values().any(waits)
    }

    /// Writes the limits of an allocation's container. `asked`: as for [`Self::waiting`]. Returns `false` if the
    /// allocation belongs to another container by now.
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
        self.folder.write_new(key, decision)?;
        entry.take(decision);
        drop(table);
        self.has_changed();
        Ok(true)
    }

    /// The allocations whose limits are written.
    pub(crate) fn held(&self) -> Vec<Held> {
        self.table().iter().filter_map(Entry::held).collect()
    }

    /// Changes the limits of a running container. An increase is promised before the container may use it. Returns for
    /// each GPU which processes have confirmed the change.
    pub(crate) fn change(
        &self,
        key: &AllocationKey,
        decision: &Decision,
    ) -> Result<Vec<Vec<Took>>, WriteError> {
        {
            let mut table = self.table();
            let others = table.iter().filter(|(other, _)| *other != key);
            let others: Vec<_> = others.flat_map(|(_, entry)| entry.counted()).copied().collect();
            let gone = || WriteError::Gone(Box::new(decision.holder.clone()));
            let is_its = |entry: &&mut Entry| entry.holder.as_ref() == Some(&decision.holder);
            let entry = table.get_mut(key).filter(is_its).ok_or_else(gone)?;
            decision.has_room(&others)?;
            self.folder.write(key, decision)?;
            entry.take(decision);
        }
        self.has_changed();
        let until = Instant::now() + LIMITS_WITHIN;
        let mut changed = Vec::new();
        for Part { gpu, limits, .. } in &decision.parts {
            let page = Page::open_existing(&self.session_of(key).join(format!("{gpu}.page")))?;
            // The limits may be overwritten by a process that holds the lock for longer.
            let lock = page.lock_limits(until);
            changed.push(Changed::make(page, limits)?);
            drop(lock);
        }
        Ok(wait_until_taken(&changed, Instant::now() + TAKEN_WITHIN)?)
    }

    /// Records the annotation text by which an allocation's limits were last changed, or failed to change.
    pub(crate) fn followed(&self, key: &AllocationKey, text: Option<String>) -> io::Result<()> {
        let mut table = self.table();
        let Some(entry) = table.get_mut(key) else { return Ok(()) };
        entry.followed.clone_from(&text);
        self.folder.write_followed(key, text.as_deref())
    }

    /// Stores the ids of cores and memory that the kubelet has allocated. Returns whether they changed.
    fn are_in_use(&self, now: &InUse) -> bool {
        let mut before = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = *before != *now;
        if differs {
            before.clone_from(now);
        }
        differs
    }

    /// The directories from which present containers load the limiter, also after a restart. `None` if that is unknown
    /// for some container.
    pub(crate) fn libraries(&self, listed: &Containers) -> Option<BTreeSet<PathBuf>> {
        let table = self.table();
        // A container that restarts, or joins a claim, loads the library of the agent that runs at that time.
        if table.values().any(Entry::is_granted) {
            return None;
        }
        let is_known = |ids: &BTreeSet<String>| table.values().any(|entry| entry.ids == *ids);
        if !listed.places().all(is_known) {
            return None;
        }
        table.values().map(|entry| entry.library.clone()).collect()
    }

    /// Removes the allocations of ended containers. `mounted` returns those that some process still has mounted, since
    /// a kubelet that has just started may not list all running containers.
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
                self.folder.remove(&key)?;
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

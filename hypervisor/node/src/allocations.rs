//! The folder of allocations: one folder for each, by its key, which its container gets to see.
//!
//! `Allocate` makes it anew, so a container never sees what an earlier one with the same ids had. Its limits are
//! written when the kubelet has told whose it is, and it is removed when that container has ended.

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

pub(crate) use self::decision::{Decision, WriteError, has_room};
use self::entry::Entry;
pub(crate) use self::entry::{Held, Waiting};
use self::folder::{Facts, Folder, Lock};
pub(crate) use self::granted::Grantor;
use crate::NodeError;
use crate::amounts::Part;
use crate::hidden::{Hidden, InUse, Taken, hidden};
use crate::identity::{Containers, Holder};
use crate::pool::{Allocation, AllocationKey, Pool};

/// How long others are waited for who change the same limits. A container's own processes can make it long.
const LIMITS_WITHIN: Duration = Duration::from_millis(200);
/// How long a container's processes have to say that they go by changed limits.
const TAKEN_WITHIN: Duration = Duration::from_millis(500);
/// For how long after `Allocate` a scheduler, or after its start a container's first process, may be waiting.
const URGENT: Duration = Duration::from_secs(15);

/// The folder.
#[derive(Debug)]
pub(crate) struct Allocations {
    folder: Folder,
    /// From which containers load the limiter, unless they were allocated by another version.
    library: PathBuf,
    table: Mutex<BTreeMap<AllocationKey, Entry>>,
    /// Ids of cores and memory that the kubelet has given out.
    in_use: Mutex<InUse>,
    /// Counts changes of both.
    changes: watch::Sender<u64>,
    /// Told when the kubelet gives something out.
    given: Notify,
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

impl Allocations {
    /// Takes the folder, with what an earlier run left there.
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
        self.folder.of(key)
    }

    /// Where its pages are.
    pub(crate) fn session_of(&self, key: &AllocationKey) -> PathBuf {
        self.folder.session_of(key)
    }

    /// Writes the list of libraries that containers preload.
    pub(crate) fn write_preload(&self) -> io::Result<PathBuf> {
        self.folder.write_preload()
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
        let facts = Facts::new(resource, allocation, Some(self.library.clone()));
        self.folder.make(&allocation.key, &facts)?;
        table.insert(allocation.key.clone(), Entry::of(facts));
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
        // The kubelet mounts what it was told by `Allocate`, perhaps by another version.
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

    /// Another container of its pod starts with it than the one whose limits are written: the folder is made anew.
    pub(crate) fn vacate(&self, waiting: &Waiting) -> io::Result<()> {
        let mut table = self.table();
        let Some(entry) = table.get_mut(&waiting.key) else { return Ok(()) };
        (entry.holder, entry.followed) = (None, None);
        self.folder.make(&waiting.key, &Facts::of(entry))?;
        self.folder.mark_started(&waiting.key)
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
            self.folder.remove(key)?;
            table.remove(key);
        }
        drop(table);
        if !keys.is_empty() {
            self.has_changed();
        }
        Ok(())
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
        let shares = decided.into_iter().flat_map(|(_, entry)| entry.counted());
        (shares.copied().collect(), waiting.into_iter().map(Entry::waiting).collect())
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
        self.folder.write_new(key, decision)?;
        entry.take(decision);
        drop(table);
        self.has_changed();
        Ok(true)
    }

    /// Those whose limits are written.
    pub(crate) fn held(&self) -> Vec<Held> {
        self.table().iter().filter_map(Entry::held).collect()
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
        self.folder.write_followed(key, text.as_deref())
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

//! The files of allocations: one directory per key, mounted into its container.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use dialects::{Resource, Share};
use limits::{GpuId, Limits};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use session::allocation;
use session::settings::{FILE as SETTINGS, OwnerSettings};

use super::decision::{Decision, WriteError};
use super::entry::Entry;
use crate::NodeError;
use crate::amounts::Part;
use crate::identity::Holder;
use crate::image_preloads;
use crate::injection;
use crate::pool::{Allocation, AllocationKey};

/// Version of the file format.
const VERSION: u32 = 1;
const LOCK: &str = ".lock";
/// What was allocated, as JSON, for later runs and other parts of the node.
const FACTS: &str = "allocation.json";
/// Subdirectory with the session's pages.
const SESSION: &str = "session";
/// Marks that the kubelet has begun to start a container, so all its resources are allocated.
const STARTED: &str = "started";
/// The shares promised to its container, for later runs.
const SHARES: &str = "shares.json";
/// The annotation text by which its limits were last changed, for later runs.
const FOLLOWED: &str = "followed";
/// The directory that holds the allocations' directories.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    drafts: AtomicU64,
}

/// Keeps other agents from using the directory, until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// The content of [`FACTS`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Facts {
    version: u32,
    pub(super) resource: String,
    pub(super) ids: BTreeSet<String>,
    pub(super) gpus: Vec<GpuId>,
    /// Missing in files of earlier versions.
    #[serde(default)]
    pub(super) library: Option<PathBuf>,
}

impl Facts {
    pub(super) fn of(entry: &Entry) -> Self {
        let Entry { resource, ids, gpus, library, .. } = entry.clone();
        Self { version: VERSION, resource, ids, gpus, library }
    }

    pub(super) fn new(
        resource: &Resource,
        allocation: &Allocation,
        library: Option<PathBuf>,
    ) -> Self {
        Self {
            version: VERSION,
            resource: resource.name.to_owned(),
            ids: allocation.ids.iter().map(ToString::to_string).collect(),
            gpus: allocation.gpus.clone(),
            library,
        }
    }

    pub(super) fn granted(by: &str, owner: &str, parts: &[Part], library: &Path) -> Self {
        Self {
            version: VERSION,
            resource: by.to_owned(),
            ids: BTreeSet::from([owner.to_owned()]),
            gpus: parts.iter().map(|part| part.gpu).collect(),
            library: Some(library.to_owned()),
        }
    }
}

impl Folder {
    /// Opens and locks the directory.
    pub(super) fn take(path: &Path) -> Result<(Self, Lock), NodeError> {
        let fault = |source| NodeError::Allocations { folder: path.to_owned(), source };
        fs::create_dir_all(path).map_err(fault)?;
        // Pages in it may be world-writable, so only root may enter here. Containers reach them through their mounts.
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(fault)?;
        let mut options = OpenOptions::new();
        let lock = options.write(true).create(true).truncate(false).mode(0o600);
        let lock = lock.open(path.join(LOCK)).map_err(fault)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let folder = Self { path: path.to_owned(), drafts: AtomicU64::new(0) };
                Ok((folder, Lock { _file: lock }))
            }
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
                Err(NodeError::AlreadyRuns { folder: path.to_owned() })
            }
            Err(error) => Err(fault(error.into())),
        }
    }

    /// The directory of an allocation.
    pub(super) fn of(&self, key: &AllocationKey) -> PathBuf {
        self.path.join(key.as_str())
    }

    /// The directory of an allocation's session pages.
    pub(super) fn session_of(&self, key: &AllocationKey) -> PathBuf {
        self.of(key).join(SESSION)
    }

    /// A path that no other thread uses.
    fn draft(&self) -> PathBuf {
        self.path.join(format!(".draft-{}", self.drafts.fetch_add(1, Ordering::Relaxed)))
    }

    /// Writes the list of libraries that containers preload.
    pub(super) fn write_preload(&self) -> io::Result<PathBuf> {
        let (draft, path) = (self.draft(), image_preloads::of(&self.path));
        fs::write(&draft, injection::preload_text())?;
        for_all_users(&draft, 0o644)?;
        fs::rename(draft, &path)?;
        Ok(path)
    }

    /// Creates the complete directory and moves it into place of an older one, which stays mounted where it is mounted.
    pub(super) fn make(&self, key: &AllocationKey, facts: &Facts) -> io::Result<()> {
        let draft = self.draft();
        // Left by an earlier run.
        _ = fs::remove_dir_all(&draft);
        fs::create_dir(&draft)?;
        for_all_users(&draft, 0o755)?;
        let mut file = File::create(draft.join(FACTS))?;
        serde_json::to_writer(&mut file, facts)?;
        file.write_all(b"\n")?;
        for_all_users(&draft.join(FACTS), 0o644)?;
        // A container that had it mounted before a reboot needs it, whatever the agent's options are now.
        let list = image_preloads::of(&draft);
        fs::write(&list, injection::preload_text())?;
        for_all_users(&list, 0o644)?;
        allocation::make_session(&draft.join(SESSION))?;
        self.remove(key)?;
        fs::rename(draft, self.of(key))
    }

    /// Removes an allocation's directory: first renames it, then deletes its files.
    pub(super) fn remove(&self, key: &AllocationKey) -> io::Result<()> {
        let aside = self.draft();
        match fs::rename(self.of(key), &aside) {
            Ok(()) => fs::remove_dir_all(aside),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Records that a container with this allocation has begun to start.
    pub(super) fn mark_started(&self, key: &AllocationKey) -> io::Result<()> {
        File::create(self.of(key).join(STARTED)).map(drop)
    }

    /// Writes a decision, for the container and for later runs.
    pub(super) fn write(&self, key: &AllocationKey, decision: &Decision) -> Result<(), WriteError> {
        let draft = self.draft();
        _ = fs::remove_dir_all(&draft);
        fs::create_dir(&draft)?;
        let written = decision.settings().write(&draft).map_err(WriteError::from).and_then(|()| {
            write_shares(&draft.join(SHARES), decision)?;
            fs::rename(draft.join(SHARES), self.of(key).join(SHARES))?;
            fs::rename(draft.join(SETTINGS), self.of(key).join(SETTINGS)).map_err(Into::into)
        });
        _ = fs::remove_dir_all(&draft);
        written
    }

    /// Like [`Self::write`], with new pages that hold the limits.
    pub(super) fn write_new(
        &self,
        key: &AllocationKey,
        decision: &Decision,
    ) -> Result<(), WriteError> {
        let limits: Vec<(GpuId, Limits)> =
            decision.parts.iter().map(|part| (part.gpu, part.limits)).collect();
        allocation::make_pages(&self.session_of(key), &limits)?;
        self.write(key, decision)
    }

    /// Writes or removes the annotation text by which the limits were last changed.
    pub(super) fn write_followed(&self, key: &AllocationKey, text: Option<&str>) -> io::Result<()> {
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

    /// Reads the allocations that an earlier run left.
    pub(super) fn found(&self) -> io::Result<BTreeMap<AllocationKey, Entry>> {
        let mut table = BTreeMap::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(".draft-") {
                _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            }
            let Some(key) = AllocationKey::named(name) else { continue };
            // An allocation with unreadable facts has no ids, so it is soon removed as unused.
            let mut entry = Entry::of(facts_of(&path).unwrap_or_default());
            let shares = shares_of(&path).unwrap_or_default();
            entry.is_init = shares.iter().any(|one| one.promised.is_some());
            let promised = |one: &WrittenShare| (one.gpu, one.promised.unwrap_or(one.share));
            entry.promised = shares.iter().map(promised).collect();
            entry.shares = shares.iter().map(|one| (one.gpu, one.share)).collect();
            entry.started = path.join(STARTED).exists().then_some(entry.made);
            entry.holder = OwnerSettings::of(&path).ok().and_then(|settings| holder(&settings));
            entry.listed = entry.holder.is_some() && !entry.is_init;
            entry.followed = fs::read_to_string(path.join(FOLLOWED)).ok();
            table.insert(key, entry);
        }
        Ok(table)
    }
}

/// A share as written to [`SHARES`].
#[derive(Serialize, Deserialize)]
struct WrittenShare {
    gpu: GpuId,
    #[serde(flatten)]
    share: Share,
    /// The promised part, if it differs from `share`: only for init containers.
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

/// Sets a mode independently of the umask: a container's processes run as any user.
fn for_all_users(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
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

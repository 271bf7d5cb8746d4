//! The folder of allocations: one folder for each, by its key, which its container gets to see.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

use crate::NodeError;
use crate::dialects::Resource;
use crate::pool::Allocation;

const LOCK: &str = ".lock";
/// What an allocation is, for the node's other parts.
const FACTS: &str = "allocation.json";

/// The folder.
#[derive(Debug)]
pub(crate) struct Allocations {
    folder: PathBuf,
}

/// While this is there nobody else uses the folder.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// What stands in an allocation's folder.
#[derive(Serialize)]
struct Facts<'a> {
    version: u32,
    resource: &'a str,
    ids: Vec<String>,
    gpus: Vec<String>,
}

impl Allocations {
    pub(crate) fn take(folder: &Path) -> Result<(Self, Lock), NodeError> {
        let fault = |source| NodeError::Allocations { folder: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(fault)?;
        let mut options = OpenOptions::new();
        let lock = options.write(true).create(true).truncate(false).mode(0o600);
        let lock = lock.open(folder.join(LOCK)).map_err(fault)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok((Self { folder: folder.to_owned() }, Lock { _file: lock })),
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
                Err(NodeError::AlreadyRuns { folder: folder.to_owned() })
            }
            Err(error) => Err(fault(error.into())),
        }
    }

    /// Makes the allocation's folder, or leaves it as it is. A file is there in full or not at all.
    pub(crate) fn make(&self, resource: &Resource, allocation: &Allocation) -> io::Result<PathBuf> {
        let folder = self.folder.join(allocation.key.as_str());
        fs::create_dir_all(&folder)?;
        let facts = Facts {
            version: 1,
            resource: resource.name,
            ids: allocation.ids.iter().map(ToString::to_string).collect(),
            gpus: allocation.gpus.iter().map(ToString::to_string).collect(),
        };
        // Two containers of one pod may be given the same ids at once. The name is this call's own.
        let draft = tempfile_in(&folder)?;
        let (mut file, path) = draft;
        serde_json::to_writer(&mut file, &facts)?;
        file.write_all(b"\n")?;
        fs::rename(path, folder.join(FACTS))?;
        Ok(folder)
    }
}

/// A new file that nobody else has.
fn tempfile_in(folder: &Path) -> io::Result<(File, PathBuf)> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = folder.join(format!(".draft-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    let mut options = OpenOptions::new();
    // What an earlier run left is overwritten: the folder is locked.
    let file = options.write(true).create(true).truncate(true).mode(0o644).open(&path)?;
    Ok((file, path))
}

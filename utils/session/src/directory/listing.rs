//! Lists sessions by their directories. `sluice` and the daemon call this.
//!
//! Root reads directories of users who may be hostile. Each directory is entered by its descriptor, must belong to the
//! user, and only a bounded number of a user's entries is read.

use std::fs;
use std::path::{Path, PathBuf};

use super::{DirectoryError, ROOT, own_user, owner, place, shown_name};
use crate::folder::{Folder, FolderError};
use crate::settings::OwnerSettings;
use crate::{Page, PageError, allocation};

/// The most entries to read per user, and the most pages among them.
const MOST_ENTRIES: usize = 16_384;
const MOST_PAGES: usize = 1_024;

/// A session's directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// The user to whom it belongs.
    pub uid: u32,
    /// Its name: the path below the directory of the user's sessions, without its secret.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// The paths of its pages: one per device that it has used.
    pub pages: Vec<PathBuf>,
    /// Whether the command that created it is still running.
    pub owned: bool,
}

impl Found {
    /// The process id of the command that created it.
    #[must_use]
    pub fn owner(&self) -> Option<u32> {
        owner::of(&self.path).map(|owner| owner.pid)
    }

    /// The owner's settings, if there is an owner and they can be read.
    #[must_use]
    pub fn settings(&self) -> Option<OwnerSettings> {
        OwnerSettings::of_user(&self.path, self.uid).ok()
    }

    /// Whether it belongs to a container's allocation, and so to the node, whoever runs in the container.
    #[must_use]
    pub fn is_of_allocation(&self) -> bool {
        self.uid == 0 && self.path.ends_with(allocation::SESSION.trim_start_matches('/'))
    }

    /// Opens one of its pages, if it still belongs to this user.
    ///
    /// # Errors
    /// As for [`Page::open_existing`].
    pub fn open(&self, page: &Path) -> Result<Page, PageError> {
        Page::open_existing_of(page, Some(self.uid))
    }
}

/// The result of a search for sessions.
#[derive(Debug, Default)]
pub struct Listing {
    /// The sessions, ordered by user and name.
    pub sessions: Vec<Found>,
    /// Messages about directories that were skipped.
    pub left_out: Vec<String>,
}

/// The sessions of this user, or of every user for root.
///
/// # Errors
/// [`DirectoryError`] if a directory of this user cannot be read.
pub fn list() -> Result<Listing, DirectoryError> {
    let user = own_user();
    let mut listing = list_in(Path::new(ROOT), (user != 0).then_some(user))?;
    let mut users = vec![user];
    if user == 0 {
        let names = fs::read_dir("/run/user").into_iter().flatten().flatten();
        users.extend(names.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()));
    }
    for uid in users {
        listing.add_place(&place::last(uid), uid)?;
    }
    listing.add_allocation(Path::new("/"));
    listing.sessions.sort();
    Ok(listing)
}

/// The sessions below `root`, of one user or of all users.
///
/// # Errors
/// As [`list`].
pub fn list_in(root: &Path, only: Option<u32>) -> Result<Listing, DirectoryError> {
    let mut listing = Listing::default();
    if let Some(uid) = only {
        for path in place::all(root, uid) {
            listing.add_place(&path, uid)?;
        }
    } else {
        let folder = match Folder::open(root) {
            Err(error) if error.is_absent() => return Ok(listing),
            other => other?,
        };
        for (name, _) in folder.names(usize::MAX)?.0 {
            if let Some(uid) = name.to_str().and_then(place::user) {
                listing.add_place(&root.join(name), uid)?;
            }
        }
    }
    listing.sessions.sort();
    Ok(listing)
}

/// The sessions of a user as seen by a process, which may be in a container. `uid` is the user as this process knows
/// it; in a user namespace the number may differ.
///
/// Afterwards, check whether the process still runs: its id may have been reused.
///
/// # Errors
/// [`DirectoryError`] if the process's folders cannot be examined.
pub fn list_of_process(pid: u32, uid: u32) -> Result<Listing, DirectoryError> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let mut listing = Listing::default();
    let shared = below(Path::new(ROOT));
    let mut places = Vec::new();
    match Folder::open(&shared) {
        Ok(folder) if folder.is_in_memory() => {
            let (names, _) = folder.names(MOST_ENTRIES)?;
            let of_a_user = |name: &std::ffi::OsString| name.to_str().and_then(place::user);
            let names = names.into_iter().map(|(name, _)| name);
            places.extend(
                names.filter(|name| of_a_user(name).is_some()).map(|name| shared.join(name)),
            );
        }
        Ok(_) => {}
        Err(error) if error.is_absent() => {}
        Err(error) => return Err(error.into()),
    }
    places.push(below(&place::last(uid)));
    for path in places {
        if Folder::open(&path).is_ok_and(|folder| folder.is_in_memory()) {
            listing.add_place(&path, uid)?;
        }
    }
    listing.add_allocation(&root);
    listing.sessions.sort();
    Ok(listing)
}

/// The remaining entries and pages to read of one user.
struct Rest {
    entries: usize,
    pages: usize,
}

impl Listing {
    /// Adds the session of a container's allocation, below the container's root.
    fn add_allocation(&mut self, root: &Path) {
        let path = root.join(allocation::SESSION.trim_start_matches('/'));
        let Ok(folder) = Folder::open(&path) else { return };
        if folder.uid() != 0 || !folder.is_in_memory() {
            return;
        }
        let Ok((names, _)) = folder.names(MOST_ENTRIES) else { return };
        let paths = names.into_iter().map(|(name, _)| path.join(name));
        let mut pages: Vec<PathBuf> = paths.filter(|path| Page::has_name_of_one(path)).collect();
        pages.sort();
        pages.truncate(MOST_PAGES);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        self.sessions.push(Found {
            uid: 0,
            name: name.unwrap_or_default(),
            path,
            pages,
            owned: false,
        });
    }

    fn add_place(&mut self, path: &Path, uid: u32) -> Result<(), DirectoryError> {
        let base = match Folder::open(path) {
            // Anyone can create such a folder. One that belongs to another user is ignored.
            Ok(base) if base.uid() == uid => base,
            _ => return Ok(()),
        };
        let mut rest = Rest { entries: MOST_ENTRIES, pages: MOST_PAGES };
        match self.add_below(&base, &base, uid, 2, &mut rest) {
            Ok(true) => {}
            Ok(false) => self.left_out.push(format!(
                "{} has more than {MOST_ENTRIES} entries or {MOST_PAGES} pages: not all sessions of \
                 user {uid} are listed",
                path.display()
            )),
            Err(error) if uid == own_user() => return Err(error.into()),
            Err(error) => self.left_out.push(error.to_string()),
        }
        Ok(())
    }

    /// Adds the sessions in `folder`, and their inner sessions (of a demo). `false`: there are too many.
    fn add_below(
        &mut self,
        base: &Folder,
        folder: &Folder,
        uid: u32,
        depth: usize,
        rest: &mut Rest,
    ) -> Result<bool, FolderError> {
        let (names, more) = folder.names(rest.entries)?;
        rest.entries = rest.entries.saturating_sub(names.len());
        let path = |name| folder.path().join(name);
        let mut pages: Vec<PathBuf> = names
            .iter()
            .map(|(name, _)| path(name))
            .filter(|path| Page::has_name_of_one(path))
            .collect();
        let many = more || pages.len() > rest.pages;
        pages.truncate(rest.pages);
        rest.pages = rest.pages.saturating_sub(pages.len());
        let owned = owner::of(folder.path()).is_some() && owner::lives(folder);
        if folder.path() != base.path() && (owned || !pages.is_empty()) {
            pages.sort();
            let below = folder.path().strip_prefix(base.path()).unwrap_or(folder.path());
            let name = shown_name(below);
            self.sessions.push(Found { uid, name, path: folder.path().to_owned(), pages, owned });
        }
        let Some(deeper) = depth.checked_sub(1) else { return Ok(!many) };
        let mut whole = !many;
        for (name, kind) in names {
            if !kind.is_dir() && kind != rustix::fs::FileType::Unknown {
                continue;
            }
            // It may be gone, or no longer a directory.
            let Ok(inner) = folder.child(&name) else { continue };
            match self.add_below(base, &inner, uid, deeper, rest) {
                Ok(all) => whole &= all,
                Err(error) if error.is_absent() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(whole)
    }
}

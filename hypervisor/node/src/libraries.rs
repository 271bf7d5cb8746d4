//! Removes the libraries of other versions that no container loads any more.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::injection::PRELOADED;
use crate::resolver::Resolver;
use crate::starting::have_init_containers;

/// How often to look for unused libraries.
const LOOK: Duration = Duration::from_secs(10);
/// Libraries are kept this long after installation: the agent that needs them may not run yet.
const KEPT: Duration = Duration::from_secs(3600);

/// Runs forever. `own`: this version's directory of libraries, beside those of other versions.
pub(crate) async fn keep(own: PathBuf, resolver: Resolver) -> Infallible {
    loop {
        tokio::time::sleep(LOOK).await;
        let others = others(&own, SystemTime::now()).unwrap_or_default();
        if others.is_empty() {
            continue;
        }
        // Without the kubelet's list it is unknown which containers exist.
        let Ok((listed, _)) = resolver.ask().await else { continue };
        let Some(needed) = resolver.allocations.libraries(&listed) else { continue };
        // The kubelet does not list init containers, and may restart them with an earlier version's mounts.
        if resolver.cluster.as_ref().is_some_and(|cluster| have_init_containers(&cluster.pods())) {
            continue;
        }
        for folder in others.difference(&needed) {
            match remove(folder) {
                Ok(()) => {
                    tracing::info!(folder = %folder.display(), "no container needs it: removed");
                }
                Err(error) => {
                    tracing::warn!(folder = %folder.display(), %error, "it cannot be removed");
                }
            }
        }
    }
}

/// Directories beside `own` that hold nothing but the libraries and were installed long ago.
fn others(own: &Path, now: SystemTime) -> io::Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let Some(beside) = own.parent() else { return Ok(found) };
    for entry in fs::read_dir(beside)? {
        let entry = entry?;
        let path = entry.path();
        let is_old = |at: SystemTime| now.duration_since(at).is_ok_and(|age| age >= KEPT);
        let is_other = path != own && entry.file_type()?.is_dir();
        if is_other && is_old(entry.metadata()?.modified()?) && has_just_libraries(&path)? {
            found.insert(path);
        }
    }
    Ok(found)
}

fn has_just_libraries(folder: &Path) -> io::Result<bool> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        names.insert(entry?.file_name());
    }
    Ok(names == PRELOADED.into_iter().map(Into::into).collect())
}

fn remove(folder: &Path) -> io::Result<()> {
    for name in PRELOADED {
        fs::remove_file(folder.join(name))?;
    }
    fs::remove_dir(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_with_just_these_libraries_are_others() {
        let folder = tempfile::tempdir().unwrap();
        let version = |name: &str, files: &[&str]| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            files.iter().for_each(|file| fs::write(path.join(file), file).unwrap());
            path
        };
        let own = version("0.3.0", &PRELOADED);
        let old = version("0.2.0", &PRELOADED);
        version("cut", &PRELOADED[..1]);
        version("more", &[PRELOADED[0], PRELOADED[1], "libother.so"]);
        fs::write(folder.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink(&old, folder.path().join("link")).unwrap();
        let later = SystemTime::now() + KEPT;
        assert_eq!(others(&own, later).unwrap(), [old.clone()].into());
        assert!(others(&own, SystemTime::now()).unwrap().is_empty());
        remove(&old).unwrap();
        assert!(others(&own, later).unwrap().is_empty() && own.is_dir());
    }
}

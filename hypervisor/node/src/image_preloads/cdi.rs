//! Writes the CDI file that makes the container runtime run the hook: a CDI device that adds only the hook.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{StatVfsMountFlags, statvfs};
use serde::Serialize;

use super::COMMAND;
use crate::host::Host;

/// The oldest CDI version with all fields used here, so that each runtime can read it.
const VERSION: &str = "0.3.0";
const KIND: &str = "sluice.dev/preload";
const NAME: &str = "image";
/// Runtimes read only names that end with .json or .yaml, so they ignore the draft.
const FILE: &str = "sluice.dev-preload.json";
const DRAFT: &str = ".sluice.dev-preload.draft";
/// The annotation by which a container requests the device. Old kubelets pass a plugin's annotations to the runtime,
/// too.
const ANNOTATION: &str = "cdi.k8s.io/sluice_preload";

/// Why the hook cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum HookFileError {
    /// The program is missing.
    #[error(
        "--hook {program}: {source}; expected this program on the node, as 'hypervisor node --install DIR --hook FILE' puts it",
        program = program.display()
    )]
    Program {
        /// Its path.
        program: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The path is not the node's. The runtime resolves both paths on the node.
    #[error(
        "{option} {path}: it is not the node's, by whose paths the runtime goes; in a pod the node's folder has to be mounted at its own path",
        path = path.display()
    )]
    NotTheNodes {
        /// The option.
        option: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("--cdi-dir {folder}: {source}; expected a folder from which the container runtime reads CDI files", folder = folder.display())]
    Write {
        /// The folder.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    cdi_version: &'a str,
    kind: &'a str,
    devices: [Device<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Device<'a> {
    name: &'a str,
    container_edits: Edits<'a>,
}

#[derive(Serialize)]
struct Edits<'a> {
    hooks: [Hook<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Hook<'a> {
    hook_name: &'a str,
    path: &'a Path,
    args: [&'a str; 4],
}

/// The CDI file and its required content.
#[derive(Debug)]
pub(crate) struct HookFile {
    folder: PathBuf,
    program: PathBuf,
    text: String,
    writing: Mutex<()>,
}

impl HookFile {
    /// `program`: the path on the node, where the runtime starts it.
    pub(crate) fn new(
        folder: &Path,
        program: &Path,
        allocations: &Path,
    ) -> Result<Self, HookFileError> {
        let host = Host::here();
        check(program, &host)?;
        let write = |source| HookFileError::Write { folder: folder.to_owned(), source };
        let allocations = allocations.to_string_lossy();
        let args = ["hypervisor", COMMAND, "--allocations", &allocations];
        let hook = Hook { hook_name: "createRuntime", path: program, args };
        let device = Device { name: NAME, container_edits: Edits { hooks: [hook] } };
        let spec = Spec { cdi_version: VERSION, kind: KIND, devices: [device] };
        let text = serde_json::to_string_pretty(&spec).map_err(|error| write(error.into()))? + "\n";
        let program = program.to_owned();
        let file = Self { folder: folder.to_owned(), program, text, writing: Mutex::new(()) };
        file.put().map_err(write)?;
        if !host.has_the_same(folder) {
            return Err(not_the_nodes("--cdi-dir", folder));
        }
        Ok(file)
    }

    /// Writes the file unless it is correct: a runtime does not start a container with an unknown device.
    fn put(&self) -> io::Result<()> {
        let path = self.folder.join(FILE);
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if fs::read_to_string(&path).is_ok_and(|present| present == self.text) {
            return Ok(());
        }
        fs::create_dir_all(&self.folder)?;
        let draft = self.folder.join(DRAFT);
        fs::write(&draft, &self.text)?;
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o644))?;
        fs::rename(draft, path)
    }

    /// Whether a container may request the hook. If not, it starts without.
    pub(crate) fn is_there(&self) -> bool {
        let put = self.put().and_then(|()| fs::metadata(&self.program));
        if let Err(error) = &put {
            let (folder, program) = (self.folder.display(), self.program.display());
            tracing::warn!(%folder, %program, %error, "what images preload is not kept");
        }
        put.is_ok()
    }
}

/// The annotation that requests the hook.
pub(crate) fn annotation() -> (String, String) {
    (ANNOTATION.to_owned(), format!("{KIND}={NAME}"))
}

fn not_the_nodes(option: &'static str, path: &Path) -> HookFileError {
    HookFileError::NotTheNodes { option, path: path.to_owned() }
}

/// Checks the program, as far as it is visible from here.
pub(crate) fn check(program: &Path, host: &Host) -> Result<(), HookFileError> {
    let wrong = |source| HookFileError::Program { program: program.to_owned(), source };
    let found = fs::metadata(program).map_err(wrong)?;
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        return Err(wrong(io::Error::other("it is no program")));
    }
    if !host.has_the_same(program) {
        return Err(not_the_nodes("--hook", program));
    }
    match statvfs(program) {
        Ok(found) if found.f_flag.contains(StatVfsMountFlags::NOEXEC) => {
            Err(wrong(io::Error::other("it is on a file system without execution (noexec)")))
        }
        _ => Ok(()),
    }
}

/// Copies this program to the node, where runtimes start it. An identical copy is left alone.
///
/// # Errors
/// The system's, from reading `own` or writing `to`.
pub fn install_hook(own: &Path, to: &Path) -> io::Result<()> {
    let new = fs::read(own)?;
    if fs::read(to).is_ok_and(|present| present == new) {
        return Ok(());
    }
    let folder = to.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let draft = folder.join(".draft-hook");
    fs::write(&draft, new)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))?;
    fs::rename(draft, to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_file_is_there_again_when_it_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let (cdi, program) = (folder.path().join("a/cdi"), folder.path().join("hypervisor"));
        let make = || HookFile::new(&cdi, &program, Path::new("/run/x"));
        let said = make().unwrap_err().to_string();
        assert!(said.contains("--hook ") && said.contains("; expected "), "{said}");
        fs::write(&program, "text").unwrap();
        assert!(make().unwrap_err().to_string().contains("it is no program"));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let file = make().unwrap();
        let path = cdi.join("sluice.dev-preload.json");
        let inode = || fs::metadata(&path).unwrap().ino();
        let (text, before) = (fs::read(&path).unwrap(), inode());
        assert!(file.is_there());
        assert_eq!(inode(), before, "what is right stays");
        for changed in [Some("{}"), None] {
            match changed {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_dir_all(&cdi).unwrap(),
            }
            assert!(file.is_there());
            assert_eq!(fs::read(&path).unwrap(), text);
            assert_eq!(fs::read_dir(&cdi).unwrap().count(), 1);
        }
        // A runtime cannot start a container whose hook it cannot start.
        fs::rename(&program, folder.path().join("aside")).unwrap();
        assert!(!file.is_there());
        fs::rename(folder.path().join("aside"), &program).unwrap();
        assert!(file.is_there());
        fs::remove_dir_all(&cdi).unwrap();
        fs::write(&cdi, "in its place").unwrap();
        assert!(!file.is_there());
        assert!(make().unwrap_err().to_string().starts_with("--cdi-dir "));
    }

    #[test]
    fn the_program_is_put_on_the_node_once() {
        let folder = tempfile::tempdir().unwrap();
        let (own, to) = (folder.path().join("own"), folder.path().join("a/b/hypervisor"));
        assert!(install_hook(&own, &to).is_err());
        fs::write(&own, "1").unwrap();
        install_hook(&own, &to).unwrap();
        check(&to, &Host(PathBuf::from("/"))).unwrap();
        // As in a pod, where paths differ from the node's.
        let other = check(&to, &Host(folder.path().to_owned())).unwrap_err().to_string();
        assert!(other.contains("it is not the node's"), "{other}");
        let inode = || fs::metadata(&to).unwrap().ino();
        let before = inode();
        install_hook(&own, &to).unwrap();
        assert_eq!(inode(), before);
        fs::write(&own, "2").unwrap();
        install_hook(&own, &to).unwrap();
        assert_eq!((fs::read(&to).unwrap().as_slice(), inode() == before), (&b"2"[..], false));
    }
}

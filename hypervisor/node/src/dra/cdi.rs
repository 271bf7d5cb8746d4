//! Writes one CDI (Container Device Interface) file per claim, from which the container runtime gives the claim's
//! containers their device files, mounts and variables.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::proto::Mount;

/// The oldest CDI version with all fields used here.
const VERSION: &str = "0.3.0";
const KIND: &str = "sluice.dev/claim";

/// The directory from which the runtime reads CDI files.
#[derive(Clone, Debug)]
pub(crate) struct CdiFolder(pub(crate) PathBuf);

/// The edits for the containers of one claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edits {
    pub(crate) variables: Vec<(&'static str, String)>,
    pub(crate) mounts: Vec<Mount>,
    /// The device files, by the name of the claim's device.
    pub(crate) files: Vec<(String, Vec<PathBuf>)>,
}

impl CdiFolder {
    fn file(&self, uid: &str) -> PathBuf {
        self.0.join(format!("sluice.dev-claim-{uid}.json"))
    }

    /// Writes a claim's file. Returns the CDI device names to request: the claim's own, and for each device its own if
    /// it has files.
    pub(crate) fn write(
        &self,
        uid: &str,
        edits: &Edits,
    ) -> io::Result<(String, Vec<Option<String>>)> {
        let name = format!("claim-{uid}");
        let mount = |mount: &Mount| {
            let mode = if mount.read_only { "ro" } else { "rw" };
            json!({"hostPath": mount.host_path, "containerPath": mount.container_path, "options": ["bind", mode]})
        };
        let variables = edits.variables.iter().map(|(name, value)| format!("{name}={value}"));
        let (mounts, env): (Vec<Value>, Vec<String>) =
            (edits.mounts.iter().map(mount).collect(), variables.collect());
        let mut devices =
            vec![json!({"name": name, "containerEdits": {"env": env, "mounts": mounts}})];
        let mut names = Vec::new();
        for (device, files) in &edits.files {
            // Runtimes refuse a CDI device without edits.
            let own = (!files.is_empty()).then(|| format!("{name}-{device}"));
            if let Some(own) = &own {
                let nodes: Vec<Value> = files.iter().map(|path| json!({"path": path})).collect();
                devices.push(json!({"name": own, "containerEdits": {"deviceNodes": nodes}}));
            }
            names.push(own.map(|own| format!("{KIND}={own}")));
        }
        let spec = json!({"cdiVersion": VERSION, "kind": KIND, "devices": devices});
        self.put(uid, &serde_json::to_string_pretty(&spec)?)?;
        Ok((format!("{KIND}={name}"), names))
    }

    fn put(&self, uid: &str, text: &str) -> io::Result<()> {
        let path = self.file(uid);
        if fs::read_to_string(&path).is_ok_and(|present| present == text) {
            return Ok(());
        }
        fs::create_dir_all(&self.0)?;
        // Runtimes read only names that end with .json or .yaml, so they ignore the draft.
        let draft = path.with_extension("draft");
        fs::write(&draft, text)?;
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o644))?;
        fs::rename(draft, path)
    }

    pub(crate) fn remove(&self, uid: &str) -> io::Result<()> {
        match fs::remove_file(self.file(uid)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether a UID can be part of a file name.
    pub(crate) fn takes(uid: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !uid.is_empty() && uid.len() <= 64 && uid.bytes().all(is_plain)
    }
}

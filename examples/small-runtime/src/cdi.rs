//! The Container Device Interface, as far as used here: variables, mounts, device files, and hooks at a container's
//! creation.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::proto::{ContainerConfig, Device, KeyValue, Mount};

const ANNOTATIONS: &str = "cdi.k8s.io/";

/// Why a container does not get its devices.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CdiError {
    /// No CDI file defines the device.
    #[error("unresolvable CDI device {0}")]
    Unknown(String),
    /// A CDI file cannot be read.
    #[error("CDI file {0}: {1}")]
    File(PathBuf, io::Error),
    /// A hook of an unsupported kind.
    #[error("hook {0} is not supported; expected createRuntime")]
    Hook(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    #[serde(rename = "cdiVersion")]
    _version: String,
    kind: String,
    devices: Vec<Named>,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Named {
    name: String,
    container_edits: Edits,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Edits {
    #[serde(default)]
    env: Vec<String>,
    #[serde(default)]
    mounts: Vec<EditMount>,
    #[serde(default)]
    device_nodes: Vec<Node>,
    #[serde(default)]
    hooks: Vec<Hook>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EditMount {
    host_path: String,
    container_path: String,
    #[serde(default)]
    options: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Node {
    path: String,
    host_path: Option<String>,
}

/// A program that the runtime runs as a hook.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Hook {
    hook_name: String,
    pub(crate) path: PathBuf,
    /// Arguments, beginning with the program's name.
    #[serde(default)]
    pub(crate) args: Vec<String>,
    #[serde(default)]
    pub(crate) env: Vec<String>,
}

/// Adds the devices that a container's annotations request, from CDI files in these folders. Returns their hooks.
pub(crate) fn edit(
    config: &mut ContainerConfig,
    folders: &[PathBuf],
) -> Result<Vec<Hook>, CdiError> {
    let asked: Vec<String> = config
        .annotations
        .iter()
        .filter(|(key, _)| key.starts_with(ANNOTATIONS))
        .flat_map(|(_, names)| names.split(',').map(str::to_owned))
        .collect();
    // A runtime without CDI ignores the annotations.
    if folders.is_empty() || asked.is_empty() {
        return Ok(Vec::new());
    }
    let mut specs = Vec::new();
    for folder in folders {
        specs.extend(read(folder)?);
    }
    let mut hooks = Vec::new();
    for name in asked {
        // Several files may define devices of one kind.
        let of =
            |spec: &'_ Spec| name.strip_prefix(&spec.kind)?.strip_prefix('=').map(str::to_owned);
        let named = |spec| {
            let device = of(spec)?;
            Some((spec, spec.devices.iter().find(|one| one.name == device)?))
        };
        let found = specs.iter().find_map(named);
        let (spec, device) = found.ok_or_else(|| CdiError::Unknown(name.clone()))?;
        for edits in [&spec.container_edits, &device.container_edits] {
            edits.apply(config);
            hooks.extend(edits.hooks.iter().cloned());
        }
    }
    match hooks.iter().find(|hook| hook.hook_name != "createRuntime") {
        Some(other) => Err(CdiError::Hook(other.hook_name.clone())),
        None => Ok(hooks),
    }
}

fn read(folder: &Path) -> Result<Vec<Spec>, CdiError> {
    let mut specs = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "json") {
            let text = fs::read(&path).map_err(|error| CdiError::File(path.clone(), error))?;
            let spec = serde_json::from_slice(&text);
            specs.push(spec.map_err(|error| CdiError::File(path, error.into()))?);
        }
    }
    Ok(specs)
}

impl Edits {
    fn apply(&self, config: &mut ContainerConfig) {
        config.envs.extend(self.env.iter().map(|one| {
            let (key, value) = one.split_once('=').unwrap_or((one, ""));
            KeyValue { key: key.to_owned(), value: value.to_owned() }
        }));
        config.mounts.extend(self.mounts.iter().map(|one| Mount {
            container_path: one.container_path.clone(),
            host_path: one.host_path.clone(),
            readonly: one.options.iter().any(|option| option == "ro"),
            ..Mount::default()
        }));
        config.devices.extend(self.device_nodes.iter().map(|one| Device {
            container_path: one.path.clone(),
            host_path: one.host_path.clone().unwrap_or_else(|| one.path.clone()),
            permissions: "rw".to_owned(),
        }));
    }
}

//! What the owner of a session decides, before the session's first process starts. From then on no process of the
//! session has a say.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use config::{Config, DeviceIdentity, Snapshot};
use session::Page;
use session::settings::OwnerSettings;

use super::Error;
use super::devices::VisibleGpu;

/// What people know a session by.
#[derive(Debug, Clone, Default)]
pub struct Label {
    /// What they call it.
    pub name: Option<String>,
    /// What it runs.
    pub command: Option<String>,
}

/// Writes down what holds in the session in `dir`: the `variables` that its program is started with, and a page with
/// the limits of each device that has one. `chosen`: the only devices that it may use; none: it may use each.
/// `all`: the devices of the node, if they can be listed; they are asked for if any may have a limit.
///
/// Settings that cannot be read are written down as they are: the limiter refuses them, and names them.
///
/// # Errors
/// [`Error::Usage`] for a value that is not UTF-8. [`Error::Settings`] and [`Error::Page`] if that cannot be written.
pub fn decide(
    dir: &Path,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    label: Label,
    chosen: &[VisibleGpu],
    all: impl FnOnce() -> Vec<VisibleGpu>,
) -> Result<(), Error> {
    let variables: Snapshot = variables.into_iter().collect();
    let settings = OwnerSettings {
        variables: variables
            .iter()
            .map(|(name, value)| Ok((text(name, name)?, text(name, value)?)))
            .collect::<Result<_, Error>>()?,
        devices: (!chosen.is_empty()).then(|| chosen.iter().map(|device| device.uuid).collect()),
        name: label.name,
        command: label.command,
    };
    if let Ok(config) = Config::from_env(&variables)
        && config.limits_anything()
    {
        let listed = if chosen.is_empty() { all() } else { chosen.to_vec() };
        for device in &listed {
            make_page(dir, &config, &variables, device)?;
        }
    }
    Ok(settings.write(dir)?)
}

/// What can be written down just as it is.
fn text(variable: &OsStr, value: &OsStr) -> Result<String, Error> {
    value.to_str().map(ToOwned::to_owned).ok_or_else(|| {
        let (variable, value) = (variable.display(), value.display());
        Error::Usage(format!("{variable}={value}: not UTF-8; expected UTF-8"))
    })
}

/// Makes a device's page. Where the limits cannot be told there is none, and the limiter says why.
fn make_page(
    dir: &Path,
    config: &Config,
    variables: &Snapshot,
    device: &VisibleGpu,
) -> Result<(), Error> {
    let uuid = device.uuid;
    let host_index = Some(device.index);
    let visible_index = config::visible_index(uuid, None, || host_index, variables, variables);
    let settings = config.limits_for(&DeviceIdentity { uuid, host_index, visible_index });
    if !settings.unresolved.is_empty() || settings.conflict.is_some() {
        return Ok(());
    }
    if let Ok(limits) = settings.session(device.known_memory()) {
        Page::open(dir, uuid, &limits)?;
    }
    Ok(())
}

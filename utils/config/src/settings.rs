//! Reads the environment into typed settings, as the table of variables says.

use super::environment::Environment;
use super::error::ConfigError;
use super::value::{Format, Value};
use super::variables::{IndexSpace, Meaning, System, VARIABLES, Variable};
use limits::GpuId;
use limits::gpu::GpuKey;
use limits::units::parse_whole;

/// The devices that a value is for, in order of priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    Uuid(GpuId),
    HostIndex(u32),
    VisibleIndex(u32),
    Every,
}

/// A variable that is set, or its entry for one device.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) variable: &'static Variable,
    /// As set: with the index, or with the key in the object.
    pub(super) name: String,
    pub(super) scope: Scope,
    pub(super) value: Value,
}

/// Reads all settings, in the order of the table.
///
/// # Errors
/// The first unreadable value or index.
pub(super) fn read(environment: &dyn Environment) -> Result<Vec<Setting>, ConfigError> {
    let names = environment.names();
    let mut settings = Vec::new();
    for variable in VARIABLES.iter().filter(|variable| variable.meaning != Meaning::AddPath) {
        if variable.takes_suffix() {
            for (number, name) in indexed(environment, &names, variable)? {
                if let Some(value) = value(environment, variable, &name)? {
                    let scope = by_index(variable.index, number);
                    settings.push(Setting { variable, name, scope, value });
                }
            }
        }
        if variable.refuses_suffix() {
            refuse_indexed(environment, &names, variable)?;
        }
        let name = variable.name.to_owned();
        match value(environment, variable, &name)? {
            None => {}
            Some(Value::Map(devices)) => {
                settings.extend(devices.into_iter().map(|(key, value)| Setting {
                    variable,
                    name: format!("{name}[{key}]"),
                    scope: match key {
                        GpuKey::Id(uuid) => Scope::Uuid(uuid),
                        GpuKey::Index(number) => by_index(variable.index, number),
                    },
                    value,
                }));
            }
            Some(value) => {
                settings.push(Setting { variable, name, scope: Scope::Every, value });
            }
        }
    }
    Ok(settings)
}

const fn by_index(space: IndexSpace, number: u32) -> Scope {
    match space {
        IndexSpace::Host => Scope::HostIndex(number),
        IndexSpace::Visible => Scope::VisibleIndex(number),
        IndexSpace::None => Scope::Every,
    }
}

/// Refuses a name that looks like a limit for one device, of a variable without an indexed form.
fn refuse_indexed(
    environment: &dyn Environment,
    names: &[String],
    variable: &Variable,
) -> Result<(), ConfigError> {
    // Other software has variables whose names begin like this.
    let is_common = matches!(variable.system, System::TensorFusion | System::Kai);
    let is_indexed = |name: &&String| {
        let suffix = name.strip_prefix(variable.name).and_then(|rest| rest.strip_prefix('_'));
        let indexed = suffix.is_some_and(|suffix| !is_common || parse_whole(suffix).is_some());
        indexed && environment.get(name).is_none_or(|value| !value.is_empty())
    };
    let accepted = variable.format.accepted();
    match names.iter().find(is_indexed) {
        Some(name) => {
            Err(ConfigError::NoIndex { variable: name.clone(), base: variable.name, accepted })
        }
        None => Ok(()),
    }
}

/// The indexed forms of a variable that are set, sorted by index.
fn indexed(
    environment: &dyn Environment,
    names: &[String],
    variable: &Variable,
) -> Result<Vec<(u32, String)>, ConfigError> {
    let mut found = Vec::new();
    for name in names {
        let suffix = name.strip_prefix(variable.name).and_then(|rest| rest.strip_prefix('_'));
        let Some(suffix) = suffix else { continue };
        match parse_whole(suffix) {
            Some(number) => found.push((number, name.clone())),
            None if environment.get(name).is_some_and(|value| value.is_empty()) => {}
            None => {
                return Err(ConfigError::Index {
                    variable: name.clone(),
                    index: suffix.to_owned(),
                    base: variable.name,
                });
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn value(
    environment: &dyn Environment,
    variable: &Variable,
    name: &str,
) -> Result<Option<Value>, ConfigError> {
    let accepted = variable.format.accepted();
    if environment.is_not_text(name) {
        return Err(ConfigError::NotText { variable: name.to_owned(), accepted });
    }
    let Some(text) = environment.get(name).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    match variable.format.read(&text) {
        Ok(value) => Ok(Some(value)),
        // Other software uses this name, too. Its values mean nothing here.
        Err(_) if matches!(variable.format, Format::LogVgpuController) => Ok(None),
        Err(problem) => {
            Err(ConfigError::Value { variable: name.to_owned(), value: text, problem, accepted })
        }
    }
}

//! Which of the set limits holds for a device.

use super::settings::{Scope, Setting};
use super::value::{Share, Value};
use super::variables::{Meaning, System};
use core::fmt;
use utils::protocol::Policy;
use utils::uuid::DeviceUuid;

/// A device, by all the names that a limit can be keyed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceIdentity {
    /// Its UUID.
    pub(crate) uuid: DeviceUuid,
    /// Its index as NVML counts, if known.
    pub(crate) host_index: Option<u32>,
    /// Its index as the program counts, if known.
    pub(crate) visible_index: Option<u32>,
}

/// A variable that was set and does not hold, because another one does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overruled {
    /// The one that does not hold.
    pub(crate) variable: String,
    /// The one that does.
    pub(crate) by: String,
}

impl fmt::Display for Overruled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.variable, self.by)
    }
}

/// The limits of one device.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    /// Most memory, in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// Share of the device's time, in parts per million.
    pub(crate) share_ppm: Option<u32>,
    /// The variable that decided about memory.
    pub(crate) memory_source: Option<String>,
    /// The variable that decided about the share.
    pub(crate) share_source: Option<String>,
    /// Set for this device, to another value than the one that holds.
    pub(crate) overruled: Vec<Overruled>,
    /// Variables keyed by an index that is not known for this device, and that would hold if it
    /// were theirs. Not empty: the limits above may be wrong, and must not be used.
    pub(crate) unresolved: Vec<String>,
}

/// One value for some devices.
#[derive(Clone, Debug)]
pub(super) struct Rule<T> {
    pub(super) name: String,
    system: System,
    scope: Scope,
    value: T,
}

/// Rules in order of priority.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// Bytes.
    memory: Vec<Rule<u64>>,
    /// Parts per million; `None` lifts the limit.
    share: Vec<Rule<Option<u32>>>,
    /// The variable that switches all limits off.
    off: Option<String>,
}

impl Rules {
    /// Takes the limits out of the settings. `no_share`: the setting by which shares are lifted.
    pub(super) fn new(settings: &[Setting], no_share: Option<&Setting>) -> Self {
        let mut memory = collect(settings, Meaning::MemoryLimit, |value| match value {
            Value::Bytes(bytes) => Some(*bytes),
            _ => None,
        });
        let mut share = collect(settings, Meaning::ComputeLimit, |value| match value {
            Value::Share(Share::Ppm(ppm)) => Some(Some(*ppm)),
            Value::Share(Share::Unlimited) => Some(None),
            _ => None,
        });
        memory.sort_by_key(|rule| (rule.system, rule.scope));
        share.sort_by_key(|rule| (rule.system, rule.scope));
        if let Some(setting) = no_share {
            // Before the limits of its own system and of those that come later.
            let system = setting.variable.system;
            let place = share.partition_point(|rule| rule.system < system);
            let rule =
                Rule { name: setting.name.clone(), system, scope: Scope::Every, value: None };
            share.insert(place, rule);
        }
        Self { memory, share, off: None }
    }

    /// Lifts all limits, in the name of `variable`.
    pub(super) fn switch_off(&mut self, variable: String) {
        self.off = Some(variable);
    }

    /// `None` where a share was asked for and every one of them is lifted.
    pub(super) fn policy(&self, no_share: Option<&Setting>) -> Policy {
        let lifted = |setting: &Setting| {
            let earlier = |rule: &Rule<Option<u32>>| rule.system < setting.variable.system;
            !self.share.iter().any(|rule| earlier(rule) && rule.value.is_some())
        };
        if no_share.is_some_and(lifted) { Policy::None } else { Policy::Fixed }
    }

    /// Whether a device can have a limit. `policy`: what [`Self::policy`] says.
    pub(super) fn limit_compute(&self, policy: Policy) -> bool {
        let share = policy != Policy::None && self.share.iter().any(|rule| rule.value.is_some());
        self.off.is_none() && share
    }

    pub(super) fn limit_anything(&self, policy: Policy) -> bool {
        self.limit_compute(policy) || (self.off.is_none() && !self.memory.is_empty())
    }

    pub(super) fn need_host_index(&self) -> bool {
        let scopes = self.memory.iter().map(|rule| rule.scope);
        let mut scopes = scopes.chain(self.share.iter().map(|rule| rule.scope));
        self.off.is_none() && scopes.any(|scope| matches!(scope, Scope::HostIndex(_)))
    }

    pub(super) fn decide(&self, device: &DeviceIdentity) -> Limits {
        let mut limits = Limits::default();
        let memory = winner(&self.memory, device, &mut limits);
        let share = winner(&self.share, device, &mut limits);
        if let Some(off) = &self.off {
            let lifted = memory.map(|rule| &rule.name).into_iter();
            let lifted = lifted.chain(share.map(|rule| &rule.name));
            let overruled = |name: &String| Overruled { variable: name.clone(), by: off.clone() };
            return Limits { overruled: lifted.map(overruled).collect(), ..Limits::default() };
        }
        limits.memory_bytes = memory.map(|rule| rule.value);
        limits.memory_source = memory.map(|rule| rule.name.clone());
        limits.share_ppm = share.and_then(|rule| rule.value);
        limits.share_source = share.map(|rule| rule.name.clone());
        limits
    }

    /// The same text for rules of the same names and values.
    pub(super) fn fingerprint(&self) -> String {
        format!("{:?}", (&self.memory, &self.share, &self.off))
    }
}

fn collect<T>(
    settings: &[Setting],
    meaning: Meaning,
    value: impl Fn(&Value) -> Option<T>,
) -> Vec<Rule<T>> {
    let rule = |setting: &Setting| {
        Some(Rule {
            name: setting.name.clone(),
            system: setting.variable.system,
            scope: setting.scope,
            value: value(&setting.value)?,
        })
    };
    settings.iter().filter(|setting| setting.variable.meaning == meaning).filter_map(rule).collect()
}

/// The first rule that is for the device; what it overrules and what is not known go to `limits`.
fn winner<'a, T: PartialEq>(
    rules: &'a [Rule<T>],
    device: &DeviceIdentity,
    limits: &mut Limits,
) -> Option<&'a Rule<T>> {
    let mut winner: Option<&Rule<T>> = None;
    for rule in rules {
        match (is_for(rule.scope, device), winner) {
            (Some(true), None) => winner = Some(rule),
            (Some(true), Some(winner)) if winner.value != rule.value => {
                let by = winner.name.clone();
                limits.overruled.push(Overruled { variable: rule.name.clone(), by });
            }
            (None, None) => limits.unresolved.push(rule.name.clone()),
            _ => {}
        }
    }
    winner
}

/// `None`: not known.
fn is_for(scope: Scope, device: &DeviceIdentity) -> Option<bool> {
    match scope {
        Scope::Every => Some(true),
        Scope::Uuid(uuid) => Some(uuid == device.uuid),
        Scope::HostIndex(index) => device.host_index.map(|known| known == index),
        Scope::VisibleIndex(index) => device.visible_index.map(|known| known == index),
    }
}

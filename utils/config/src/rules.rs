//! Decides which of the configured limits applies to a device.

use super::limits::{DeviceIdentity, DeviceSettings, Overruled};
use super::settings::{Scope, Setting};
use super::value::{self, Value};
use super::variables::{Meaning, System, VARIABLES};
use limits::memory::Part;
use limits::request::{MemoryRequest, Unused};
use limits::units::{Amount, PPM_ONE};
use limits::{GpuId, Limits, Named, Policy, Priority, RequestError, env};

/// A value for some devices.
#[derive(Clone, Debug)]
struct LimitRule<T> {
    name: String,
    system: System,
    scope: Scope,
    value: T,
}

impl<T> LimitRule<T> {
    /// Another value, under the same variable's name.
    fn with<U>(&self, value: U) -> Named<U> {
        Named::new(value, self.name.clone())
    }
}

/// Settings of the process as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Common {
    pub(super) weight: Option<Named<u32>>,
    pub(super) priority: Option<Named<Priority>>,
}

/// Rules in order of priority.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    memory: Vec<LimitRule<Amount>>,
    real: Vec<LimitRule<Amount>>,
    /// In millionths.
    ratio: Vec<LimitRule<u64>>,
    oversold: Vec<LimitRule<bool>>,
    /// In parts per million; `None` lifts the limit.
    share: Vec<LimitRule<Option<u32>>>,
    /// In parts per million.
    soft: Vec<LimitRule<u32>>,
    policy: Option<LimitRule<Policy>>,
    common: Common,
    /// The variable that switches off all limits.
    off: Option<String>,
}

impl Rules {
    /// Extracts the limits from the settings. `policy`: the setting that decides the policy.
    pub(super) fn new(settings: &[Setting], policy: Option<&Setting>, common: Common) -> Self {
        let amount = |value: &Value| match value {
            Value::Amount(amount) => Some(*amount),
            _ => None,
        };
        let mut share = collect(settings, Meaning::ComputeLimit, |value| match value {
            Value::Share(value::Share::Ppm(ppm)) => Some(Some(*ppm)),
            Value::Share(value::Share::Unlimited) => Some(None),
            _ => None,
        });
        let policy = policy.and_then(|setting| match setting.value {
            Value::Policy(policy) => Some(rule(setting, policy)),
            _ => None,
        });
        if let Some(LimitRule { value: Policy::None, system, name, .. }) = &policy {
            // Before the shares of the same dialect and of later ones.
            let place = share.partition_point(|rule| rule.system < *system);
            let lifts =
                LimitRule { name: name.clone(), system: *system, scope: Scope::Every, value: None };
            share.insert(place, lifts);
        }
        Self {
            memory: collect(settings, Meaning::MemoryLimit, amount),
            real: collect(settings, Meaning::MemoryReal, amount),
            ratio: collect(settings, Meaning::MemoryRatio, |value| match value {
                Value::Ratio(millionths) => Some(*millionths),
                _ => None,
            }),
            oversold: collect(settings, Meaning::MemoryOversold, |value| match value {
                Value::Flag(oversold) => Some(*oversold),
                _ => None,
            }),
            share,
            soft: collect(settings, Meaning::SoftLimit, |value| match value {
                Value::Share(value::Share::Ppm(ppm)) => Some(*ppm),
                _ => None,
            }),
            policy,
            common,
            off: None,
        }
    }

    /// Lifts all limits; `variable` is named as the reason.
    pub(super) fn switch_off(&mut self, variable: String) {
        self.off = Some(variable);
    }

    /// The general policy; a device's share may have another one. `None` if shares were set and all of them are lifted.
    pub(super) fn policy(&self) -> Policy {
        let Some(rule) = &self.policy else { return Policy::Fixed };
        let earlier = |share: &LimitRule<Option<u32>>| share.system < rule.system;
        match rule.value {
            Policy::None if self.share.iter().any(|s| earlier(s) && s.value.is_some()) => {
                Policy::Fixed
            }
            policy => policy,
        }
    }

    /// Whether a device's time can be limited, or contradictory settings ask for that.
    pub(super) fn limit_compute(&self) -> bool {
        let share = self.has_shares() || !self.soft.is_empty();
        self.off.is_none() && self.policy() != Policy::None && share
    }

    pub(super) fn limit_anything(&self) -> bool {
        let memory = !self.memory.is_empty() || !self.real.is_empty();
        self.limit_compute() || (self.off.is_none() && memory)
    }

    pub(super) fn has_memory_limits(&self) -> bool {
        !self.memory.is_empty()
    }

    pub(super) fn has_shares(&self) -> bool {
        self.share.iter().any(|rule| rule.value.is_some())
    }

    /// Whether a policy may grant idle time.
    pub(super) fn can_balance(&self) -> bool {
        self.has_shares() && (!self.soft.is_empty() || self.policy() == Policy::Balance)
    }

    /// Whether a setting names a device.
    pub(super) fn name_devices(&self) -> bool {
        self.off.is_none() && self.scopes().into_iter().any(|scope| scope != Scope::Every)
    }

    /// Whether a device's size is needed.
    pub(super) fn need_total(&self) -> bool {
        let mut amounts = self.memory.iter().chain(&self.real);
        let percent = amounts.any(|rule| matches!(rule.value, Amount::Ppm(_)));
        percent || self.oversold.iter().any(|rule| rule.value)
    }

    /// The devices that settings name.
    fn scopes(&self) -> Vec<Scope> {
        fn of<T>(rules: &[LimitRule<T>]) -> impl Iterator<Item = Scope> {
            rules.iter().map(|rule| rule.scope)
        }
        let memory = of(&self.memory).chain(of(&self.real));
        let memory = memory.chain(of(&self.ratio)).chain(of(&self.oversold));
        memory.chain(of(&self.share)).chain(of(&self.soft)).collect()
    }

    /// The limits by kind, with their variables: memory, its part on the device, shares, burst limits. A kind whose
    /// limits are all lifted is empty.
    fn kinds(&self) -> [Vec<(&str, Scope)>; 4] {
        fn of<T>(rules: &[LimitRule<T>]) -> Vec<(&str, Scope)> {
            rules.iter().map(|rule| (rule.name.as_str(), rule.scope)).collect()
        }
        if self.off.is_some() {
            return Default::default();
        }
        let shares = if self.has_shares() { of(&self.share) } else { Vec::new() };
        [of(&self.memory), of(&self.real), shares, of(&self.soft)]
    }

    /// Limits for devices that `is_present` does not find.
    pub(super) fn absent(&self, is_present: impl Fn(Scope) -> bool) -> Vec<String> {
        let all = self.kinds().into_iter().flatten();
        all.filter(|(_, scope)| !is_present(*scope)).map(|(name, _)| name.to_owned()).collect()
    }

    /// Limits of each kind that apply to none of `devices`.
    pub(super) fn for_none_of(&self, devices: &[DeviceIdentity]) -> Vec<String> {
        let is_for_none =
            |scope: Scope| devices.iter().all(|device| is_for(scope, device) == Some(false));
        let kinds = self.kinds().into_iter();
        let idle = kinds.filter(|kind| kind.iter().all(|(_, scope)| is_for_none(*scope)));
        idle.flatten().map(|(name, _)| name.to_owned()).collect()
    }

    /// A contradiction for a named device, or for all devices.
    pub(super) fn conflict(&self) -> Option<RequestError> {
        // Stands for all devices that no setting names.
        let nobody = GpuId::from_bytes([0; 16]);
        let identity = |scope| match scope {
            Scope::Uuid(uuid) => (uuid, None, None),
            Scope::HostIndex(index) => (nobody, Some(index), None),
            Scope::VisibleIndex(index) => (nobody, None, Some(index)),
            Scope::Every => (nobody, None, None),
        };
        self.scopes().into_iter().find_map(|scope| {
            let (uuid, host_index, visible_index) = identity(scope);
            let settings = self.decide(&DeviceIdentity { uuid, host_index, visible_index });
            settings.conflict.filter(|_| settings.unresolved.is_empty())
        })
    }

    pub(super) fn decide(&self, device: &DeviceIdentity) -> DeviceSettings {
        let mut settings = DeviceSettings::default();
        let memory = winner(&self.memory, device, &mut settings);
        let share = winner(&self.share, device, &mut settings);
        if let Some(off) = &self.off {
            let lifted = memory.map(|rule| &rule.name).into_iter();
            let lifted = lifted.chain(share.map(|rule| &rule.name));
            let overruled = lifted.map(|name| overruled(name, off)).collect();
            return DeviceSettings { overruled, ..DeviceSettings::default() };
        }
        settings.request.memory = memory.map(|rule| rule.with(MemoryRequest::Limit(rule.value)));
        settings.request.real = self.real(device, &mut settings);
        self.compute(share, device, &mut settings);
        settings.conflict = settings.request.check(&Limits::NONE, Unused::Ignored).err();
        settings
    }

    /// The part of the memory limit that may be on the device.
    fn real(&self, device: &DeviceIdentity, settings: &mut DeviceSettings) -> Option<Named<Part>> {
        let real = winner(&self.real, device, settings);
        let ratio = winner(&self.ratio, device, settings).filter(|rule| rule.value > ONE);
        let oversold = winner(&self.oversold, device, settings).filter(|rule| rule.value);
        let real = real.map(|rule| rule.with(Part::Amount(rule.value)));
        if settings.request.memory.is_none() {
            // Ratio and oversold flag only modify a limit. A warning says that they have no effect.
            return real;
        }
        let ratio = ratio.map(|rule| rule.with(Part::Ratio(rule.value)));
        let oversold = oversold.map(|rule| rule.with(Part::Device));
        let mut set = [real, ratio, oversold].into_iter().flatten();
        let holds = set.next()?;
        settings.overruled.extend(set.map(|other| overruled(&other.name, &holds.name)));
        Some(holds)
    }

    /// The share, and its policy.
    fn compute(
        &self,
        share: Option<&LimitRule<Option<u32>>>,
        device: &DeviceIdentity,
        settings: &mut DeviceSettings,
    ) {
        let mut soft = winner(&self.soft, device, settings);
        // A dialect's settings apply to its own shares and to those of later dialects.
        if let (Some(limit), Some(share)) = (soft, share)
            && share.system < limit.system
        {
            settings.overruled.push(overruled(&limit.name, &share.name));
            soft = None;
        }
        let mut policy = self.policy.as_ref().filter(|policy| {
            policy.value != Policy::None && share.is_none_or(|share| policy.system <= share.system)
        });
        // Within a dialect only one of the two can be meant.
        if let (Some(limit), Some(fixed)) = (soft, policy)
            && fixed.value == Policy::Fixed
        {
            if fixed.system < limit.system {
                settings.overruled.push(overruled(&limit.name, &fixed.name));
                soft = None;
            } else if fixed.system > limit.system {
                settings.overruled.push(overruled(&fixed.name, &limit.name));
                policy = None;
            }
        }
        let lifts = share.filter(|share| share.value.is_none());
        if let (Some(limit), Some(lifts)) = (soft, lifts)
            && lifts.system <= limit.system
        {
            // Lifted deliberately, by the same dialect or an earlier one.
            settings.overruled.push(overruled(&limit.name, &lifts.name));
            soft = None;
        }
        let request = &mut settings.request;
        request.share = share.and_then(|rule| Some(rule.with(rule.value?)));
        request.soft = soft.map(|rule| rule.with(rule.value));
        if let Some(limit) = soft {
            request.names.share = share_of(limit.system);
        } else if let Some(lifts) = lifts {
            request.policy = Some(lifts.with(Policy::None));
        }
        if request.share.is_some() {
            request.policy = policy.map(|rule| rule.with(rule.value));
            request.weight = self.common.weight.clone();
            request.priority = self.common.priority.clone();
        }
    }

    /// A text that is equal for rules with equal names and values that limit `devices` equally.
    ///
    /// A device whose index differs between this process and the node may have other limits here than in other
    /// processes, so such a device's limits are appended. Processes with equal texts share a session.
    pub(super) fn fingerprint(&self, devices: &[DeviceIdentity]) -> String {
        // Only names and values: the next version of the library must find the same session.
        let mut text = String::new();
        describe(&mut text, &self.memory);
        describe(&mut text, &self.real);
        describe(&mut text, &self.ratio);
        describe(&mut text, &self.oversold);
        describe(&mut text, &self.share);
        describe(&mut text, &self.soft);
        describe(&mut text, self.policy.as_slice());
        let weight = self.common.weight.as_ref().map(|weight| weight.value);
        let priority = self.common.priority.as_ref().map(|priority| priority.value);
        text += &format!("{weight:?} {priority:?} {:?}", self.off);
        let visible = |scope| matches!(scope, Scope::VisibleIndex(_));
        if !self.scopes().into_iter().any(visible) {
            return text;
        }
        let values = |device: &DeviceIdentity| {
            let DeviceSettings { request, unresolved, .. } = self.decide(device);
            unresolved.is_empty().then(|| request.values())
        };
        for device in devices {
            let of_node = DeviceIdentity { visible_index: device.host_index, ..*device };
            if let Some(own) = values(device)
                && values(&of_node).as_ref() != Some(&own)
            {
                text += &format!("\n{}={own}", device.uuid);
            }
        }
        text
    }
}

fn describe<T: core::fmt::Debug>(text: &mut String, rules: &[LimitRule<T>]) {
    for rule in rules {
        *text += &format!("{}={:?};", rule.name, rule.value);
    }
    *text += "\n";
}

/// A ratio without effect.
const ONE: u64 = PPM_ONE as u64;

fn overruled(variable: &str, by: &str) -> Overruled {
    Overruled { variable: variable.to_owned(), by: by.to_owned() }
}

/// The variable that sets the share to which a dialect's other settings belong.
fn share_of(system: System) -> &'static str {
    let mut shares = VARIABLES.iter().filter(|row| row.meaning == Meaning::ComputeLimit);
    shares.find(|row| row.system >= system).map_or(env::COMPUTE_LIMIT, |row| row.name)
}

fn rule<T>(setting: &Setting, value: T) -> LimitRule<T> {
    let (system, scope) = (setting.variable.system, setting.scope);
    LimitRule { name: setting.name.clone(), system, scope, value }
}

fn collect<T>(
    settings: &[Setting],
    meaning: Meaning,
    value: impl Fn(&Value) -> Option<T>,
) -> Vec<LimitRule<T>> {
    let of_meaning = settings.iter().filter(|setting| setting.variable.meaning == meaning);
    let mut rules: Vec<LimitRule<T>> =
        of_meaning.filter_map(|setting| Some(rule(setting, value(&setting.value)?))).collect();
    rules.sort_by_key(|rule| (rule.system, rule.scope));
    rules
}

/// The first rule for the device. Overruled rules, and rules whose device is unknown, go to `settings`.
fn winner<'a, T: PartialEq>(
    rules: &'a [LimitRule<T>],
    device: &DeviceIdentity,
    settings: &mut DeviceSettings,
) -> Option<&'a LimitRule<T>> {
    let mut winner: Option<&LimitRule<T>> = None;
    for rule in rules {
        match (is_for(rule.scope, device), winner) {
            (Some(true), None) => winner = Some(rule),
            (Some(true), Some(winner)) if winner.value != rule.value => {
                let by = winner.name.clone();
                settings.overruled.push(Overruled { variable: rule.name.clone(), by });
            }
            (None, None) => settings.unresolved.push(rule.name.clone()),
            _ => {}
        }
    }
    winner
}

/// Whether a rule applies to the device; `None`: unknown.
fn is_for(scope: Scope, device: &DeviceIdentity) -> Option<bool> {
    match scope {
        Scope::Every => Some(true),
        Scope::Uuid(uuid) => Some(uuid == device.uuid),
        Scope::HostIndex(index) => device.host_index.map(|known| known == index),
        Scope::VisibleIndex(index) => device.visible_index.map(|known| known == index),
    }
}

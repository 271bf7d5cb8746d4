//! Which of the set limits holds for a device.

use super::limits::{DeviceIdentity, Limits, Overruled, Real, Share, Sourced};
use super::settings::{Scope, Setting};
use super::value::{self, Value};
use super::variables::{Meaning, System};
use limits::units::{Amount, PPM_ONE, Percent, default_weight};
use limits::uuid::DeviceUuid;
use limits::{Policy, Priority};

/// One value for some devices.
#[derive(Clone, Debug)]
struct Rule<T> {
    name: String,
    system: System,
    scope: Scope,
    value: T,
}

impl<T: Copy> Rule<T> {
    fn outcome(&self) -> Sourced<T> {
        Sourced { value: self.value, source: self.name.clone() }
    }
}

/// What is set for the process and not for a device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Common {
    pub(super) weight: Option<u32>,
    pub(super) priority: Priority,
}

/// Rules in order of priority.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    memory: Vec<Rule<Amount>>,
    real: Vec<Rule<Amount>>,
    /// Millionths.
    ratio: Vec<Rule<u64>>,
    oversold: Vec<Rule<bool>>,
    /// Parts per million; `None` lifts the limit.
    share: Vec<Rule<Option<u32>>>,
    /// Parts per million.
    soft: Vec<Rule<u32>>,
    policy: Option<Rule<Policy>>,
    common: Common,
    /// The variable that switches all limits off.
    off: Option<String>,
}

impl Rules {
    /// Takes the limits out of the settings. `policy`: the setting that decides about it.
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
        if let Some(Rule { value: Policy::None, system, name, .. }) = &policy {
            // Before the limits of its own system and of those that come later.
            let place = share.partition_point(|rule| rule.system < *system);
            let lifts =
                Rule { name: name.clone(), system: *system, scope: Scope::Every, value: None };
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

    /// Lifts all limits, in the name of `variable`.
    pub(super) fn switch_off(&mut self, variable: String) {
        self.off = Some(variable);
    }

    /// The policy in general; a device's share may have another one. `None` where a share was asked
    /// for and every one of them is lifted.
    pub(super) fn policy(&self) -> Policy {
        let Some(rule) = &self.policy else { return Policy::Fixed };
        let earlier = |share: &Rule<Option<u32>>| share.system < rule.system;
        match rule.value {
            Policy::None if self.share.iter().any(|s| earlier(s) && s.value.is_some()) => {
                Policy::Fixed
            }
            policy => policy,
        }
    }

    /// Whether a device's time can be limited, or is asked to be by settings that cannot be kept.
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

    /// Whether idle time can be given out.
    pub(super) fn can_balance(&self) -> bool {
        self.has_shares() && (!self.soft.is_empty() || self.policy() == Policy::Balance)
    }

    pub(super) fn need_host_index(&self) -> bool {
        self.off.is_none()
            && self.scopes().into_iter().any(|scope| matches!(scope, Scope::HostIndex(_)))
    }

    /// Whether a device's size matters.
    pub(super) fn need_total(&self) -> bool {
        let mut amounts = self.memory.iter().chain(&self.real);
        let percent = amounts.any(|rule| matches!(rule.value, Amount::Ppm(_)));
        percent || self.oversold.iter().any(|rule| rule.value)
    }

    /// The devices that anything is set for.
    fn scopes(&self) -> Vec<Scope> {
        fn of<T>(rules: &[Rule<T>]) -> impl Iterator<Item = Scope> {
            rules.iter().map(|rule| rule.scope)
        }
        let memory = of(&self.memory).chain(of(&self.real));
        let memory = memory.chain(of(&self.ratio)).chain(of(&self.oversold));
        memory.chain(of(&self.share)).chain(of(&self.soft)).collect()
    }

    /// A contradiction that holds for some device that is named, or for every device.
    pub(super) fn conflict(&self) -> Option<String> {
        // Nobody's device stands for those that are not named.
        let nobody = DeviceUuid::from_bytes([0; 16]);
        let identity = |scope| match scope {
            Scope::Uuid(uuid) => (uuid, None, None),
            Scope::HostIndex(index) => (nobody, Some(index), None),
            Scope::VisibleIndex(index) => (nobody, None, Some(index)),
            Scope::Every => (nobody, None, None),
        };
        self.scopes().into_iter().find_map(|scope| {
            let (uuid, host_index, visible_index) = identity(scope);
            let limits = self.decide(&DeviceIdentity { uuid, host_index, visible_index });
            limits.conflict.filter(|_| limits.unresolved.is_empty())
        })
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
        limits.memory = memory.map(Rule::outcome);
        limits.real = self.real(device, &mut limits);
        self.compute(share, device, &mut limits);
        limits
    }

    /// What of the memory limit may be on the device.
    fn real(&self, device: &DeviceIdentity, limits: &mut Limits) -> Option<Sourced<Real>> {
        let real = winner(&self.real, device, limits);
        let ratio = winner(&self.ratio, device, limits).filter(|rule| rule.value > ONE);
        let oversold = winner(&self.oversold, device, limits).filter(|rule| rule.value);
        if limits.memory.is_none() {
            if let Some(real) = real {
                limits.conflict = Some(format!(
                    "{} is set without a memory limit that it is a part of",
                    real.name
                ));
            }
            return None;
        }
        let real = real.map(|rule| Rule::with(rule, Real::Amount(rule.value)));
        let ratio = ratio.map(|rule| Rule::with(rule, Real::Ratio(rule.value)));
        let oversold = oversold.map(|rule| Rule::with(rule, Real::Device));
        let mut set = [real, ratio, oversold].into_iter().flatten();
        let holds = set.next()?;
        limits.overruled.extend(
            set.map(|other| Overruled { variable: other.source, by: holds.source.clone() }),
        );
        Some(holds)
    }

    /// The share, and how it is meant.
    fn compute(
        &self,
        share: Option<&Rule<Option<u32>>>,
        device: &DeviceIdentity,
        limits: &mut Limits,
    ) {
        let mut soft = winner(&self.soft, device, limits);
        let overruled = |variable: &str, by: &str| Overruled {
            variable: variable.to_owned(),
            by: by.to_owned(),
        };
        // A system's settings are for its own shares and for those of later ones.
        if let (Some(limit), Some(share)) = (soft, share)
            && share.system < limit.system
        {
            limits.overruled.push(overruled(&limit.name, &share.name));
            soft = None;
        }
        let policy = self.policy.as_ref().filter(|policy| {
            policy.value != Policy::None && share.is_none_or(|share| policy.system <= share.system)
        });
        if let (Some(limit), Some(policy)) = (soft, policy)
            && policy.value == Policy::Fixed
        {
            if policy.system < limit.system {
                limits.overruled.push(overruled(&limit.name, &policy.name));
                soft = None;
            } else if policy.system == limit.system {
                limits.conflict = Some(format!(
                    "{} asks for idle time, and {} is fixed: set only one of them",
                    limit.name, policy.name
                ));
            } else {
                limits.overruled.push(overruled(&policy.name, &limit.name));
            }
        }
        let Some(share) = share.filter(|share| share.value.is_some()) else {
            if let Some(share) = share {
                limits.share_lifted_by = Some(share.name.clone());
            }
            if let Some(limit) = soft {
                // Lifted on purpose, by the same system or an earlier one.
                match share {
                    Some(lifts) if lifts.system <= limit.system => {
                        limits.overruled.push(overruled(&limit.name, &lifts.name));
                    }
                    _ => {
                        limits.conflict = Some(format!(
                            "{} is set without a share: which part of the device's time is guaranteed?",
                            limit.name
                        ));
                    }
                }
            }
            return;
        };
        let ppm = Sourced { value: share.value.unwrap_or(PPM_ONE), source: share.name.clone() };
        if let Some(limit) = soft
            && limit.value < ppm.value
        {
            limits.conflict = Some(format!(
                "{}: {} is less than the share, {} ({})",
                limit.name,
                Percent(limit.value),
                Percent(ppm.value),
                ppm.source
            ));
        }
        limits.share = Some(Share {
            policy: match (soft, policy) {
                (Some(_), _) => Policy::Balance,
                (None, Some(policy)) => policy.value,
                (None, None) => Policy::Fixed,
            },
            soft_ppm: soft.map(Rule::outcome),
            weight: self.common.weight.unwrap_or(default_weight(ppm.value)),
            priority: self.common.priority,
            ppm,
        });
    }

    /// The same text for rules of the same names and values.
    pub(super) fn fingerprint(&self) -> String {
        format!("{self:?}")
    }
}

/// A ratio that changes nothing.
const ONE: u64 = PPM_ONE as u64;

impl<T> Rule<T> {
    fn with<U>(&self, value: U) -> Sourced<U> {
        Sourced { value, source: self.name.clone() }
    }
}

fn rule<T>(setting: &Setting, value: T) -> Rule<T> {
    let (system, scope) = (setting.variable.system, setting.scope);
    Rule { name: setting.name.clone(), system, scope, value }
}

fn collect<T>(
    settings: &[Setting],
    meaning: Meaning,
    value: impl Fn(&Value) -> Option<T>,
) -> Vec<Rule<T>> {
    let of_meaning = settings.iter().filter(|setting| setting.variable.meaning == meaning);
    let mut rules: Vec<Rule<T>> =
        of_meaning.filter_map(|setting| Some(rule(setting, value(&setting.value)?))).collect();
    rules.sort_by_key(|rule| (rule.system, rule.scope));
    rules
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

//! What a user asks for, from any source, and what a session may then take.
//!
//! A [`Request`] leaves open what the user did not set. It is merged with a session's present
//! limits, or with none. The result is free of contradictions, or an error that uses the user's own
//! names. `sluice run`, `sluice limit` and the limiter's variables all use it.

use core::fmt;

use crate::memory::Part;
use crate::named::{Name, Named, Names};
use crate::units::{Amount, Percent, default_weight};
use crate::{ComputeLimit, Limits, MemoryLimit, Policy, Priority, RequestError};

/// What is asked for, the same for one device or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The names that errors use for missing settings.
    pub names: Names,
    /// Device memory.
    pub memory: Option<Named<MemoryRequest>>,
    /// How much of it may be on the device; the rest is placed on the host.
    pub real: Option<Named<Part>>,
    /// Share of the device's time, in millionths.
    pub share: Option<Named<u32>>,
    /// What the share means. [`Policy::None`] takes the limit away.
    pub policy: Option<Named<Policy>>,
    /// The part of the device's time that is never exceeded, in millionths. It implies
    /// [`Policy::Balance`].
    pub soft: Option<Named<u32>>,
    /// The part of spare time in relation to other sessions'.
    pub weight: Option<Named<u32>>,
    /// Whether others come first.
    pub priority: Option<Named<Priority>>,
}

/// A request for a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryRequest {
    /// This much, and no more.
    Limit(Amount),
    /// No limit any more.
    NoLimit,
}

/// What happens to a setting without effect, such as a weight if no spare time is given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unused {
    /// It is an error: a user who gives an option expects an effect.
    Refused,
    /// It is accepted: a variable can be set for many programs at once.
    Ignored,
}

/// The device that limits are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device<'a> {
    /// Its name in messages.
    pub name: &'a str,
    /// Its memory in bytes, if that is known.
    pub total: Option<u64>,
}

impl Request {
    /// A request for nothing.
    #[must_use]
    pub const fn nothing(names: Names) -> Self {
        Self {
            names,
            memory: None,
            real: None,
            share: None,
            policy: None,
            soft: None,
            weight: None,
            priority: None,
        }
    }

    /// Whether anything is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::nothing(self.names)
    }

    /// A text that is the same for requests of the same memory and share, by whatever settings.
    #[must_use]
    pub fn values(&self) -> String {
        fn value<T: Copy>(named: &Option<Named<T>>) -> Option<T> {
            named.as_ref().map(|named| named.value)
        }
        let memory = (value(&self.memory), value(&self.real));
        format!("{memory:?} {:?}", (value(&self.share), value(&self.policy), value(&self.soft)))
    }

    /// Whether it sets how the session shares with others, which needs a daemon.
    #[must_use]
    pub fn needs_daemon(&self) -> bool {
        let is = |policy: &Named<Policy>| policy.value == Policy::Balance;
        self.soft.is_some()
            || self.policy.as_ref().is_some_and(is)
            || self.priority.as_ref().is_some_and(|priority| priority.value == Priority::Low)
    }

    /// Checks what does not depend on the device: that the settings are possible together, merged
    /// with `before`.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self, before: &Limits, unused: Unused) -> Result<(), RequestError> {
        self.compute_over(before.compute, unused)?;
        let lifted = matches!(&self.memory, Some(asked) if asked.value == MemoryRequest::NoLimit);
        let limited = before.memory.is_some() || self.memory.is_some();
        if let Some(real) = &self.real
            && (lifted || !limited)
        {
            return Err(self.real_without_limit(real));
        }
        match (&self.memory, &self.real) {
            (
                Some(Named { value: MemoryRequest::Limit(Amount::Bytes(limit)), name }),
                Some(Named { value: Part::Amount(Amount::Bytes(part)), name: real }),
            ) if part > limit => Err(RequestError::RealAboveLimit {
                real: Named::new(*part, real.clone()),
                limit: Named::new(*limit, name.clone()),
            }),
            _ => Ok(()),
        }
    }

    /// What a session that may take `before` of a device may take from now on. Asking for the same
    /// again changes nothing more.
    ///
    /// # Errors
    /// As [`check`](Self::check). Also if a percentage of the device comes to nothing, or the
    /// device's size is not known.
    pub fn over(
        &self,
        before: &Limits,
        device: Device<'_>,
        unused: Unused,
    ) -> Result<Limits, RequestError> {
        self.check(before, unused)?;
        Ok(Limits {
            memory: self.memory_over(before.memory, device)?,
            compute: self.compute_over(before.compute, unused)?,
        })
    }

    /// Checks that the memory in `limits`, which this request led to, is not more than the device
    /// has: that would be no limit. Variables may ask for it nevertheless.
    ///
    /// # Errors
    /// [`RequestError::AboveDevice`]
    pub fn fits(&self, limits: &Limits, device: Device<'_>) -> Result<(), RequestError> {
        let asks = self.memory.is_some() || self.real.is_some();
        let (true, Some(memory), Some(total)) = (asks, limits.memory, device.total) else {
            return Ok(());
        };
        if memory.on_device() <= total {
            return Ok(());
        }
        let (asked, host) = match &self.real {
            Some(real) => (Named::new(memory.on_device(), real.name.clone()), None),
            None => {
                let name = name_of(&self.memory, self.names.memory);
                (Named::new(memory.limit, name), Some(self.names.real))
            }
        };
        Err(RequestError::AboveDevice { asked, device: device.name.to_owned(), total, host })
    }

    fn memory_over(
        &self,
        before: Option<MemoryLimit>,
        device: Device<'_>,
    ) -> Result<Option<MemoryLimit>, RequestError> {
        let bytes = |amount: Amount, name: &Name| match amount.of(device.total) {
            Some(0) => Err(RequestError::Nothing {
                name: name.clone(),
                amount,
                device: device.name.to_owned(),
            }),
            Some(bytes) => Ok(bytes),
            None => Err(unknown_size(name, &amount, device)),
        };
        let mut after = match &self.memory {
            None => before,
            Some(Named { value: MemoryRequest::NoLimit, .. }) => None,
            Some(Named { value: MemoryRequest::Limit(amount), name }) => Some(MemoryLimit {
                limit: bytes(*amount, name)?,
                real: before.and_then(|before| before.real),
            }),
        };
        let Some(asked) = &self.real else { return Ok(after) };
        let Some(memory) = &mut after else { return Err(self.real_without_limit(asked)) };
        let part = match asked.value {
            Part::Amount(amount) => bytes(amount, &asked.name)?,
            part => part
                .of(memory.limit, device.total)
                .ok_or_else(|| unknown_size(&asked.name, &part, device))?,
        };
        // The device's size is what there is, not an amount that was asked for.
        if part > memory.limit && asked.value != Part::Device {
            return Err(RequestError::RealAboveLimit {
                real: Named::new(part, asked.name.clone()),
                limit: Named::new(
                    memory.limit,
                    name_of(&self.memory, "the present memory limit of"),
                ),
            });
        }
        memory.real = Some(part);
        Ok(after)
    }

    fn compute_over(
        &self,
        before: ComputeLimit,
        unused: Unused,
    ) -> Result<ComputeLimit, RequestError> {
        if let Some(Named { value: Policy::None, name }) = &self.policy {
            let others: Vec<Name> = self.names_beside_policy().cloned().collect();
            if unused == Unused::Refused && !others.is_empty() {
                return Err(RequestError::NoneBesideOthers { policy: name.clone(), others });
            }
            return Ok(ComputeLimit::NONE);
        }
        let mut limit = match (before.is_limit(), &self.share) {
            (true, _) => before,
            (false, Some(share)) => ComputeLimit {
                weight: default_weight(share.value),
                ..ComputeLimit::fixed(share.value)
            },
            (false, None) => return self.without_share(unused).map(|()| before),
        };
        if let (Some(soft), Some(Named { value: Policy::Fixed, name })) = (&self.soft, &self.policy)
        {
            return Err(RequestError::SoftUnderFixed {
                soft: soft.name.clone(),
                policy: name.clone(),
            });
        }
        let had_default = limit.weight == default_weight(limit.share_ppm);
        if let Some(share) = &self.share {
            limit.share_ppm = share.value;
        }
        match self.policy.as_ref().map(|policy| policy.value) {
            Some(Policy::Fixed) => (limit.policy, limit.soft_ppm) = (Policy::Fixed, None),
            Some(policy) => limit.policy = policy,
            None => {}
        }
        if let Some(soft) = &self.soft {
            (limit.policy, limit.soft_ppm) = (Policy::Balance, Some(soft.value));
        }
        let asks = self.names_beside_policy().next().is_some() || self.policy.is_some();
        if let Some(soft) = limit.soft_ppm.filter(|soft| asks && *soft < limit.share_ppm) {
            return Err(RequestError::SoftBelowShare {
                soft: Named::new(soft, name_of(&self.soft, "the present burst limit of")),
                share: Named::new(limit.share_ppm, name_of(&self.share, "the present share of")),
            });
        }
        limit.weight = match &self.weight {
            Some(weight) if limit.policy != Policy::Balance && unused == Unused::Refused => {
                return Err(RequestError::WeightWithoutBalance {
                    weight: weight.name.clone(),
                    balance: self.names.balance,
                });
            }
            Some(weight) => weight.value,
            None if had_default => default_weight(limit.share_ppm),
            None => limit.weight,
        };
        if let Some(priority) = &self.priority {
            limit.priority = priority.value;
        }
        Ok(limit)
    }

    /// Checks settings that need a share, if there is none and none is asked for.
    fn without_share(&self, unused: Unused) -> Result<(), RequestError> {
        let policy = self.policy.as_ref().map(|policy| &policy.name);
        // A burst limit is a limit, so it is never ignored.
        let needing = match unused {
            Unused::Refused => policy.or_else(|| self.names_beside_policy().next()),
            Unused::Ignored => self.soft.as_ref().map(|soft| &soft.name),
        };
        match needing {
            Some(name) => {
                Err(RequestError::NeedsShare { name: name.clone(), share: self.names.share })
            }
            None => Ok(()),
        }
    }

    /// The settings of the device's time, apart from the policy.
    fn names_beside_policy(&self) -> impl Iterator<Item = &Name> {
        let share = self.share.as_ref().map(|share| &share.name);
        let soft = self.soft.as_ref().map(|soft| &soft.name);
        let weight = self.weight.as_ref().map(|weight| &weight.name);
        let priority = self.priority.as_ref().map(|priority| &priority.name);
        [share, soft, weight, priority].into_iter().flatten()
    }

    fn real_without_limit(&self, real: &Named<Part>) -> RequestError {
        RequestError::RealWithoutLimit { real: real.name.clone(), memory: self.names.memory }
    }
}

fn name_of<T>(setting: &Option<Named<T>>, otherwise: &'static str) -> Name {
    setting.as_ref().map_or(Name::Borrowed(otherwise), |setting| setting.name.clone())
}

fn unknown_size(name: &Name, what: &dyn fmt::Display, device: Device<'_>) -> RequestError {
    RequestError::UnknownSize {
        name: name.clone(),
        what: what.to_string(),
        device: device.name.to_owned(),
    }
}

impl fmt::Display for MemoryRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(amount) => amount.fmt(f),
            Self::NoLimit => f.write_str("unlimited"),
        }
    }
}

impl fmt::Display for Request {
    /// What is asked for and which setting did so, as in `memory 8GiB (CUDA_MEM_LIMIT), compute
    /// unlimited`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.memory {
            Some(memory) => write!(f, "memory {memory}")?,
            None => f.write_str("memory unlimited")?,
        }
        if let Some(real) = &self.real {
            write!(f, ", on the device {real}")?;
        }
        let (share, policy) = match (&self.share, &self.policy) {
            (_, Some(Named { value: Policy::None, name })) => {
                return write!(f, ", compute unlimited ({name})");
            }
            (None, _) => return f.write_str(", compute unlimited"),
            (Some(share), policy) => (share, policy),
        };
        write!(f, ", compute {} ({})", Percent(share.value), share.name)?;
        let balances = policy.as_ref().is_some_and(|policy| policy.value == Policy::Balance);
        if balances || self.soft.is_some() {
            f.write_str(" guaranteed")?;
            if let Some(soft) = &self.soft {
                write!(f, ", at most {} ({})", Percent(soft.value), soft.name)?;
            }
            let set = self.weight.as_ref().map(|weight| weight.value);
            write!(f, ", weight {}", set.unwrap_or(default_weight(share.value)))?;
        }
        match &self.priority {
            Some(priority) if priority.value == Priority::Low => f.write_str(", priority low"),
            _ => Ok(()),
        }
    }
}

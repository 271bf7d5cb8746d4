//! Limits that a user asks for, from any source, and their merge with a session's limits.
//!
//! A [`Request`] leaves open what the user did not set. It is merged with the session's present limits, or with none.
//! The result is consistent, or an error with the user's own names. Used by `sluice run`, `sluice limit`, the daemon's
//! API and the limiter's variables.

use core::fmt;

use crate::memory::Part;
use crate::named::{Name, Named, Names};
use crate::units::{Amount, Percent, default_weight};
use crate::{ComputeLimit, Limits, MemoryLimit, Policy, Priority, RequestError};

/// Requested limits, for one or several devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Names that errors use for missing settings.
    pub names: Names,
    /// Device memory.
    pub memory: Option<Named<MemoryRequest>>,
    /// The part of the memory that may be on the device; the rest is placed on the host.
    pub real: Option<Named<Part>>,
    /// Share of the device's time, in millionths.
    pub share: Option<Named<u32>>,
    /// The meaning of the share. [`Policy::None`] removes the limit.
    pub policy: Option<Named<Policy>>,
    /// The burst limit, in millionths. Implies [`Policy::Balance`].
    pub soft: Option<Named<u32>>,
    /// Weight for dividing idle time among sessions.
    pub weight: Option<Named<u32>>,
    /// Whether sessions of high priority come first.
    pub priority: Option<Named<Priority>>,
}

/// A request for a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryRequest {
    /// At most this amount.
    Limit(Amount),
    /// Removes the limit.
    NoLimit,
}

/// How to treat a setting without effect, such as a weight without idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unused {
    /// As an error: a user who gives an option expects an effect.
    Refused,
    /// Accepts it: a variable may be set for many programs at once.
    Ignored,
}

/// A device to be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device<'a> {
    /// The device's name in messages.
    pub name: &'a str,
    /// The device's memory in bytes, if known.
    pub total: Option<u64>,
}

impl Request {
    /// An empty request.
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

    /// Whether nothing is requested.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::nothing(self.names)
    }

    /// A text that is equal for requests of equal memory and share, whichever settings they used.
    #[must_use]
    pub fn values(&self) -> String {
        fn value<T: Copy>(named: &Option<Named<T>>) -> Option<T> {
            named.as_ref().map(|named| named.value)
        }
        let memory = (value(&self.memory), value(&self.real));
        format!("{memory:?} {:?}", (value(&self.share), value(&self.policy), value(&self.soft)))
    }

    /// Whether the request concerns sharing among sessions, which needs a daemon.
    #[must_use]
    pub fn needs_daemon(&self) -> bool {
        let is = |policy: &Named<Policy>| policy.value == Policy::Balance;
        self.soft.is_some()
            || self.policy.as_ref().is_some_and(is)
            || self.priority.as_ref().is_some_and(|priority| priority.value == Priority::Low)
    }

    /// Checks everything that does not depend on the device: that the settings, merged with `before`, are consistent.
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

    /// Merges the request with a session's present limits on a device. Merging the same request again changes nothing.
    ///
    /// # Errors
    /// As [`check`](Self::check). Also if a percentage of the device amounts to nothing, or needs an unknown size.
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

    /// Checks that the merged memory limit does not exceed the device's memory: it would limit nothing. Not called for
    /// variables, which may do so.
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
        // The size of the device is an upper bound, not a requested amount.
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

    /// Checks settings that need a share, if none is set or requested.
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

    /// Names of the compute settings other than the policy.
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
    /// Requested values with their settings, such as `memory 8GiB (CUDA_MEM_LIMIT), compute unlimited`.
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

//! From options to the variables that the limiter reads.

use limits::env;
use limits::units::{Amount, PPM_PER_PERCENT, Percent, Size};
use serde_json::{Map, Value};

use super::Error;
use super::cli::{PolicyArg, PriorityArg};
use super::devices::Device;

/// What a session may take on each of its devices. `None` leaves the user's own variables alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Device memory.
    pub memory: Option<Amount>,
    /// How much of it may be on the device; the rest is placed on the host.
    pub memory_real: Option<Amount>,
    /// Millionths of the device's time.
    pub compute: Option<u32>,
    /// How the share is meant.
    pub policy: Option<PolicyArg>,
    /// Millionths of the device's time that are never exceeded.
    pub soft: Option<u32>,
    /// Part of idle time.
    pub weight: Option<u32>,
    /// Whether others come first.
    pub priority: Option<PriorityArg>,
}

fn usage<T>(problem: impl Into<String>) -> Result<T, Error> {
    Err(Error::Usage(problem.into()))
}

impl Limits {
    /// Checks that the options can be meant together, and on these devices.
    ///
    /// # Errors
    /// [`Error::Usage`] for a setting that would not be kept, or for more memory than a device has,
    /// which would be no limit at all.
    pub fn check(&self, devices: &[Device]) -> Result<(), Error> {
        self.check_compute()?;
        match (self.memory, self.memory_real) {
            (None, Some(_)) => {
                return usage("--mem-real without --mem: which limit is it a part of?");
            }
            (Some(Amount::Bytes(memory)), Some(Amount::Bytes(real))) if real > memory => {
                return usage(format!(
                    "--mem-real {} is more than --mem {}",
                    Size(real),
                    Size(memory)
                ));
            }
            _ => {}
        }
        devices.iter().try_for_each(|device| self.check_memory(device.memory, &device.title()))
    }

    /// What needs nothing but the options.
    fn check_compute(&self) -> Result<(), Error> {
        let balance = self.policy == Some(PolicyArg::Balance) || self.soft.is_some();
        let Some(share) = self.compute else {
            let without = [
                (self.policy == Some(PolicyArg::Balance), "--policy balance"),
                (self.soft.is_some(), "--soft"),
                (self.weight.is_some(), "--weight"),
                (self.priority.is_some(), "--priority"),
            ];
            return match without.iter().find(|(set, _)| *set) {
                Some((_, option)) => usage(format!(
                    "{option} needs --compute: the share of the device's time that is guaranteed"
                )),
                None => Ok(()),
            };
        };
        if self.policy == Some(PolicyArg::None) {
            return usage(
                "--compute with --policy none: the share would not be enforced; leave one out",
            );
        }
        if self.policy == Some(PolicyArg::Fixed) && self.soft.is_some() {
            return usage("--soft with --policy fixed: there is no idle time to be limited");
        }
        if self.weight.is_some() && !balance {
            return usage("--weight is for idle time: it needs --policy balance or --soft");
        }
        match self.soft {
            Some(soft) if soft < share => {
                usage(format!("--soft {} is less than --compute {}", Percent(soft), Percent(share)))
            }
            _ => Ok(()),
        }
    }

    /// Whether they say what the session gets beside others, which a daemon decides.
    #[must_use]
    pub fn need_daemon(&self) -> bool {
        self.soft.is_some()
            || self.policy == Some(PolicyArg::Balance)
            || self.priority == Some(PriorityArg::Low)
    }

    /// Checks the memory limit against a device of `total` bytes that is called `title`.
    ///
    /// # Errors
    /// [`Error::Usage`]
    pub fn check_memory(&self, total: u64, title: &str) -> Result<(), Error> {
        let has = format!("{title} has, {total} bytes ({} MiB)", total >> 20);
        let bytes = |amount: Amount| amount.of(Some(total)).unwrap_or(u64::MAX);
        let Some(memory) = self.memory.map(bytes) else { return Ok(()) };
        let Some(real) = self.memory_real.map(bytes) else {
            return match memory {
                0 => usage(format!("--mem is nothing of what {has}")),
                memory if memory > total => usage(format!(
                    "--mem {memory} bytes is more than {has}; with --mem-real the rest is placed on \
                     the host"
                )),
                _ => Ok(()),
            };
        };
        if real == 0 || memory == 0 {
            return usage(format!("--mem or --mem-real is nothing of what {has}"));
        }
        if real > total {
            return usage(format!("--mem-real {real} bytes is more than {has}"));
        }
        if real > memory {
            return usage(format!(
                "--mem-real {real} bytes is more than --mem {memory} on {title}"
            ));
        }
        Ok(())
    }

    /// The variables to set (`Some`) or to remove (`None`), for a session on `devices`.
    #[must_use]
    pub fn variables(&self, devices: &[Device]) -> Vec<(&'static str, Option<String>)> {
        let mut variables = Vec::new();
        let mut of_devices = |name, value: Option<Value>| {
            variables.push((name, value.map(|value| by_uuid(devices, &value))));
        };
        if let Some(memory) = self.memory {
            of_devices(env::MEMORY_LIMIT, Some(amount(memory)));
            // The user's own part is of another whole.
            of_devices(env::MEMORY_REAL, self.memory_real.map(amount));
        }
        if let Some(ppm) = self.compute {
            of_devices(env::COMPUTE_LIMIT, Some(percent(ppm)));
            of_devices(env::SOFT_LIMIT, self.soft.map(percent));
            variables.push((env::WEIGHT, self.weight.map(|weight| weight.to_string())));
            let priority = self.priority.map(|priority| priority.name().to_owned());
            variables.push((env::PRIORITY, priority));
        }
        // A share asked for here is enforced, whatever the environment says about the policy.
        let implied = if self.soft.is_some() { PolicyArg::Balance } else { PolicyArg::Fixed };
        let policy = self.policy.or(self.compute.map(|_| implied));
        if let Some(policy) = policy {
            variables.push((env::POLICY, Some(policy.name().to_owned())));
        }
        variables
    }
}

fn by_uuid(devices: &[Device], value: &Value) -> String {
    let object: Map<_, _> =
        devices.iter().map(|device| (device.uuid.clone(), value.clone())).collect();
    Value::Object(object).to_string()
}

fn amount(amount: Amount) -> Value {
    match amount {
        Amount::Bytes(bytes) => Value::from(bytes),
        Amount::Ppm(ppm) => Value::from(Percent(ppm).to_string()),
    }
}

fn percent(ppm: u32) -> Value {
    if ppm.is_multiple_of(PPM_PER_PERCENT) {
        Value::from(ppm / PPM_PER_PERCENT)
    } else {
        Value::from(f64::from(ppm) / f64::from(PPM_PER_PERCENT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<Device> {
        ["GPU-a", "GPU-b"]
            .iter()
            .zip(0..)
            .map(|(uuid, index)| Device {
                index,
                uuid: (*uuid).to_owned(),
                name: "Test".to_owned(),
                memory: 1 << 30,
            })
            .collect()
    }

    fn bytes(memory: u64) -> Limits {
        Limits { memory: Some(Amount::Bytes(memory)), ..Limits::default() }
    }

    #[test]
    fn limits_are_per_device() {
        let limits = Limits { compute: Some(125_000), ..bytes(1 << 20) };
        assert_eq!(
            limits.variables(&devices()),
            [
                (env::MEMORY_LIMIT, Some(r#"{"GPU-a":1048576,"GPU-b":1048576}"#.to_owned())),
                (env::MEMORY_REAL, None),
                (env::COMPUTE_LIMIT, Some(r#"{"GPU-a":12.5,"GPU-b":12.5}"#.to_owned())),
                (env::SOFT_LIMIT, None),
                (env::WEIGHT, None),
                (env::PRIORITY, None),
                (env::POLICY, Some("fixed".to_owned())),
            ]
        );
        let limits = Limits { compute: Some(300_000), ..Limits::default() };
        assert_eq!(limits.variables(&devices()[..1])[0].1.as_deref(), Some(r#"{"GPU-a":30}"#));
        assert_eq!(Limits::default().variables(&devices()), []);
    }

    #[test]
    fn each_option_has_its_variable() {
        let limits = Limits {
            memory: Some(Amount::Ppm(125_000)),
            memory_real: Some(Amount::Ppm(100_000)),
            compute: Some(300_000),
            soft: Some(600_000),
            weight: Some(7),
            priority: Some(PriorityArg::Low),
            policy: None,
        };
        assert!(limits.check(&devices()).is_ok());
        let one = |text: &str| Some(text.to_owned());
        assert_eq!(
            limits.variables(&devices()[..1]),
            [
                (env::MEMORY_LIMIT, one(r#"{"GPU-a":"12.5%"}"#)),
                (env::MEMORY_REAL, one(r#"{"GPU-a":"10%"}"#)),
                (env::COMPUTE_LIMIT, one(r#"{"GPU-a":30}"#)),
                (env::SOFT_LIMIT, one(r#"{"GPU-a":60}"#)),
                (env::WEIGHT, one("7")),
                (env::PRIORITY, one("low")),
                (env::POLICY, one("balance")),
            ]
        );
    }

    #[test]
    fn a_limit_that_limits_nothing_is_refused() {
        assert!(bytes(1 << 30).check(&devices()).is_ok());
        let more = bytes((1 << 30) + 1);
        let message = more.check(&devices()).unwrap_err().to_string();
        assert!(message.contains("1073741824 bytes (1024 MiB)"), "{message}");
        assert!(message.contains("--mem-real"), "{message}");
        let hosted = Limits { memory_real: Some(Amount::Bytes(1 << 30)), ..more };
        assert!(hosted.check(&devices()).is_ok());
    }

    #[test]
    fn what_cannot_be_meant_together_is_refused() {
        let share = Limits { compute: Some(300_000), ..Limits::default() };
        let none = Limits::default();
        let (balance, fixed) = (Some(PolicyArg::Balance), Some(PolicyArg::Fixed));
        let (mib, gib) = (Some(Amount::Bytes(1 << 20)), Some(Amount::Bytes(1 << 30)));
        let half = Some(Amount::Ppm(500_000));
        for (limits, named) in [
            (Limits { policy: Some(PolicyArg::None), ..share }, "--policy none"),
            (Limits { policy: balance, ..none }, "--policy balance needs --compute"),
            (Limits { soft: Some(1), ..none }, "--soft needs --compute"),
            (Limits { weight: Some(1), ..none }, "--weight needs --compute"),
            (Limits { priority: Some(PriorityArg::Low), ..none }, "--priority needs"),
            (Limits { soft: Some(600_000), policy: fixed, ..share }, "--policy fixed"),
            (Limits { soft: Some(299_999), ..share }, "less than --compute 30%"),
            (Limits { weight: Some(2), ..share }, "--weight is for idle time"),
            (Limits { memory_real: gib, ..none }, "--mem-real without --mem"),
            (Limits { memory: mib, memory_real: gib, ..none }, "more than --mem 1MiB"),
            (Limits { memory: mib, memory_real: half, ..none }, "on device 0"),
            (Limits { memory: Some(Amount::Ppm(1)), memory_real: mib, ..none }, "on device 0"),
            (
                Limits {
                    memory: Some(Amount::Bytes(1 << 40)),
                    memory_real: Some(Amount::Bytes(1 << 31)),
                    ..none
                },
                "--mem-real 2147483648 bytes is more than device 0",
            ),
        ] {
            let message = limits.check(&devices()).unwrap_err().to_string();
            assert!(message.contains(named), "{message}");
        }
        assert!(!share.need_daemon() && !bytes(1).need_daemon());
        for fits in [
            Limits { policy: balance, weight: Some(5), ..share },
            Limits { soft: Some(300_000), weight: Some(5), ..share },
            Limits { priority: Some(PriorityArg::Low), ..share },
            Limits { memory: half, memory_real: mib, ..none },
        ] {
            assert!(fits.check(&devices()).is_ok(), "{fits:?}");
        }
    }
}

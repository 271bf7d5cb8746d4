//! From options to the variables that the limiter reads.

use serde_json::{Map, Value};
use utils::env;
use utils::units::PPM_PER_PERCENT;

use super::Error;
use super::cli::PolicyArg;
use super::devices::Device;

/// What a session may take on each of its devices. `None` leaves the user's own variables alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of device memory.
    pub memory: Option<u64>,
    /// Millionths of the device's time.
    pub compute: Option<u32>,
    /// How the share is meant.
    pub policy: Option<PolicyArg>,
}

impl Limits {
    /// Checks that the options can be meant together, and on these devices.
    ///
    /// # Errors
    /// [`Error::Usage`] for a share that would not be enforced, or for more memory than a device
    /// has, which would be no limit at all.
    pub fn check(&self, devices: &[Device]) -> Result<(), Error> {
        if self.policy == Some(PolicyArg::None) && self.compute.is_some() {
            return Err(Error::Usage(
                "--compute with --policy none: the share would not be enforced; leave one out"
                    .to_owned(),
            ));
        }
        let Some(memory) = self.memory else { return Ok(()) };
        match devices.iter().find(|device| memory > device.memory) {
            None => Ok(()),
            Some(device) => Err(Error::Usage(format!(
                "--mem {memory} bytes is more than device {} ({}) has, {} bytes ({} MiB)",
                device.index,
                device.name,
                device.memory,
                device.memory >> 20
            ))),
        }
    }

    /// The variables, for a session on `devices`.
    #[must_use]
    pub fn variables(&self, devices: &[Device]) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        if let Some(bytes) = self.memory {
            variables.push((env::MEMORY_LIMIT, by_uuid(devices, &Value::from(bytes))));
        }
        if let Some(ppm) = self.compute {
            variables.push((env::COMPUTE_LIMIT, by_uuid(devices, &percent(ppm))));
        }
        // A share asked for here is enforced, whatever the environment says about the policy.
        let policy = self.policy.or(self.compute.map(|_| PolicyArg::Fixed));
        if let Some(policy) = policy {
            variables.push((env::POLICY, policy.name().to_owned()));
        }
        variables
    }
}

fn by_uuid(devices: &[Device], value: &Value) -> String {
    let object: Map<_, _> =
        devices.iter().map(|device| (device.uuid.clone(), value.clone())).collect();
    Value::Object(object).to_string()
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

    #[test]
    fn limits_are_per_device() {
        let limits = Limits { memory: Some(1 << 20), compute: Some(125_000), policy: None };
        assert_eq!(
            limits.variables(&devices()),
            [
                (env::MEMORY_LIMIT, r#"{"GPU-a":1048576,"GPU-b":1048576}"#.to_owned()),
                (env::COMPUTE_LIMIT, r#"{"GPU-a":12.5,"GPU-b":12.5}"#.to_owned()),
                (env::POLICY, "fixed".to_owned()),
            ]
        );
        let limits = Limits { compute: Some(300_000), ..Limits::default() };
        assert_eq!(limits.variables(&devices()[..1])[0].1, r#"{"GPU-a":30}"#);
        assert_eq!(Limits::default().variables(&devices()), []);
    }

    #[test]
    fn a_limit_that_limits_nothing_is_refused() {
        let all = Limits { memory: Some(1 << 30), ..Limits::default() };
        assert!(all.check(&devices()).is_ok());
        let more = Limits { memory: Some((1 << 30) + 1), ..Limits::default() };
        let message = more.check(&devices()).unwrap_err().to_string();
        assert!(message.contains("1073741824 bytes (1024 MiB)"), "{message}");
        let contradiction =
            Limits { compute: Some(1), policy: Some(PolicyArg::None), memory: None };
        assert!(contradiction.check(&devices()).is_err());
    }
}

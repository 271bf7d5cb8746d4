//! Effects of each variable, precedence among them, and refusal of hostile values.

mod choices;
mod compute;
mod hostile;
mod overcommitment;
mod priority;
mod rows;

use super::environment::fake::FakeEnvironment;
use super::{Config, ConfigError, DeviceIdentity, DeviceSettings};

pub(super) const UUID: &str = "GPU-3430f778-7a25-704c-9090-8b0bb2478114";
pub(super) const OTHER: &str = "GPU-5a1ce000-0000-4000-8000-000000000001";

pub(super) fn config<const N: usize>(pairs: [(&str, &str); N]) -> Result<Config, ConfigError> {
    Config::from_env(&FakeEnvironment::from(pairs))
}

pub(super) fn device(uuid: &str, host: u32, visible: u32) -> DeviceIdentity {
    DeviceIdentity {
        uuid: uuid.parse().unwrap(),
        host_index: Some(host),
        visible_index: Some(visible),
    }
}

/// Host index 3, visible index 1.
pub(super) fn limits<const N: usize>(pairs: [(&str, &str); N]) -> DeviceSettings {
    config(pairs).unwrap().limits_for(&device(UUID, 3, 1))
}

impl DeviceSettings {
    /// The memory limit on a device of 16 GiB.
    fn bytes(&self) -> Option<u64> {
        self.session(Some(16 << 30)).unwrap().memory.map(|memory| memory.limit)
    }

    /// The share, if there is one.
    fn ppm(&self) -> Option<u32> {
        let compute = self.session(None).unwrap().compute;
        compute.is_limit().then_some(compute.share_ppm)
    }

    fn memory_source(&self) -> Option<&str> {
        self.request.memory.as_ref().map(|memory| memory.name.as_ref())
    }
}

//! Parses a ResourceClaim's `status.allocation.devices`, for devices of any driver. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The devices of a claim, and their configuration.
#[derive(Default, Deserialize)]
pub(crate) struct Devices {
    #[serde(default)]
    pub(crate) results: Vec<Allocated>,
    #[serde(default)]
    config: Vec<Config>,
}

/// A device allocated for a request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Allocated {
    pub(crate) request: String,
    pub(crate) driver: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    #[serde(rename = "shareID")]
    pub(crate) share_id: Option<String>,
    #[serde(default)]
    pub(crate) consumed_capacity: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) admin_access: bool,
    #[serde(default)]
    tolerations: Vec<Toleration>,
}

#[derive(Clone, Debug, Deserialize)]
struct Toleration {
    #[serde(default)]
    key: String,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    requests: Vec<String>,
    opaque: Option<Opaque>,
}

#[derive(Deserialize)]
struct Opaque {
    driver: String,
    parameters: Value,
}

impl Devices {
    /// The configuration for a device's driver, lowest precedence first: that of the device class, then that of the
    /// claim.
    pub(crate) fn parameters(&self, device: &Allocated) -> impl DoubleEndedIterator<Item = &Value> {
        let is_meant = move |requests: &[String]| {
            let names = [&*device.request, device.main_request()];
            requests.is_empty() || requests.iter().any(|one| names.contains(&&**one))
        };
        let meant = self.config.iter().filter(move |one| is_meant(&one.requests));
        let own = meant.filter_map(|one| one.opaque.as_ref());
        own.filter(|one| one.driver == device.driver).map(|one| &one.parameters)
    }
}

impl Allocated {
    /// The request's name in the claim's spec, without the name of the chosen alternative.
    pub(crate) fn main_request(&self) -> &str {
        self.request.split_once('/').map_or(&*self.request, |(main, _)| main)
    }

    /// Whether the device's request tolerates a taint.
    pub(crate) fn tolerates(&self, taint: &str) -> bool {
        self.tolerations.iter().any(|one| one.key.is_empty() || one.key == taint)
    }
}

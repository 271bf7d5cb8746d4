//! What the daemon says of the devices that concerns every session.

use api::{Device, DeviceHealth, DeviceList, Withheld};
use limits::Shown;
use protocol::sessions::GpuReport;

use crate::node::Node;

/// A line for each device on which no leases are granted or that is cordoned, and one if the daemon does not see the devices. Nothing
/// without a daemon.
pub(super) fn troubles(node: &Node) -> Vec<String> {
    let list = node.daemon.as_ref().and_then(|daemon| daemon.devices());
    list.map(|list| told(&list)).unwrap_or_default()
}

/// The devices, for `--json`. None without a daemon.
pub(super) fn gpus(node: &Node) -> Vec<GpuReport> {
    let list = node.daemon.as_ref().and_then(|daemon| daemon.devices());
    let devices = list.map(|list| list.devices).unwrap_or_default();
    devices.iter().filter_map(report).collect()
}

fn report(device: &Device) -> Option<GpuReport> {
    let health = match device.health {
        DeviceHealth::Unknown => "unknown",
        DeviceHealth::Healthy => "healthy",
        DeviceHealth::Unhealthy => "unhealthy",
    };
    let withheld = device.withheld.map(|withheld| match withheld {
        Withheld::Unhealthy => "unhealthy",
        Withheld::UnknownProcess => "unknown_process",
    });
    Some(GpuReport {
        uuid: device.uuid.parse().ok()?,
        index: device.figures.as_ref().map(|figures| figures.index),
        health: health.to_owned(),
        unhealthy: device.unhealthy.clone(),
        withheld: withheld.map(str::to_owned),
        cordoned: device.cordoned,
        unknown_processes: device.unknown,
    })
}

fn told(list: &DeviceList) -> Vec<String> {
    let line = |device: &Device| {
        let cordoned = "cordoned: no new pod gets it, running ones keep it";
        let troubles = trouble(device).into_iter().chain(device.cordoned.then(|| cordoned.into()));
        troubles.map(|trouble| format!("{} is {trouble}", Shown(&device.uuid))).collect::<Vec<_>>()
    };
    blind(list).into_iter().chain(list.devices.iter().flat_map(line)).collect()
}

/// That the daemon does not see the devices, and why.
pub(crate) fn blind(list: &DeviceList) -> Option<String> {
    let why = list.observer.message.as_deref().filter(|_| !list.observer.sees);
    why.map(|why| format!("the daemon does not see the devices: {}", Shown(why)))
}

/// Why no leases are granted on a device.
pub(crate) fn trouble(device: &Device) -> Option<String> {
    if device.health == DeviceHealth::Unhealthy {
        let why = device.unhealthy.as_deref().unwrap_or("reason not reported");
        return Some(format!("UNHEALTHY: {}; the daemon grants no leases on it", Shown(why)));
    }
    let unknown = || match device.unknown_processes.first() {
        Some(process) => format!("process {}", process.pid),
        None => "a process".to_owned(),
    };
    (device.withheld == Some(Withheld::UnknownProcess)).then(|| {
        format!(
            "withheld: {} on it belongs to no session; the daemon grants no leases on it",
            unknown()
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cordoned_device_is_named_with_its_other_troubles() {
        let uuid = "GPU-5a1ce000-0000-4000-8000-000000000000";
        let sums =
            json!({"sessions": 0, "asking": 0, "leases": 0, "share_ppm": 0, "charged_us": 0});
        let list = json!({"observer": {"sees": true, "unknown_processes": "report"}, "devices": [{
            "uuid": uuid, "state": "idle", "own": sums, "others": sums,
            "cordoned": true, "health": "unhealthy", "unhealthy": "XID 79",
        }]});
        let said = told(&serde_json::from_value(list).unwrap());
        assert_eq!(
            said,
            [
                format!("{uuid} is UNHEALTHY: XID 79; the daemon grants no leases on it"),
                format!("{uuid} is cordoned: no new pod gets it, running ones keep it"),
            ]
        );
    }
}

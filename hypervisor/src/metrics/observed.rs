//! Metrics of devices from the driver. An unreadable figure has no series: a zero would be wrong.

use core::fmt::Error;

use ::limits::GpuId;
use observer::{DeviceReading, DeviceView, ThrottleReason, View};

use super::family::{Families, Labels};
use crate::node::measure::Figures;

fn labels(device: &DeviceView) -> Labels<'static> {
    vec![("uuid", device.reading.uuid.to_string().into())]
}

fn with(device: &DeviceView, name: &'static str, value: impl ToString) -> Labels<'static> {
    let mut labels = labels(device);
    labels.push((name, value.to_string().into()));
    labels
}

fn described(device: &DeviceView) -> Labels<'static> {
    let DeviceReading { index, name, hardware, .. } = &device.reading;
    let mut labels = with(device, "index", index);
    labels.extend(name.as_ref().ok().map(|name| ("name", name.clone().into())));
    labels.extend(hardware.pci.as_ref().ok().map(|pci| ("pci_bus_id", pci.clone().into())));
    labels
}

fn percent(value: u32) -> f64 {
    f64::from(value) / 100.0
}

fn milli(value: u32) -> f64 {
    f64::from(value) / 1e3
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

pub(super) fn tell(view: &View, families: &mut Families<'_>) -> Result<(), Error> {
    families.gauge(
        "sluice_observer_sees",
        "1 if the daemon sees the node's devices through the driver, else 0.",
        [(vec![], flag(view.blind.is_none() && view.seen.is_some()))],
    )?;
    tell_readings(view, families)?;
    let devices = || view.devices.iter();
    families.gauge(
        "sluice_device_info",
        "1; the labels describe the device.",
        devices().map(|device| (described(device), 1.0)),
    )?;
    families.gauge(
        "sluice_device_healthy",
        "1 if the device is healthy, else 0; no leases are granted on an unhealthy device.",
        devices().map(|device| (labels(device), flag(device.health.is_healthy()))),
    )?;
    families.gauge(
        "sluice_device_cordoned",
        "1 if the device is out of service for new pods, else 0.",
        devices().map(|device| (labels(device), flag(device.cordoned))),
    )?;
    families.gauge(
        "sluice_device_throttled",
        "1 if this reason throttles the device, else 0.",
        devices().flat_map(|device| {
            let known = device.reading.throttling.as_ref().ok();
            known.into_iter().flat_map(|active| {
                ThrottleReason::ALL.into_iter().map(|reason| {
                    (with(device, "reason", reason.name()), flag(active.contains(&reason)))
                })
            })
        }),
    )?;
    families.counter(
        "sluice_device_ecc_errors",
        "ECC errors in the device's memory since the driver was loaded.",
        devices().flat_map(|device| {
            let ecc = &device.reading.ecc;
            let kinds = [("corrected", &ecc.corrected), ("uncorrected", &ecc.uncorrected)];
            kinds.into_iter().filter_map(|(kind, count)| {
                Some((with(device, "kind", kind), *count.as_ref().ok()? as f64))
            })
        }),
    )?;
    families.counter(
        "sluice_device_xid_errors",
        "XID errors that the driver reported since the daemon's start, by number.",
        devices().flat_map(|device| {
            let errors = device.xids.iter();
            errors.map(|(xid, &count)| (with(device, "xid", xid.0), count as f64))
        }),
    )?;
    families.gauge(
        "sluice_device_unknown_processes",
        "Processes on the device outside any session: nothing limits them.",
        devices().map(|device| (labels(device), device.unknown.len() as f64)),
    )?;
    families.counter(
        "sluice_device_unknown_processes_seen",
        "Unknown processes seen since the daemon's start.",
        devices().map(|device| (labels(device), device.unknown_seen as f64)),
    )
}

fn tell_readings(view: &View, families: &mut Families<'_>) -> Result<(), Error> {
    type Read = fn(&DeviceReading) -> Option<f64>;
    let gauges: [(&str, &str, Read); 9] = [
        ("sluice_device_memory_total_bytes", "Memory of the device.", |reading| {
            Some(reading.memory.as_ref().ok()?.total as f64)
        }),
        (
            "sluice_device_memory_reserved_bytes",
            "Memory reserved by driver and firmware.",
            |reading| Some(reading.memory.as_ref().ok()?.reserved as f64),
        ),
        (
            "sluice_device_memory_used_bytes",
            "Memory used by processes, as nvidia-smi shows it.",
            |reading| Some(reading.memory.as_ref().ok()?.used as f64),
        ),
        (
            "sluice_device_utilization_ratio",
            "Fraction of the time during which a kernel ran.",
            |reading| Some(percent(reading.utilization.as_ref().ok()?.sm)),
        ),
        (
            "sluice_device_memory_utilization_ratio",
            "Fraction of the time during which the device's memory was read or written.",
            |reading| Some(percent(reading.utilization.as_ref().ok()?.memory)),
        ),
        ("sluice_device_power_watts", "Power draw of the device.", |reading| {
            reading.power_mw.as_ref().ok().copied().map(milli)
        }),
        ("sluice_device_power_limit_watts", "Power limit of the device.", |reading| {
            reading.power_limit_mw.as_ref().ok().copied().map(milli)
        }),
        ("sluice_device_temperature_celsius", "Temperature of the chip.", |reading| {
            reading.temperature_c.as_ref().ok().copied().map(f64::from)
        }),
        ("sluice_device_sm_clock_hertz", "Clock of the multiprocessors.", |reading| {
            reading.clocks.sm_mhz.as_ref().ok().map(|&mhz| f64::from(mhz) * 1e6)
        }),
    ];
    gauges.into_iter().try_for_each(|(name, help, read)| {
        let known = |device: &DeviceView| Some((labels(device), read(&device.reading)?));
        families.gauge(name, help, view.devices.iter().filter_map(known))
    })
}

/// Memory of the sessions' processes according to the driver, which no session can falsify.
pub(super) fn memory_of_sessions(view: &View, figures: &Figures) -> Vec<(usize, GpuId, u64)> {
    let mut sums = Vec::new();
    for (index, session) in figures.sessions.iter().enumerate() {
        for device in &view.devices {
            let processes = device.reading.processes.iter().flatten();
            let own = processes.filter(|process| session.has(process.pid));
            let bytes: Vec<u64> = own.filter_map(|process| process.bytes).collect();
            if !bytes.is_empty() {
                let sum = bytes.iter().fold(0, |sum: u64, &bytes| sum.saturating_add(bytes));
                sums.push((index, device.reading.uuid, sum));
            }
        }
    }
    sums
}

//! Metrics of each device, summed over all sessions.
//!
//! The driver's figures are in [`super::observed`].

use core::fmt::Error;

use ::limits::GpuId;

use super::family::{Families, Labels, ratio, seconds};
use crate::node::measure::{Figures, OnDevice};

fn labels(uuid: GpuId) -> Labels<'static> {
    vec![("uuid", uuid.to_string().into())]
}

pub(super) fn tell(figures: &Figures, families: &mut Families<'_>) -> Result<(), Error> {
    let each = |value: fn(&OnDevice) -> f64| {
        figures.devices.iter().map(move |(&uuid, device)| (labels(uuid), value(device)))
    };
    families.gauge(
        "sluice_device_sessions",
        "Sessions with a share of the device's time.",
        each(|device| device.sessions as f64),
    )?;
    families.gauge(
        "sluice_device_asking_sessions",
        "Sessions waiting for a turn.",
        each(|device| device.asking as f64),
    )?;
    families.gauge("sluice_device_leases", "Leases held.", each(|device| device.leases as f64))?;
    families.gauge(
        "sluice_device_share_ratio",
        "Sum of the sessions' compute shares; above 1 the device is overcommitted.",
        each(|device| ratio(device.share_ppm)),
    )?;
    families.counter(
        "sluice_device_gpu_seconds",
        "Device time charged to sessions with a compute share.",
        each(|device| seconds(device.charged_ns)),
    )?;
    families.counter(
        "sluice_device_turns",
        "Turns on the device: leases granted.",
        each(|device| device.served.turns as f64),
    )?;
    let ways = figures.devices.iter().flat_map(|(&uuid, device)| {
        ["turns", "overlap"].into_iter().zip(device.way_changes).map(move |(way, changes)| {
            let mut labels = labels(uuid);
            labels.push(("way", way.into()));
            (labels, changes as f64)
        })
    });
    families.counter(
        "sluice_device_way_changes",
        "How often the way was changed in which sessions share the device that want it most of the time.",
        ways,
    )?;
    families.waits(
        "sluice_device_turn_wait_seconds",
        "How long processes waited for their turns.",
        figures.devices.iter().map(|(&uuid, device)| (labels(uuid), device.served)),
    )
}

//! The state of the node's devices, updated by the daemon with what a [`Source`](crate::Source) reports. No I/O, no
//! clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use limits::GpuId;

use crate::health::{Ailment, Health, Record};
use crate::reading::{AllReadings, DeviceReading};
use crate::source::Blind;
use crate::unknown::{ByDevice, Unknown, UnknownProcess};
use crate::xid::Xid;

/// A copy of the state, for the API and metrics.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Why the devices cannot be observed now. `devices` keeps the last state.
    pub blind: Option<Blind>,
    /// When the devices were last read. `None`: not since the daemon started.
    pub seen: Option<Instant>,
    /// All devices seen since the daemon started, in the driver's order.
    pub devices: Vec<DeviceView>,
}

impl View {
    /// The device with this UUID.
    #[must_use]
    pub fn device(&self, uuid: GpuId) -> Option<&DeviceView> {
        self.devices.iter().find(|device| device.reading.uuid == uuid)
    }
}

/// The state of a device.
#[derive(Clone, Debug)]
pub struct DeviceView {
    /// The latest reading.
    pub reading: DeviceReading,
    /// When the latest reading was taken.
    pub taken: Instant,
    /// Whether the device may be given work.
    pub health: Health,
    /// Number of errors since the daemon started, by XID.
    pub xids: BTreeMap<Xid, u64>,
    /// Processes on the device that belong to no session.
    pub unknown: Vec<UnknownProcess>,
    /// Number of processes without a session since the daemon started.
    pub unknown_seen: u64,
    /// Whether an operator has taken the device out of service for new work.
    pub cordoned: bool,
    /// How often an operator has declared the device healthy.
    pub declared_healthy: u64,
}

/// A change of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The devices can no longer be observed.
    Blind(Blind),
    /// The devices can be observed again.
    Sees,
    /// The driver reported an error.
    Xid(GpuId, Xid),
    /// A device has a new or increased fault.
    Unhealthy(GpuId, Ailment),
    /// An operator has declared the device healthy.
    Healthy(GpuId),
    /// An operator has taken the device out of service for new work.
    Cordoned(GpuId),
    /// An operator has returned the device to service.
    Uncordoned(GpuId),
    /// A process without a session appeared on a device.
    UnknownCame(GpuId, UnknownProcess),
    /// The process has left the device, or now belongs to a session.
    UnknownWent(GpuId, UnknownProcess),
}

#[derive(Clone, Debug)]
struct Device {
    reading: DeviceReading,
    taken: Instant,
    record: Record,
    xids: BTreeMap<Xid, u64>,
    unknown: Unknown,
    declared_healthy: u64,
}

/// Collects what a source reports.
#[derive(Clone, Debug, Default)]
pub struct Model {
    blind: Option<Blind>,
    seen: Option<Instant>,
    devices: BTreeMap<GpuId, Device>,
    /// Errors of devices that have not been read yet.
    early: Vec<(GpuId, Xid)>,
    /// Devices that operators have taken out of service, seen or not.
    cordoned: BTreeSet<GpuId>,
}

impl Model {
    /// Takes a reading of all devices.
    pub fn read(&mut self, readings: AllReadings) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.blind.take().is_some() {
            changes.push(Change::Sees);
        }
        let AllReadings { taken, devices } = readings;
        self.seen = Some(taken);
        for (uuid, device) in &mut self.devices {
            if !devices.iter().any(|reading| reading.uuid == *uuid) {
                changes.extend(device.record.missing().map(|new| Change::Unhealthy(*uuid, new)));
            }
        }
        for reading in devices {
            let uuid = reading.uuid;
            let device = self.devices.entry(uuid).or_insert_with(|| Device {
                reading: reading.clone(),
                taken,
                record: Record::default(),
                xids: BTreeMap::new(),
                unknown: Unknown::default(),
                declared_healthy: 0,
            });
            changes.extend(device.record.read(&reading).map(|new| Change::Unhealthy(uuid, new)));
            (device.reading, device.taken) = (reading, taken);
        }
        for (uuid, xid) in core::mem::take(&mut self.early) {
            if self.devices.contains_key(&uuid) {
                changes.extend(self.xid(uuid, xid));
            }
        }
        changes
    }

    /// Records an error from the driver.
    pub fn xid(&mut self, uuid: GpuId, xid: Xid) -> Vec<Change> {
        let Some(device) = self.devices.get_mut(&uuid) else {
            self.early.push((uuid, xid));
            return Vec::new();
        };
        let count = device.xids.entry(xid).or_default();
        *count = count.saturating_add(1);
        let against = device.record.xid(xid).map(|new| Change::Unhealthy(uuid, new));
        [Change::Xid(uuid, xid)].into_iter().chain(against).collect()
    }

    /// Records that the devices cannot be observed. Only the first of several calls is a change.
    pub fn blind(&mut self, why: Blind) -> Vec<Change> {
        let is_new = self.blind.is_none();
        self.blind = Some(why.clone());
        if is_new { vec![Change::Blind(why)] } else { Vec::new() }
    }

    /// Takes all processes without a session, by device.
    pub fn unknown(&mut self, mut processes: ByDevice) -> Vec<Change> {
        let mut changes = Vec::new();
        for (&uuid, device) in &mut self.devices {
            let (came, went) = device.unknown.replace(processes.remove(&uuid).unwrap_or_default());
            changes.extend(came.into_iter().map(|one| Change::UnknownCame(uuid, one)));
            changes.extend(went.into_iter().map(|one| Change::UnknownWent(uuid, one)));
        }
        changes
    }

    /// Clears a device's faults; ECC errors count from its latest reading. `None`: the device was never seen.
    pub fn declare_healthy(&mut self, uuid: GpuId) -> Option<Vec<Change>> {
        let device = self.devices.get_mut(&uuid)?;
        device.declared_healthy = device.declared_healthy.saturating_add(1);
        Some(if device.record.heal() { vec![Change::Healthy(uuid)] } else { Vec::new() })
    }

    /// Replaces the set of cordoned devices, which may include devices never seen.
    pub fn cordon(&mut self, gpus: BTreeSet<GpuId>) -> Vec<Change> {
        let taken = gpus.difference(&self.cordoned).map(|gpu| Change::Cordoned(*gpu));
        let back = self.cordoned.difference(&gpus).map(|gpu| Change::Uncordoned(*gpu));
        let changes = taken.chain(back).collect();
        self.cordoned = gpus;
        changes
    }

    /// A copy of the state.
    #[must_use]
    pub fn view(&self) -> View {
        let mut devices: Vec<DeviceView> = self
            .devices
            .values()
            .map(|device| DeviceView {
                reading: device.reading.clone(),
                taken: device.taken,
                health: device.record.health().clone(),
                xids: device.xids.clone(),
                unknown: device.unknown.present.clone(),
                unknown_seen: device.unknown.seen,
                cordoned: self.cordoned.contains(&device.reading.uuid),
                declared_healthy: device.declared_healthy,
            })
            .collect();
        devices.sort_by_key(|device| device.reading.index);
        View { blind: self.blind.clone(), seen: self.seen, devices }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::{GpuProcess, Unread};

    const GPU: GpuId = GpuId::from_bytes([1; 16]);
    const OTHER: GpuId = GpuId::from_bytes([2; 16]);

    fn shows(uuid: GpuId, uncorrected: u64) -> DeviceReading {
        let mut reading = DeviceReading::unread(0, uuid, &Unread::NotSupported);
        reading.ecc.uncorrected = Ok(uncorrected);
        reading.processes = Ok(vec![GpuProcess { pid: 7, bytes: None }]);
        reading
    }

    fn read(model: &mut Model, devices: &[DeviceReading]) -> Vec<Change> {
        model.read(AllReadings { taken: Instant::now(), devices: devices.to_vec() })
    }

    fn health(model: &Model) -> Option<String> {
        model.view().device(GPU).unwrap().health.reason()
    }

    #[test]
    fn what_cannot_be_read_says_nothing_about_the_device() {
        let mut model = Model::default();
        let unread = DeviceReading::unread(0, GPU, &Unread::Failed("no".to_owned()));
        assert_eq!(read(&mut model, &[unread]), []);
        assert_eq!(health(&model), None);
    }

    #[test]
    fn errors_count_from_when_the_device_was_first_seen() {
        let mut model = Model::default();
        assert_eq!(read(&mut model, &[shows(GPU, 4)]), []);
        let more = |count| vec![Change::Unhealthy(GPU, Ailment::Uncorrected(count))];
        assert_eq!(read(&mut model, &[shows(GPU, 5)]), more(1));
        assert_eq!(read(&mut model, &[shows(GPU, 5)]), []);
        assert_eq!(read(&mut model, &[shows(GPU, 7)]), more(3));
        assert_eq!(health(&model).unwrap(), "3 ECC errors could not be corrected");
        // Errors known at the declaration no longer count; those after the latest reading do.
        assert_eq!(model.declare_healthy(GPU), Some(vec![Change::Healthy(GPU)]));
        assert_eq!(model.declare_healthy(GPU), Some(Vec::new()));
        assert_eq!(model.declare_healthy(OTHER), None);
        assert_eq!(read(&mut model, &[shows(GPU, 8)]), more(1));
        // A reload of the driver resets the count.
        model.declare_healthy(GPU);
        assert_eq!(read(&mut model, &[shows(GPU, 0)]), []);
        assert_eq!(read(&mut model, &[shows(GPU, 2)]), more(2));
    }

    #[test]
    fn errors_of_programs_are_counted_and_others_are_held_against_the_device() {
        let mut model = Model::default();
        // An XID may arrive before the device is first read.
        assert_eq!(model.xid(GPU, Xid(31)), []);
        assert_eq!(read(&mut model, &[shows(GPU, 0)]), [Change::Xid(GPU, Xid(31))]);
        for application in [13, 31, 43, 45, 68, 109] {
            assert_eq!(model.xid(GPU, Xid(application)), [Change::Xid(GPU, Xid(application))]);
        }
        assert_eq!(health(&model), None);
        let unhealthy = Change::Unhealthy(GPU, Ailment::Xid(Xid(79)));
        assert_eq!(model.xid(GPU, Xid(79)), [Change::Xid(GPU, Xid(79)), unhealthy]);
        assert_eq!(model.xid(GPU, Xid(79)), [Change::Xid(GPU, Xid(79))]);
        // An unlisted XID counts, too.
        assert_eq!(model.xid(GPU, Xid(4711)).len(), 2);
        assert_eq!(health(&model).unwrap(), "XID 79 (GPU has fallen off the bus); XID 4711");
        let view = model.view();
        let counts = &view.device(GPU).unwrap().xids;
        assert_eq!((counts[&Xid(31)], counts[&Xid(79)]), (2, 2));
    }

    #[test]
    fn a_device_that_was_lost_stays_unhealthy() {
        let mut model = Model::default();
        read(&mut model, &[shows(GPU, 0), shows(OTHER, 0)]);
        let lost = DeviceReading::unread(0, GPU, &Unread::Lost);
        let unhealthy = |ailment| vec![Change::Unhealthy(GPU, ailment)];
        assert_eq!(read(&mut model, &[lost.clone(), shows(OTHER, 0)]), unhealthy(Ailment::Lost));
        assert_eq!(read(&mut model, &[shows(GPU, 0), shows(OTHER, 0)]), []);
        assert!(health(&model).is_some());
        model.declare_healthy(GPU);
        assert_eq!(read(&mut model, &[shows(OTHER, 0)]), unhealthy(Ailment::Missing));
        assert!(model.view().device(OTHER).unwrap().health.is_healthy());
    }

    #[test]
    fn a_cordoned_device_is_healthy_and_may_not_have_been_seen() {
        let mut model = Model::default();
        let both = BTreeSet::from([GPU, OTHER]);
        assert_eq!(model.cordon(both), [Change::Cordoned(GPU), Change::Cordoned(OTHER)]);
        read(&mut model, &[shows(GPU, 0)]);
        let view = model.view();
        assert!(view.device(GPU).unwrap().cordoned && health(&model).is_none());
        assert_eq!(model.cordon([OTHER].into()), [Change::Uncordoned(GPU)]);
        assert_eq!(model.cordon([OTHER].into()), []);
        assert!(!model.view().device(GPU).unwrap().cordoned);
    }

    #[test]
    fn blindness_is_told_once_until_it_ends() {
        let mut model = Model::default();
        let why = |text: &str| Blind(text.to_owned());
        assert_eq!(model.blind(why("a")), [Change::Blind(why("a"))]);
        assert_eq!(model.blind(why("b")), []);
        assert_eq!(model.view().blind, Some(why("b")));
        assert_eq!(read(&mut model, &[shows(GPU, 0)]), [Change::Sees]);
        assert_eq!(model.view().blind, None);
    }

    #[test]
    fn strangers_come_and_go() {
        let one = |pid, started| UnknownProcess {
            pid,
            started: Some(started),
            uid: None,
            name: None,
            bytes: None,
        };
        let mut model = Model::default();
        read(&mut model, &[shows(GPU, 0), shows(OTHER, 0)]);
        let on = |processes: &[UnknownProcess]| [(GPU, processes.to_vec())].into();
        assert_eq!(model.unknown(on(&[one(7, 1)])), [Change::UnknownCame(GPU, one(7, 1))]);
        let more = UnknownProcess { bytes: Some(1), ..one(7, 1) };
        assert_eq!(model.unknown(on(&[more])), []);
        // Another process with the same pid.
        let changes = model.unknown(on(&[one(7, 2)]));
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert_eq!(model.unknown(on(&[])).len(), 1);
        let view = model.view();
        let device = view.device(GPU).unwrap();
        assert_eq!((device.unknown.len(), device.unknown_seen), (0, 2));
    }
}

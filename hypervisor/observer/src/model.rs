//! What is known of the node's devices, and what has changed. No I/O and no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use limits::GpuId;

use crate::health::{Ailment, Health, Record};
use crate::reading::{AllReadings, DeviceReading};
use crate::source::Blind;
use crate::unknown::{ByDevice, Unknown, UnknownProcess};
use crate::xid::Xid;

/// What is known, for those who ask.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Why nothing can be observed now. The devices are as they were seen last.
    pub blind: Option<Blind>,
    /// When the devices were last read. `None`: not since the daemon's start.
    pub seen: Option<Instant>,
    /// All devices that were seen since the daemon's start, in the driver's order.
    pub devices: Vec<DeviceView>,
}

impl View {
    /// One device.
    #[must_use]
    pub fn device(&self, uuid: GpuId) -> Option<&DeviceView> {
        self.devices.iter().find(|device| device.reading.uuid == uuid)
    }
}

/// What is known of a device.
#[derive(Clone, Debug)]
pub struct DeviceView {
    /// What it showed last.
    pub reading: DeviceReading,
    /// When that was read.
    pub taken: Instant,
    /// Whether it can be trusted with work.
    pub health: Health,
    /// How often each error came since the daemon's start.
    pub xids: BTreeMap<Xid, u64>,
    /// The processes on it that no session knows.
    pub unknown: Vec<UnknownProcess>,
    /// How many of them there were since the daemon's start.
    pub unknown_seen: u64,
    /// Whether its operator has taken it out of service for new work.
    pub cordoned: bool,
    /// How often its operator has declared it healthy.
    pub declared_healthy: u64,
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing can be observed from now on.
    Blind(Blind),
    /// It can be again.
    Sees,
    /// The driver reported an error.
    Xid(GpuId, Xid),
    /// Something more is known against a device.
    Unhealthy(GpuId, Ailment),
    /// Its operator has declared it healthy.
    Healthy(GpuId),
    /// Its operator has taken it out of service for new work.
    Cordoned(GpuId),
    /// Its operator has put it back into service.
    Uncordoned(GpuId),
    /// A process that no session knows has come to a device.
    UnknownCame(GpuId, UnknownProcess),
    /// It has gone, or a session knows it now.
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

/// Gathers what a source shows.
#[derive(Clone, Debug, Default)]
pub struct Model {
    blind: Option<Blind>,
    seen: Option<Instant>,
    devices: BTreeMap<GpuId, Device>,
    /// Errors of devices that were not seen yet.
    early: Vec<(GpuId, Xid)>,
    /// Which ones operators have taken out of service.
    cordoned: BTreeSet<GpuId>,
}

impl Model {
    /// Takes what all devices show.
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

    /// The driver has reported an error.
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

    /// Nothing can be observed. Told once, whatever the reasons are.
    pub fn blind(&mut self, why: Blind) -> Vec<Change> {
        let is_new = self.blind.is_none();
        self.blind = Some(why.clone());
        if is_new { vec![Change::Blind(why)] } else { Vec::new() }
    }

    /// The processes that no session knows, of every device where there are any.
    pub fn unknown(&mut self, mut processes: ByDevice) -> Vec<Change> {
        let mut changes = Vec::new();
        for (&uuid, device) in &mut self.devices {
            let (came, went) = device.unknown.replace(processes.remove(&uuid).unwrap_or_default());
            changes.extend(came.into_iter().map(|one| Change::UnknownCame(uuid, one)));
            changes.extend(went.into_iter().map(|one| Change::UnknownWent(uuid, one)));
        }
        changes
    }

    /// The operator says that a device is healthy. What it shows from now on counts. `None`: it was never seen.
    pub fn declare_healthy(&mut self, uuid: GpuId) -> Option<Vec<Change>> {
        let device = self.devices.get_mut(&uuid)?;
        device.declared_healthy = device.declared_healthy.saturating_add(1);
        Some(if device.record.heal() { vec![Change::Healthy(uuid)] } else { Vec::new() })
    }

    /// Operators have taken just these devices out of service for new work, whether they were seen or not.
    pub fn cordon(&mut self, gpus: BTreeSet<GpuId>) -> Vec<Change> {
        let taken = gpus.difference(&self.cordoned).map(|gpu| Change::Cordoned(*gpu));
        let back = self.cordoned.difference(&gpus).map(|gpu| Change::Uncordoned(*gpu));
        let changes = taken.chain(back).collect();
        self.cordoned = gpus;
        changes
    }

    /// What is known.
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
        // Those that were known count no more. What comes before the next look does.
        assert_eq!(model.declare_healthy(GPU), Some(vec![Change::Healthy(GPU)]));
        assert_eq!(model.declare_healthy(GPU), Some(Vec::new()));
        assert_eq!(model.declare_healthy(OTHER), None);
        assert_eq!(read(&mut model, &[shows(GPU, 8)]), more(1));
        // A driver that was loaded anew begins at zero.
        model.declare_healthy(GPU);
        assert_eq!(read(&mut model, &[shows(GPU, 0)]), []);
        assert_eq!(read(&mut model, &[shows(GPU, 2)]), more(2));
    }

    #[test]
    fn errors_of_programs_are_counted_and_others_are_held_against_the_device() {
        let mut model = Model::default();
        // It may come before the device is first read.
        assert_eq!(model.xid(GPU, Xid(31)), []);
        assert_eq!(read(&mut model, &[shows(GPU, 0)]), [Change::Xid(GPU, Xid(31))]);
        for application in [13, 31, 43, 45, 68, 109] {
            assert_eq!(model.xid(GPU, Xid(application)), [Change::Xid(GPU, Xid(application))]);
        }
        assert_eq!(health(&model), None);
        let unhealthy = Change::Unhealthy(GPU, Ailment::Xid(Xid(79)));
        assert_eq!(model.xid(GPU, Xid(79)), [Change::Xid(GPU, Xid(79)), unhealthy]);
        assert_eq!(model.xid(GPU, Xid(79)), [Change::Xid(GPU, Xid(79))]);
        // One that nobody knows counts, too.
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
        // Another process with the same id.
        let changes = model.unknown(on(&[one(7, 2)]));
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert_eq!(model.unknown(on(&[])).len(), 1);
        let view = model.view();
        let device = view.device(GPU).unwrap();
        assert_eq!((device.unknown.len(), device.unknown_seen), (0, 2));
    }
}

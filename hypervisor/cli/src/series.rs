//! How figures changed from sample to sample. Pure: samples go in, points come out.

use std::collections::{BTreeMap, VecDeque};

use limits::{GpuId, Policy};
use protocol::record::{DeviceSample, Sample};
use protocol::sessions::{ComputeReport, MemoryReport, ProcessReport};

use crate::node::last_part;

/// Between two samples that are closer than this, rates mean nothing: use is reported in steps of some milliseconds.
const LEAST_US: u64 = 90_000;
const PPM: u128 = 1_000_000;

/// Names a session on a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) uid: u32,
    pub(crate) session: String,
    /// The id of the container, of a session whose pages cannot be seen from here.
    pub(crate) container: Option<String>,
    /// `None`: it has used no device yet.
    pub(crate) uuid: Option<GpuId>,
}

/// A session on a device, in a sample.
#[derive(Clone, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) key: Key,
    /// What it is called.
    pub(crate) name: &'a str,
    pub(crate) user: String,
    /// Its container's name or id, or the UID of its pod.
    pub(crate) place: Option<&'a str>,
    pub(crate) command: Option<&'a str>,
    pub(crate) frozen: bool,
    /// Whether only the daemon tells of it.
    pub(crate) elsewhere: bool,
    pub(crate) compute: Option<&'a ComputeReport>,
    pub(crate) memory: Option<&'a MemoryReport>,
    pub(crate) processes: &'a [ProcessReport],
    pub(crate) age_us: Option<u64>,
    pub(crate) refusals: u64,
}

impl Row<'_> {
    /// Whether nothing of its pages is known.
    pub(crate) const fn is_unseen(&self) -> bool {
        self.elsewhere && self.memory.is_none()
    }

    /// The limit of time, in millionths.
    pub(crate) fn limit_ppm(&self) -> Option<u32> {
        let compute = self.compute?;
        match compute.policy {
            Policy::None => None,
            Policy::Fixed => Some(compute.share_ppm),
            Policy::Balance => Some(compute.soft_ppm.unwrap_or(compute.share_ppm)),
        }
    }

    /// Whether a word is in what people know it by.
    pub(crate) fn has(&self, word: &str) -> bool {
        let word = word.to_lowercase();
        let texts = [Some(self.name), Some(&self.user), self.place, self.command];
        let also = [Some(self.key.session.as_str()), self.key.container.as_deref()];
        let mut texts = texts.into_iter().chain(also).flatten();
        texts.any(|text| text.to_lowercase().contains(&word))
            || self.processes.iter().any(|process| process.pid.to_string() == word)
    }
}

/// All sessions on all devices of a sample.
pub(crate) fn rows(sample: &Sample) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for session in &sample.status.sessions {
        let container = session.container.as_ref();
        let place = container.map(|one| one.name.as_deref().unwrap_or(&one.id));
        let row = |uuid| Row {
            key: Key { uid: session.uid, session: session.session.clone(), container: None, uuid },
            name: session.name.as_deref().unwrap_or_else(|| last_part(&session.session)),
            user: session.user.clone().unwrap_or_else(|| session.uid.to_string()),
            place: place.or(session.pod.as_deref()),
            command: session.command.as_deref(),
            frozen: session.frozen,
            elsewhere: false,
            compute: None,
            memory: None,
            processes: &[],
            age_us: None,
            refusals: 0,
        };
        if session.devices.is_empty() {
            rows.push(row(None));
        }
        rows.extend(session.devices.iter().map(|device| Row {
            compute: Some(&device.compute),
            memory: Some(&device.memory),
            processes: &device.processes,
            age_us: device.age_us,
            refusals: device.refusals,
            ..row(Some(device.uuid))
        }));
    }
    for session in &sample.status.elsewhere {
        let container = session.container.as_ref();
        rows.extend(session.devices.iter().map(|device| {
            Row {
                key: Key {
                    uid: session.uid,
                    session: session.session.clone(),
                    container: container.map(|one| one.id.clone()),
                    uuid: Some(device.uuid),
                },
                name: &session.session,
                user: session.user.clone().unwrap_or_else(|| session.uid.to_string()),
                place: container
                    .map(|one| one.name.as_deref().unwrap_or(&one.id))
                    .or(session.pod.as_deref()),
                command: None,
                frozen: session.frozen,
                elsewhere: true,
                compute: Some(&device.compute),
                memory: device.memory.as_ref(),
                processes: &[],
                age_us: None,
                refusals: 0,
            }
        }));
    }
    rows
}

/// A session on a device, between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// When it ends, as [`Sample::clock_us`].
    pub(crate) clock_us: u64,
    /// The share of the device's time that was delivered.
    pub(crate) share_ppm: Option<u32>,
    /// The limit of it.
    pub(crate) limit_ppm: Option<u32>,
    /// For how much of the time its processes waited, added up.
    pub(crate) waited_ppm: Option<u32>,
    /// Its memory.
    pub(crate) used_bytes: Option<u64>,
    /// The limit of it.
    pub(crate) limit_bytes: Option<u64>,
    /// Whether it was frozen.
    pub(crate) frozen: bool,
    /// Whether an allocation was refused meanwhile.
    pub(crate) refused: bool,
    /// Whether its limits are others than before.
    pub(crate) changed: bool,
}

/// A device at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DevicePoint {
    pub(crate) sm_percent: Option<u32>,
    pub(crate) memory_used_bytes: Option<u64>,
    pub(crate) power_mw: Option<u32>,
    pub(crate) temperature_c: Option<u32>,
}

/// What a session's sums were.
#[derive(Clone, Copy, Debug)]
struct Sums {
    clock_us: u64,
    delivered_us: u64,
    waited_us: u64,
    refusals: u64,
}

/// A session on a device over time.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    /// What it is called.
    pub(crate) name: String,
    pub(crate) points: VecDeque<Point>,
    last: Option<Sums>,
}

/// Everything over time.
#[derive(Debug)]
pub(crate) struct Series {
    /// Points that are kept of each.
    most: usize,
    /// Whether what has ended is kept.
    keeps_ended: bool,
    pub(crate) sessions: BTreeMap<Key, Track>,
    pub(crate) devices: BTreeMap<GpuId, VecDeque<DevicePoint>>,
    /// Index and product name of devices, as people know them.
    pub(crate) titles: BTreeMap<GpuId, String>,
}

impl Series {
    /// The last points of what there is now.
    pub(crate) fn last(most: usize) -> Self {
        let (sessions, devices) = (BTreeMap::new(), BTreeMap::new());
        Self { most, keeps_ended: false, sessions, devices, titles: BTreeMap::new() }
    }

    /// All points of all that there ever was.
    pub(crate) fn all() -> Self {
        Self { keeps_ended: true, ..Self::last(usize::MAX) }
    }

    /// Takes in the next sample.
    pub(crate) fn add(&mut self, sample: &Sample) {
        let rows = rows(sample);
        if !self.keeps_ended {
            self.sessions.retain(|key, _| rows.iter().any(|row| row.key == *key));
            self.devices.retain(|uuid, _| sample.devices.iter().any(|one| one.uuid == *uuid));
        }
        for row in rows {
            let new = || Track { name: row.name.to_owned(), points: VecDeque::new(), last: None };
            let track = self.sessions.entry(row.key.clone()).or_insert_with(new);
            track.add(&row, sample.clock_us, self.most);
        }
        for device in &sample.devices {
            if let Some(index) = device.index {
                let product = device.name.as_deref().unwrap_or_default();
                self.titles.insert(device.uuid, format!("GPU {index}  {product}"));
            }
            let points = self.devices.entry(device.uuid).or_default();
            points.push_back(point(device));
            if points.len() > self.most {
                points.pop_front();
            }
        }
    }
}

const fn point(device: &DeviceSample) -> DevicePoint {
    DevicePoint {
        sm_percent: device.sm_percent,
        memory_used_bytes: device.memory_used_bytes,
        power_mw: device.power_mw,
        temperature_c: device.temperature_c,
    }
}

impl Track {
    fn add(&mut self, row: &Row<'_>, clock_us: u64, most: usize) {
        let now = Sums {
            clock_us,
            delivered_us: row.compute.map_or(0, |compute| compute.delivered_us),
            waited_us: row.compute.map_or(0, |compute| compute.waited_us),
            refusals: row.refusals,
        };
        let before = self.last.filter(|before| before.clock_us < clock_us);
        let rate = |of: fn(&Sums) -> u64| {
            let before = before.as_ref()?;
            let time = clock_us - before.clock_us;
            // A sum that went down is that of another session of this name.
            let used = of(&now).checked_sub(of(before))?;
            let ppm = u128::from(used) * PPM / u128::from(time);
            (time >= LEAST_US).then(|| u32::try_from(ppm).unwrap_or(u32::MAX))
        };
        let limited = row.limit_ppm().is_some();
        let share = rate(|sums| sums.delivered_us).map(|ppm| ppm.min(1_000_000));
        let first = || row.compute.and_then(|compute| compute.recent_ppm);
        let limit_bytes = row.memory.and_then(|memory| memory.limit);
        let changed = self.points.back().is_some_and(|last| {
            last.limit_ppm != row.limit_ppm() || last.limit_bytes != limit_bytes
        });
        self.points.push_back(Point {
            clock_us,
            share_ppm: share.or_else(first).filter(|_| limited),
            limit_ppm: row.limit_ppm(),
            waited_ppm: rate(|sums| sums.waited_us).filter(|_| limited),
            used_bytes: row.memory.map(|memory| memory.used),
            limit_bytes,
            frozen: row.frozen,
            refused: before.is_some_and(|before| now.refusals > before.refusals),
            changed,
        });
        self.spread_wait(row.processes.len().max(1) as u32);
        if self.points.len() > most {
            self.points.pop_front();
        }
        self.last = Some(now);
    }

    /// A wait is added up when it ends. What is more than `processes` can wait in the last point's time belongs to the
    /// points before it.
    fn spread_wait(&mut self, processes: u32) {
        let most = processes.saturating_mul(PPM as u32);
        let mut excess = 0.0;
        for last in (1..self.points.len()).rev() {
            let span = self.points[last].clock_us - self.points[last - 1].clock_us;
            let Some(waited) = &mut self.points[last].waited_ppm else { return };
            let all = f64::from(*waited) + excess / span as f64;
            *waited = all.min(f64::from(most)) as u32;
            excess = (all - f64::from(*waited)) * span as f64;
            if excess <= 0.0 {
                return;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use limits::Priority;
    use protocol::record::{FigureSource, VERSION};
    use protocol::sessions::{ByKind, ContainerReport, DeviceReport, ElsewhereDevice};
    use protocol::sessions::{ElsewhereReport, SessionReport, StatusReport};

    /// A GPU of the tests.
    pub(crate) fn gpu(number: u8) -> GpuId {
        GpuId::from_bytes([number; 16])
    }

    /// A compute share of `share` percent that was used for a time.
    pub(crate) fn compute(share: u32, delivered_us: u64, waited_us: u64) -> ComputeReport {
        ComputeReport {
            policy: Policy::Fixed,
            share_ppm: share * 10_000,
            soft_ppm: None,
            weight: 1,
            priority: Priority::High,
            density_ppm: Some(900_000),
            recent_ppm: Some(share * 9_000),
            mean_ppm: Some(share * 8_000),
            delivered_us,
            waited_us,
            sharing: None,
        }
    }

    /// Memory with a limit, in GiB.
    pub(crate) fn memory(used: u64, limit: u64) -> MemoryReport {
        let (used, limit) = (used << 30, limit << 30);
        MemoryReport {
            limit: Some(limit),
            real: None,
            used,
            peak: used,
            on_device: used,
            by_kind: ByKind { data: used / 2, context: used / 2, ..ByKind::default() },
            left: Some(limit - used),
            over: 0,
            growth_refused: false,
        }
    }

    /// A session with one process on the first device.
    pub(crate) fn session(
        name: &str,
        compute: ComputeReport,
        memory: MemoryReport,
    ) -> SessionReport {
        let process = ProcessReport {
            pid: 4711,
            host_pid: Some(4711),
            name: Some("python".to_owned()),
            bytes: memory.used,
            by_kind: memory.by_kind,
            holding: true,
            waiting: false,
            charged_us: compute.delivered_us,
            density_ppm: Some(900_000),
        };
        SessionReport {
            session: format!("1-{name}"),
            name: Some(name.to_owned()),
            uid: 7,
            user: Some("ann".to_owned()),
            container: None,
            pod: None,
            command: Some(format!("python {name}.py")),
            frozen: false,
            directory: "/nowhere".into(),
            devices: vec![DeviceReport {
                uuid: gpu(1),
                index: Some(0),
                memory,
                compute,
                age_us: Some(65_000_000),
                refusals: 0,
                processes: vec![process],
                unknown: 0,
            }],
        }
    }

    /// A session in a container.
    pub(crate) fn contained(name: &str) -> ElsewhereReport {
        ElsewhereReport {
            session: name.to_owned(),
            uid: 0,
            user: Some("root".to_owned()),
            container: Some(ContainerReport {
                runtime: "docker".to_owned(),
                id: "ab12".to_owned(),
                name: Some("web".to_owned()),
            }),
            pod: None,
            frozen: false,
            pids: vec![1],
            devices: vec![ElsewhereDevice {
                uuid: gpu(1),
                index: Some(0),
                compute: compute(5, 0, 0),
                memory: None,
            }],
        }
    }

    /// A sample of one device.
    pub(crate) fn sample(seconds: u64, sessions: Vec<SessionReport>) -> Sample {
        let device = DeviceSample {
            index: Some(0),
            name: Some("Test GPU".to_owned()),
            memory_total_bytes: Some(16 << 30),
            memory_used_bytes: Some(4 << 30),
            sm_percent: Some(70),
            power_mw: Some(320_000),
            power_limit_mw: Some(700_000),
            temperature_c: Some(61),
            ..DeviceSample::unknown(gpu(1), FigureSource::Daemon)
        };
        Sample {
            version: VERSION,
            at_us: 1_700_000_000_000_000 + seconds * 1_000_000,
            clock_us: seconds * 1_000_000,
            devices: vec![device],
            status: StatusReport {
                sessions,
                damaged: Vec::new(),
                elsewhere: Vec::new(),
                gpus: Vec::new(),
                overcommitted: Vec::new(),
            },
            others: 0,
            daemon: true,
            notices: Vec::new(),
        }
    }

    #[test]
    fn rates_are_differences_of_sums() {
        let mut series = Series::last(2);
        for (second, delivered, waited) in [(1, 0, 0), (2, 300_000, 500_000), (3, 800_000, 500_000)]
        {
            let one = session("a", compute(50, delivered, waited), memory(2, 8));
            series.add(&sample(second, vec![one]));
        }
        let track = series.sessions.values().next().unwrap();
        let found: Vec<_> =
            track.points.iter().map(|point| (point.share_ppm, point.waited_ppm)).collect();
        assert_eq!(found, [(Some(300_000), Some(500_000)), (Some(500_000), Some(0))]);
        assert_eq!(series.devices[&gpu(1)].len(), 2);
        // Too close to tell: what the session itself says.
        let mut close = sample(3, vec![session("a", compute(50, 810_000, 0), memory(2, 8))]);
        close.clock_us += 10;
        series.add(&close);
        assert_eq!(series.sessions.values().next().unwrap().points[1].share_ppm, Some(450_000));
        // It has ended.
        series.add(&sample(4, Vec::new()));
        assert!(series.sessions.is_empty());
    }

    #[test]
    fn a_wait_that_has_ended_is_spread_over_its_time() {
        let mut series = Series::all();
        for (second, waited) in [(1, 0), (2, 0), (3, 0), (4, 0), (5, 2_500_000)] {
            series.add(&sample(second, vec![session("a", compute(50, 0, waited), memory(2, 8))]));
        }
        let points = &series.sessions.values().next().unwrap().points;
        let found: Vec<_> = points.iter().filter_map(|point| point.waited_ppm).collect();
        assert_eq!(found, [0, 500_000, 1_000_000, 1_000_000]);
    }

    #[test]
    fn changes_and_refusals_are_noted() {
        let mut series = Series::all();
        series.add(&sample(1, vec![session("a", compute(50, 0, 0), memory(2, 8))]));
        let mut refused = session("a", compute(40, 0, 0), memory(2, 8));
        refused.devices[0].refusals = 1;
        refused.frozen = true;
        series.add(&sample(2, vec![refused]));
        series.add(&sample(3, Vec::new()));
        let points = &series.sessions.values().next().unwrap().points;
        let marks = |point: &Point| (point.frozen, point.refused, point.changed);
        assert_eq!(marks(&points[0]), (false, false, false));
        assert_eq!(marks(&points[1]), (true, true, true));
    }

    #[test]
    fn a_session_is_found_by_what_people_know() {
        let mut seen = sample(1, vec![session("train", compute(50, 0, 0), memory(2, 8))]);
        seen.status.elsewhere.push(contained("env-1"));
        let rows = rows(&seen);
        for word in ["TRAIN", "ann", "py", "4711"] {
            assert!(rows[0].has(word), "{word}");
        }
        assert!(!rows[0].has("web") && rows[1].has("web") && rows[1].has("ab1"));
        assert_eq!((rows[0].limit_ppm(), rows[1].place), (Some(500_000), Some("web")));
    }
}

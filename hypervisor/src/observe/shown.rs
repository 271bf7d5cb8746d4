//! Converts the observer's view to messages of the API and to the node's page.

use api::{DeviceHealth, Figures, UnknownProcess, UnreadFigure, XidCount};
use observer::{DeviceView, Memory, Reading, Utilization, View};
use session::clock::now_ns;
use session::node_page::{NodeDevice, NodeFigures, NodeHealth};

use crate::identity::Owner;

/// Splits readings into values and errors, and collects the errors.
#[derive(Default)]
struct UnreadFigures(Vec<UnreadFigure>);

impl UnreadFigures {
    fn known<T: Clone>(&mut self, figure: &str, reading: &Reading<T>) -> Option<T> {
        match reading {
            Ok(value) => Some(value.clone()),
            Err(why) => {
                let (figure, message) = (figure.to_owned(), why.to_string());
                self.0.push(UnreadFigure { figure, message });
                None
            }
        }
    }
}

pub(crate) fn figures(device: &DeviceView) -> Figures {
    let reading = &device.reading;
    let mut unread = UnreadFigures::default();
    let memory = unread.known("memory", &reading.memory);
    let utilization = unread.known("utilization", &reading.utilization);
    let throttling = unread.known("throttling", &reading.throttling);
    let names = throttling.map(|all| all.iter().map(|reason| reason.name().to_owned()).collect());
    let processes = unread.known("processes", &reading.processes);
    Figures {
        age_us: microseconds_since(device),
        index: reading.index,
        name: unread.known("name", &reading.name),
        memory_total_bytes: memory.map(|memory| memory.total),
        memory_reserved_bytes: memory.map(|memory| memory.reserved),
        memory_used_bytes: memory.map(|memory| memory.used),
        memory_free_bytes: memory.map(|memory| memory.free),
        sm_percent: utilization.map(|rates| rates.sm),
        memory_percent: utilization.map(|rates| rates.memory),
        power_mw: unread.known("power", &reading.power_mw),
        power_limit_mw: unread.known("power_limit", &reading.power_limit_mw),
        temperature_c: unread.known("temperature", &reading.temperature_c),
        sm_clock_mhz: unread.known("sm_clock", &reading.clocks.sm_mhz),
        memory_clock_mhz: unread.known("memory_clock", &reading.clocks.memory_mhz),
        throttled_by: names,
        ecc_corrected: unread.known("ecc_corrected", &reading.ecc.corrected),
        ecc_uncorrected: unread.known("ecc_uncorrected", &reading.ecc.uncorrected),
        processes: processes.map(|processes| processes.len() as u64),
        xids: device.xids.iter().map(|(xid, &count)| XidCount { xid: xid.0, count }).collect(),
        unread: unread.0,
    }
}

fn microseconds_since(device: &DeviceView) -> u64 {
    u64::try_from(device.taken.elapsed().as_micros()).unwrap_or(u64::MAX)
}

pub(crate) const fn health(device: &DeviceView) -> DeviceHealth {
    if device.health.is_healthy() { DeviceHealth::Healthy } else { DeviceHealth::Unhealthy }
}

/// Processes outside any session that a caller may see: all, or those of the caller's user.
pub(crate) fn unknown_processes(device: &DeviceView, only: Option<&Owner>) -> Vec<UnknownProcess> {
    let is_seen = |uid: Option<u32>| {
        only.is_none_or(|owner| uid.is_some_and(|uid| *owner == Owner::user(uid)))
    };
    let seen = device.unknown.iter().filter(|process| is_seen(process.uid));
    let shown = seen.map(|process| UnknownProcess {
        pid: process.pid,
        uid: process.uid,
        name: process.name.clone(),
        memory_bytes: process.bytes,
    });
    shown.collect()
}

/// The node's page.
pub(super) fn page(view: &View) -> NodeFigures {
    let now = now_ns();
    let device = |device: &DeviceView| {
        let memory: Option<Memory> = device.reading.memory.clone().ok();
        let rates: Option<Utilization> = device.reading.utilization.clone().ok();
        let percent = |value: u32| u8::try_from(value.min(100)).unwrap_or(100);
        NodeDevice {
            uuid: device.reading.uuid,
            memory_total: memory.map(|memory| memory.total),
            memory_used: memory.map(|memory| memory.total.saturating_sub(memory.free)),
            sm_percent: rates.map(|rates| percent(rates.sm)),
            memory_percent: rates.map(|rates| percent(rates.memory)),
            health: match health(device) {
                DeviceHealth::Unhealthy => NodeHealth::Unhealthy,
                DeviceHealth::Healthy | DeviceHealth::Unknown => NodeHealth::Healthy,
            },
            read_ns: now.saturating_sub(microseconds_since(device).saturating_mul(1_000)),
        }
    };
    NodeFigures { written_ns: now, devices: view.devices.iter().map(device).collect() }
}

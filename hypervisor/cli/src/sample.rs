//! Samples of the node: what `sluice top` shows and `sluice record` writes.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use api::Device;
use limits::{GpuId, env};
use protocol::record::{DeviceSample, FigureSource, Sample, VERSION};
use protocol::sessions::StatusReport;
use session::clock;
use session::node_page::{self, NodeDevice, NodeHealth};

use super::Error;
use super::node::Node;
use super::node::gpus::Gpus;
use super::shares::Shares;
use super::status;

/// Takes samples of the node, as `sluice status` looks at it.
pub(crate) struct Sampler {
    daemon: Option<OsString>,
    gpus: Gpus,
}

impl Sampler {
    /// With the daemon that the option names, or the one that `sluice status` would ask.
    pub(crate) fn new(daemon: Option<&OsStr>) -> Self {
        Self { daemon: daemon.map(OsStr::to_owned), gpus: Gpus::default() }
    }

    /// What the node shows now.
    ///
    /// # Errors
    /// As for `sluice status`.
    pub(crate) fn take(&self) -> Result<Sample, Error> {
        let mut node = Node::read(self.daemon.as_deref())?;
        let mut status = status::report(&node, &self.gpus, false, false);
        status.overcommitted = Shares::of(&node, &self.gpus).all_overcommitted();
        let mut notices = std::mem::take(&mut node.notices);
        let devices = self.devices(&node, &status, &mut notices);
        Ok(Sample {
            version: VERSION,
            at_us: calendar_us(),
            clock_us: clock::now_ns() / 1000,
            devices,
            status,
            others: node.daemon.as_ref().map_or(0, |daemon| daemon.others),
            daemon: node.daemon.is_some(),
            notices,
        })
    }

    /// The devices: those that the daemon tells of, then those in the page of the node, of the driver, and of the
    /// sessions.
    fn devices(
        &self,
        node: &Node,
        status: &StatusReport,
        notices: &mut Vec<String>,
    ) -> Vec<DeviceSample> {
        let mut all: Vec<DeviceSample> = Vec::new();
        let list = node.daemon.as_ref().and_then(|daemon| daemon.devices());
        if let Some(list) = &list {
            notices.extend(status::blind(list));
            all.extend(list.devices.iter().filter_map(told));
        }
        let is_here = node.is_here();
        if list.is_none() && is_here {
            all.extend(self.page().iter().flatten().map(on_page));
        }
        let used = status.sessions.iter().flat_map(|session| {
            let found = node
                .sessions
                .iter()
                .find(|found| found.uid == session.uid && found.name == session.session);
            session.devices.iter().map(move |device| (found, device.uuid))
        });
        let elsewhere = status.elsewhere.iter().flat_map(|session| &session.devices);
        let used: Vec<_> = used.chain(elsewhere.map(|device| (None, device.uuid))).collect();
        // Without a session only the driver can tell which devices there are.
        if all.is_empty() && used.is_empty() && is_here {
            let of_driver = self.gpus.of_driver().iter();
            all.extend(of_driver.map(|gpu| DeviceSample::unknown(gpu.uuid, FigureSource::Driver)));
        }
        for (found, uuid) in &used {
            if !all.iter().any(|device| device.uuid == *uuid) {
                all.push(DeviceSample::unknown(*uuid, FigureSource::Session));
            }
            let Some(device) = all.iter_mut().find(|device| device.uuid == *uuid) else { continue };
            if device.name.is_none()
                && let Some(gpu) = self.gpus.find(*found, *uuid)
            {
                device.index = device.index.or(Some(gpu.index));
                device.name = Some(gpu.name.clone());
                device.memory_total_bytes = device.memory_total_bytes.or(gpu.known_memory());
            }
        }
        for device in all.iter_mut().filter(|device| device.source == FigureSource::Driver) {
            if let Some(gpu) = self.gpus.find(None, device.uuid) {
                device.index = Some(gpu.index);
                device.name = Some(gpu.name.clone());
                device.memory_total_bytes = gpu.known_memory();
            }
        }
        all.sort_by_key(|device| (device.index.unwrap_or(u32::MAX), device.uuid));
        all
    }

    /// The devices on the first page of the node that is being written, of those beside the sockets that a daemon may
    /// have here.
    fn page(&self) -> Option<Vec<NodeDevice>> {
        let named = self.daemon.clone().or_else(|| std::env::var_os(env::DAEMON_SOCKET));
        let sockets = match named {
            Some(none) if none.is_empty() || none == "none" => Vec::new(),
            Some(socket) => vec![PathBuf::from(socket)],
            None => protocol::socket::default_sockets(),
        };
        let current = |socket: &PathBuf| Some(node_page::current_beside(socket)?.devices);
        sockets.iter().find_map(current)
    }
}

fn calendar_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn told(device: &Device) -> Option<DeviceSample> {
    let uuid: GpuId = device.uuid.parse().ok()?;
    let mut sample = DeviceSample {
        trouble: status::trouble(device),
        unknown_processes: device.unknown,
        ..DeviceSample::unknown(uuid, FigureSource::Daemon)
    };
    let Some(figures) = &device.figures else { return Some(sample) };
    sample.index = Some(figures.index);
    sample.name.clone_from(&figures.name);
    sample.memory_total_bytes = figures.memory_total_bytes;
    sample.memory_used_bytes = figures.memory_used_bytes;
    sample.sm_percent = figures.sm_percent;
    sample.memory_percent = figures.memory_percent;
    sample.power_mw = figures.power_mw;
    sample.power_limit_mw = figures.power_limit_mw;
    sample.temperature_c = figures.temperature_c;
    sample.sm_clock_mhz = figures.sm_clock_mhz;
    sample.throttled_by = figures.throttled_by.clone().unwrap_or_default();
    Some(sample)
}

fn on_page(device: &NodeDevice) -> DeviceSample {
    let unhealthy = device.health == NodeHealth::Unhealthy;
    DeviceSample {
        trouble: unhealthy.then(|| "UNHEALTHY: the daemon grants no leases on it".to_owned()),
        memory_total_bytes: device.memory_total,
        memory_used_bytes: device.memory_used,
        sm_percent: device.sm_percent.map(u32::from),
        memory_percent: device.memory_percent.map(u32::from),
        ..DeviceSample::unknown(device.uuid, FigureSource::NodePage)
    }
}

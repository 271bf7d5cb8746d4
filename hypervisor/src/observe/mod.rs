//! Runs the observer: its reports go to the core and into the node's page, and unknown processes are ended if the
//! policy says so. All in the observer's own thread.

mod census;
mod eviction;
mod shown;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::EventKind;
use observer::{AllReadings, NvmlSource, Seen, View, Watch, cordon};
use session::node_page::{self, NodePageWriter};

pub use api::UnknownProcesses;

use self::census::Census;
use self::eviction::Eviction;
use crate::core::Core;

pub(crate) use self::shown::{figures, health, unknown_processes};

/// How devices are observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Devices are not observed.
    pub off: bool,
    /// NVML library; `None`: found by the loader.
    pub nvml: Option<PathBuf>,
    /// What to do about a process outside any session.
    pub unknown_processes: UnknownProcesses,
}

/// The observer's thread and the node's page, which is removed on drop.
#[derive(Debug)]
pub(crate) struct ObserverThread {
    _watch: Watch,
    page: Option<Arc<NodePageWriter>>,
}

impl Drop for ObserverThread {
    fn drop(&mut self) {
        // Not joined: the thread may be in a driver call.
        if let Some(page) = &self.page {
            page.remove();
        }
    }
}

/// Starts the observer's thread, unless observation is off.
pub(crate) fn start(
    core: &Arc<Core>,
    observation: &Observation,
    socket: &Path,
) -> io::Result<Option<ObserverThread>> {
    if observation.off {
        return Ok(None);
    }
    let path = node_page::beside(socket);
    let page = NodePageWriter::create(&path)
        .inspect_err(|error| {
            tracing::warn!(page = %path.display(), %error, "cannot publish what the daemon observes");
        })
        .ok()
        .map(Arc::new);
    let kills = observation.unknown_processes == UnknownProcesses::Kill;
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    if kills && !matches!(session::process::pidfd(own), Ok(Some(_))) {
        tracing::warn!("the kernel has no pidfd_open(2), so unknown processes are only reported");
    }
    let mut observing = Observing {
        core: Arc::clone(core),
        census: Census::default(),
        eviction: kills.then(Eviction::default),
        page: page.clone(),
        cordoned: cordon::beside(socket),
    };
    let source = observation.nvml.as_deref().map_or_else(NvmlSource::default, NvmlSource::at);
    let _watch = Watch::start(Box::new(source), move |seen| observing.take(seen))?;
    Ok(Some(ObserverThread { _watch, page }))
}

struct Observing {
    core: Arc<Core>,
    census: Census,
    /// Ends unknown processes, under policy `kill`.
    eviction: Option<Eviction>,
    page: Option<Arc<NodePageWriter>>,
    /// The file in which the node agent names cordoned devices.
    cordoned: PathBuf,
}

impl Observing {
    fn take(&mut self, seen: Seen) {
        let view = match seen {
            Seen::Devices(readings) => self.take_all(readings),
            Seen::Xid(uuid, xid) => self.core.observe(|model| model.xid(uuid, xid)),
            Seen::Blind(why) => self.core.observe(|model| model.blind(why)),
        };
        self.publish(&view);
    }

    fn take_all(&mut self, readings: AllReadings) -> View {
        let taken = readings.taken;
        let found = self.census.unknown(&readings, &self.core.served());
        let unknown = census::by_device(&found);
        let cordoned = cordon::read(&self.cordoned).inspect_err(|error| {
            tracing::warn!(file = %self.cordoned.display(), %error, "cannot read which devices are cordoned");
        });
        let view = self.core.observe(|model| {
            let mut changes = model.read(readings);
            changes.extend(cordoned.map(|gpus| model.cordon(gpus)).unwrap_or_default());
            changes.extend(model.unknown(unknown));
            changes
        });
        if let Some(eviction) = &mut self.eviction {
            for (uuid, process, signal) in eviction.round(&found, taken) {
                let message = format!("process {} was sent {signal}", process.pid);
                tracing::warn!(%uuid, "outside any session: {message}");
                let kind = EventKind::UnknownProcessKilled;
                self.core.tell_of_process(kind, uuid, &process, Some(message));
            }
        }
        view
    }

    fn publish(&self, view: &View) {
        if let Some(page) = &self.page {
            page.publish(&shown::page(view));
        }
    }
}

//! `hypervisor node --check`: checks everything that `hypervisor node` needs, before it runs. Each failed check names
//! the command that fixes it. Changes nothing.

mod cluster;
mod hook;
mod parts;
mod runtime;

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use limits::GpuId;
use observer::Source;
use protocol::findings::Findings;
use protocol::reports::DoctorReport;
use tokio::runtime::Handle;

use crate::Options;
use crate::host::Host;
use crate::seen::Seen;

/// Timeout of the first reading of the driver.
const SHOWS_WITHIN: Duration = Duration::from_secs(10);

/// Runs all checks. `on`: the runtime for network calls; must not be called from one of its threads.
#[must_use]
pub fn check(options: &Options, source: Box<dyn Source>, on: &Handle) -> DoctorReport {
    let mut findings = Findings::default();
    let gpus = seen(source);
    findings.look("user", &[], parts::user);
    findings.look("options", &[], || parts::options(options));
    findings.look("kubelet", &["options"], || parts::kubelet(options, on));
    findings.look("other plugins", &["kubelet"], || parts::other_plugins(options, on));
    findings.look("pod resources", &["kubelet"], || parts::pod_resources(options, on));
    findings.look("pid namespace", &["kubelet"], || parts::pid_namespace(options, on));
    findings.look("library", &[], || parts::library(&options.library));
    for (check, folder) in [
        ("daemon folder", options.daemon.parent().unwrap_or(Path::new("/"))),
        ("allocations", options.allocations.as_path()),
    ] {
        findings.look(check, &["user"], || parts::folder(folder));
    }
    findings.look("daemon", &["daemon folder"], || parts::daemon(&options.daemon));
    findings.look("driver", &[], || parts::driver(&gpus));
    findings.look("device files", &["driver"], || parts::device_files(&gpus));
    let is_simulated = is_simulated(&gpus);
    let node = Host::here();
    findings.look("runtime", &[], || {
        let (devices, driver) = (options.devices, options.driver.as_deref());
        runtime::nvidia(devices, driver, is_simulated, &node.0)
    });
    findings.look("image preloads", &["options"], || hook::program(options, &node));
    findings.look("CDI folder", &["image preloads"], || hook::cdi(options, &node));
    findings.look("cgroup", &[], || runtime::cgroup(Path::new("/proc")));
    findings.look("API server", &[], || cluster::reachable(options, on));
    findings.look("permissions", &["API server"], || cluster::permitted(options, on));
    findings.look("node", &["API server"], || cluster::node(options, on));
    findings.report()
}

/// The GPUs that the driver shows first, or why it shows none.
fn seen(source: Box<dyn Source>) -> Result<Vec<GpuId>, String> {
    let (tell, told) = mpsc::channel();
    let mut sight = Seen::default();
    let watch = observer::Watch::start(source, move |news| {
        let gpus = sight.take(news);
        let gpus = gpus.map(|gpus| gpus.into_iter().map(|gpu| gpu.id).collect());
        _ = tell.send(gpus.map_err(|blind: observer::Blind| blind.to_string()));
    });
    let _watch = watch.map_err(|error| error.to_string())?;
    let silent = |_| format!("the driver has not shown any GPU for {} s", SHOWS_WITHIN.as_secs());
    told.recv_timeout(SHOWS_WITHIN).map_err(silent)?
}

fn is_simulated(gpus: &Result<Vec<GpuId>, String>) -> bool {
    gpus.as_ref().is_ok_and(|gpus| !gpus.is_empty() && gpus.iter().all(GpuId::is_simulated))
}

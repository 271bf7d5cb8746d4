//! Finds processes that use devices outside any session.
//!
//! A session's process is served by the daemon, or has the limiter loaded: with only a memory limit it never calls the
//! daemon, and in a container its pages may be invisible to the daemon. A few system programs use devices on behalf of
//! everybody. All other processes are unknown.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ::limits::GpuId;
use observer::{AllReadings, GpuProcess, UnknownProcess};
use session::process::{ProcessIdentity, start_time};

/// Most bytes of a process's mappings that are read.
const MAPPINGS: u64 = 32 << 20;
/// File name of the limiter, in any directory.
const LIMITER: &str = "libcuda_limiter.so";
/// Files mapped by a program that uses a device: the driver, or the device itself.
const OF_DEVICES: [&str; 3] = ["libcuda.so", "libnvidia-", "libfake_cuda.so"];
const DEVICE_FILES: &str = "/dev/nvidia";
/// System programs that use devices on behalf of everybody. Only a file of root that nobody else can write counts.
const SERVICES: [&str; 7] = [
    "Xorg",
    "Xwayland",
    "nv-hostengine",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-persistenced",
    "nvidia-smi",
];

/// A process outside any session.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) process: UnknownProcess,
    /// The process was seen to use a device without a limiter, so the policy may end it.
    pub(super) is_certain: bool,
}

pub(super) type FoundByDevice = BTreeMap<GpuId, Vec<Found>>;

/// The processes as they are reported.
pub(super) fn by_device(found: &FoundByDevice) -> BTreeMap<GpuId, Vec<UnknownProcess>> {
    let processes = |found: &Vec<Found>| found.iter().map(|one| one.process.clone()).collect();
    found.iter().map(|(&uuid, found)| (uuid, processes(found))).collect()
}

/// What a process has mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mapped {
    limiter: bool,
    device: bool,
}

/// Inspects processes.
#[derive(Debug)]
pub(super) struct Census {
    /// Whether `/proc` shows the processes of the daemon's own pid namespace.
    proc_is_ours: bool,
    /// Start times of processes that have the limiter loaded, by pid.
    limited: HashMap<u32, u64>,
}

impl Default for Census {
    fn default() -> Self {
        let proc_is_ours = ProcessIdentity::own().start_time != 0;
        if !proc_is_ours {
            tracing::warn!(
                "/proc belongs to another pid namespace, so unknown processes cannot be found"
            );
        }
        Self { proc_is_ours, limited: HashMap::new() }
    }
}

impl Census {
    /// Processes on devices outside any session. `served`: the processes that the daemon serves.
    pub(super) fn unknown(&mut self, readings: &AllReadings, served: &[u32]) -> FoundByDevice {
        if !self.proc_is_ours {
            return FoundByDevice::new();
        }
        let mut looked: HashMap<u32, Option<Found>> = HashMap::new();
        let mut found = FoundByDevice::new();
        for device in &readings.devices {
            for &GpuProcess { pid, bytes } in device.processes.iter().flatten() {
                if served.contains(&pid) || pid == std::process::id() {
                    continue;
                }
                let unknown = looked.entry(pid).or_insert_with(|| self.look(pid));
                if let Some(one) = unknown {
                    let process = UnknownProcess { bytes, ..one.process.clone() };
                    found.entry(device.uuid).or_default().push(Found { process, ..one.clone() });
                }
            }
        }
        self.limited.retain(|pid, _| looked.contains_key(pid));
        found
    }

    /// Inspects a process. `None`: it has a limiter, is a system program, or has ended.
    fn look(&mut self, pid: u32) -> Option<Found> {
        let started = start_time(pid)?;
        if self.limited.get(&pid) == Some(&started) {
            return None;
        }
        let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let mapped = File::open(format!("/proc/{pid}/maps")).ok().map(mapped_by);
        if mapped.is_some_and(|mapped| mapped.limiter) {
            self.limited.insert(pid, started);
            return None;
        }
        // A process without the driver mapped is not the driver's: the pid belongs to another pid namespace.
        if mapped.is_some_and(|mapped| !mapped.device) || is_service(pid) {
            return None;
        }
        let identity = ProcessIdentity { pid, start_time: started };
        let name = identity.name();
        let process =
            UnknownProcess { pid, started: Some(started), uid: Some(uid), name, bytes: None };
        let found = Found { process, is_certain: mapped.is_some() };
        // Still the same process, so all of it was read from that process.
        identity.is_running().then_some(found)
    }
}

/// Searches mappings for the limiter and for device files. A process chooses the names of its own files: at worst it
/// passes for what it pretends to be.
fn mapped_by(maps: impl Read) -> Mapped {
    let mut mapped = Mapped::default();
    let mut lines = BufReader::new(maps.take(MAPPINGS));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let path = line.iter().position(|&byte| byte == b'/').map(|at| &line[at..]);
        if let Some(path) = path {
            let from = path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
            let file = &path[from..];
            mapped.limiter |= file.starts_with(LIMITER.as_bytes());
            mapped.device |= path.starts_with(DEVICE_FILES.as_bytes())
                || OF_DEVICES.iter().any(|name| file.starts_with(name.as_bytes()));
        }
        if mapped.limiter {
            break;
        }
        line.clear();
    }
    mapped
}

/// Whether a process runs a system program that uses devices on behalf of everybody.
fn is_service(pid: u32) -> bool {
    let program = format!("/proc/{pid}/exe");
    let named = fs::read_link(&program).is_ok_and(|path| has_name_of_service(&path));
    named && fs::metadata(&program).is_ok_and(|file| file.uid() == 0 && file.mode() & 0o022 == 0)
}

fn has_name_of_service(path: &Path) -> bool {
    path.file_name().is_some_and(|name| SERVICES.iter().any(|service| name == *service))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> (bool, bool) {
        let line = |path: &&str| format!("7f00-7f01 r-xp 00000000 08:01 42      {path}\n");
        let text: String = lines.iter().map(line).collect();
        let mapped = mapped_by(text.as_bytes());
        (mapped.limiter, mapped.device)
    }

    #[test]
    fn a_process_is_known_by_what_it_has_mapped() {
        assert_eq!(of(&["[heap]", "/usr/bin/python3", ""]), (false, false));
        assert_eq!(of(&["/usr/lib/libcuda.so.580.159.04"]), (false, true));
        assert_eq!(of(&["/dev/nvidiactl"]), (false, true));
        assert!(of(&["/opt/a b/libcuda_limiter.so", "/usr/lib/libcuda.so.1"]).0);
        assert!(of(&["/opt/libcuda_limiter.so (deleted)"]).0);
        // The limiter's name does not match the driver's.
        assert_eq!(of(&["/opt/libcuda_limiter.so.d/x", "/home/dev/nvidia"]), (false, false));
    }

    #[test]
    fn services_have_their_names_and_belong_to_root() {
        assert!(has_name_of_service(Path::new("/usr/bin/nvidia-persistenced")));
        assert!(!has_name_of_service(Path::new("/tmp/nvidia-persistenced (deleted)")));
        assert!(!has_name_of_service(Path::new("/usr/bin/python3")));
        assert!(!is_service(std::process::id()));
    }
}

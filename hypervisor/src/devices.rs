//! Which devices exist on the node; asked at registration.

use core::fmt;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use limits::GpuId;

/// Knows the node's devices. Called when a process registers, without the daemon's lock.
pub trait Devices: fmt::Debug + Send + Sync {
    /// Whether the device exists.
    fn exists(&self, uuid: GpuId) -> Existence;

    /// Whether the node has any device.
    fn any(&self) -> bool;
}

/// Whether a device exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Existence {
    /// The device exists.
    Present,
    /// The device does not exist; these do.
    Absent(Vec<GpuId>),
    /// The device may exist. The daemon serves a bounded number of such devices.
    Unknown,
}

/// Where NVIDIA's kernel module lists its devices.
const KERNEL_MODULE: &str = "/proc/driver/nvidia";
/// Shortest time between two readings of the list; it is read only for a device that is missing in it.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The devices that NVIDIA's kernel module lists: GPUs, but not their MIG slices. While there are slices, any device
/// may be one of them. A simulated device may also exist.
#[derive(Debug)]
pub struct KernelDevices {
    folder: PathBuf,
    listing: RwLock<Arc<Listing>>,
    read_at: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Listing {
    present: BTreeSet<GpuId>,
    /// Whether no unlisted device can exist.
    complete: bool,
}

impl Default for KernelDevices {
    fn default() -> Self {
        Self::at(Path::new(KERNEL_MODULE))
    }
}

impl KernelDevices {
    fn at(folder: &Path) -> Self {
        let (folder, listing) = (folder.to_owned(), RwLock::default());
        Self { folder, listing, read_at: Mutex::default() }
    }

    fn listing(&self) -> Arc<Listing> {
        Arc::clone(&self.listing.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the list, unless it is recent or another thread is reading it.
    fn refresh(&self) {
        let Ok(mut read_at) = self.read_at.try_lock() else { return };
        if read_at.is_some_and(|at| at.elapsed() < READ_EVERY) {
            return;
        }
        let listing = Arc::new(read(&self.folder).unwrap_or_default());
        *self.listing.write().unwrap_or_else(PoisonError::into_inner) = listing;
        *read_at = Some(Instant::now());
    }
}

impl Devices for KernelDevices {
    fn exists(&self, uuid: GpuId) -> Existence {
        if uuid.is_simulated() {
            return Existence::Unknown;
        }
        if !self.listing().present.contains(&uuid) {
            self.refresh();
        }
        let listing = self.listing();
        if listing.present.contains(&uuid) {
            Existence::Present
        } else if listing.complete {
            Existence::Absent(listing.present.iter().copied().collect())
        } else {
            Existence::Unknown
        }
    }

    fn any(&self) -> bool {
        if self.listing().present.is_empty() {
            self.refresh();
        }
        !self.listing().present.is_empty()
    }
}

/// Reads the kernel module's list; `None`: no devices.
fn read(folder: &Path) -> Option<Listing> {
    let mut listing = Listing { present: BTreeSet::new(), complete: !has_slices(folder) };
    for gpu in fs::read_dir(folder.join("gpus")).ok()? {
        let text = gpu.and_then(|gpu| fs::read_to_string(gpu.path().join("information")));
        // The module does not know a UUID before the device's first use.
        match text.ok().as_deref().and_then(uuid_of) {
            Some(uuid) => _ = listing.present.insert(uuid),
            None => listing.complete = false,
        }
    }
    (!listing.present.is_empty()).then_some(listing)
}

fn uuid_of(information: &str) -> Option<GpuId> {
    let line = information.lines().find_map(|line| line.strip_prefix("GPU UUID:"))?;
    line.trim().parse().ok()
}

/// Whether MIG slices exist: `capabilities/gpuN/mig/giN`.
fn has_slices(folder: &Path) -> bool {
    let Ok(gpus) = fs::read_dir(folder.join("capabilities")) else { return false };
    gpus.flatten().any(|gpu| {
        let slices = fs::read_dir(gpu.path().join("mig"));
        slices.is_ok_and(|slices| {
            slices.flatten().any(|slice| slice.file_name().as_encoded_bytes().starts_with(b"gi"))
        })
    })
}

/// Treats every device as possibly existing.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyDevice;

impl Devices for AnyDevice {
    fn exists(&self, _: GpuId) -> Existence {
        Existence::Unknown
    }

    fn any(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GPU: GpuId = GpuId::from_bytes([0x34; 16]);
    const OTHER: GpuId = GpuId::from_bytes([0x35; 16]);

    fn add(folder: &Path, bus: &str, uuid: &str) {
        let gpu = folder.join("gpus").join(bus);
        fs::create_dir_all(&gpu).unwrap();
        let text = format!("Model: \t\t NVIDIA H200\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\n");
        fs::write(gpu.join("information"), text).unwrap();
    }

    #[test]
    fn a_gpu_that_the_kernel_module_does_not_show_is_absent() {
        let folder = tempfile::tempdir().unwrap();
        add(folder.path(), "0000:17:00.0", &GPU.to_string());
        let devices = KernelDevices::at(folder.path());
        assert_eq!(devices.exists(GPU), Existence::Present);
        assert_eq!(devices.exists(OTHER), Existence::Absent(vec![GPU]));
        let simulated = "GPU-5a1ce000-0000-4000-8000-000000000001".parse().unwrap();
        assert_eq!(devices.exists(simulated), Existence::Unknown);
        // A new device is found a second later.
        add(folder.path(), "0000:18:00.0", &OTHER.to_string());
        assert_eq!(devices.exists(OTHER), Existence::Absent(vec![GPU]));
        *devices.read_at.lock().unwrap() = None;
        assert_eq!(devices.exists(OTHER), Existence::Present);
    }

    #[test]
    fn where_not_all_is_shown_any_device_may_exist() {
        let unknown = |folder: &Path| {
            let devices = KernelDevices::at(folder);
            assert_eq!(devices.exists(OTHER), Existence::Unknown);
            devices.exists(GPU)
        };
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(unknown(folder.path()), Existence::Unknown);
        add(folder.path(), "0000:17:00.0", &GPU.to_string());
        add(folder.path(), "0000:18:00.0", "GPU-????????-????-????-????-????????????");
        assert_eq!(unknown(folder.path()), Existence::Present);
        fs::remove_dir_all(folder.path().join("gpus/0000:18:00.0")).unwrap();
        fs::create_dir_all(folder.path().join("capabilities/gpu0/mig/gi1")).unwrap();
        assert_eq!(unknown(folder.path()), Existence::Present);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn any_text_of_a_device_is_read(text in "(GPU UUID:|Model:|[ -~\t\n]){0,8}") {
            let _ = uuid_of(&text);
        }
    }
}

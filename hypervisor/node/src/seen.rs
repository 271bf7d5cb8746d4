//! Converts the observer's readings into the GPUs to offer.

use std::collections::BTreeSet;

use dialects::registers::Hardware;
use dialects::topology::ONE_NVLINK;
use limits::GpuId;
use observer::{Blind, DeviceView, Link, Model};

use crate::pool::Gpu;

const MIB: u64 = 1 << 20;

/// Collects readings. Runs on the observer's thread.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    model: Model,
    /// The GPUs in MIG mode that were told of.
    in_mig: BTreeSet<GpuId>,
}

impl Seen {
    /// Clears a GPU's fault, on its operator's word: only later readings count.
    pub(crate) fn declare_healthy(&mut self, gpu: GpuId) {
        _ = self.model.declare_healthy(gpu);
    }

    /// The GPUs after these readings.
    pub(crate) fn take(&mut self, news: observer::Seen) -> Result<Vec<Gpu>, Blind> {
        match news {
            observer::Seen::Devices(readings) => _ = self.model.read(readings),
            observer::Seen::Xid(gpu, xid) => _ = self.model.xid(gpu, xid),
            observer::Seen::Blind(why) => {
                self.model.blind(why.clone());
                return Err(why);
            }
        }
        let view = self.model.view();
        match view.blind {
            Some(why) => Err(why),
            None => Ok(self.offered(&view.devices)),
        }
    }

    /// Leaves out GPUs in MIG mode: CUDA shows programs their instances, whose compute Sluice does not limit.
    fn offered(&mut self, devices: &[DeviceView]) -> Vec<Gpu> {
        let is_in_mig = |device: &&DeviceView| device.reading.hardware.mig == Ok(true);
        let (in_mig, whole): (Vec<_>, Vec<_>) = devices.iter().partition(is_in_mig);
        let in_mig: BTreeSet<GpuId> = in_mig.iter().map(|device| device.reading.uuid).collect();
        for gpu in in_mig.difference(&self.in_mig) {
            tracing::warn!(%gpu, "is in MIG mode and not offered; 'nvidia-smi -mig 0' ends that mode");
        }
        self.in_mig = in_mig;
        whole.into_iter().map(offered).collect()
    }
}

fn offered(device: &DeviceView) -> Gpu {
    let memory = device.reading.memory.as_ref();
    Gpu {
        id: device.reading.uuid,
        memory_mib: memory.ok().map(|memory| memory.total / MIB),
        healthy: device.health.is_healthy(),
        product: device.reading.name.clone().unwrap_or_else(|_| "GPU".to_owned()),
        hardware: hardware(&device.reading.hardware),
    }
}

fn hardware(read: &observer::Hardware) -> Hardware {
    Hardware {
        numa: read.numa.as_ref().copied().ok(),
        bus_id: read.pci.as_deref().map(bus_id).unwrap_or_default(),
        capability: read.capability.as_ref().copied().unwrap_or_default(),
        links: read.links.iter().map(|(to, link)| (*to, kind(*link))).collect(),
    }
}

/// VGPU-Manager's number for a kind of link.
fn kind(link: Link) -> u32 {
    match link {
        Link::System => 1,
        Link::Node => 2,
        Link::HostBridge => 3,
        Link::Switches => 4,
        Link::Switch => 5,
        Link::Board => 6,
        Link::NvLinks(links) => ONE_NVLINK + links.saturating_sub(1),
    }
}

/// The PCI address as the kernel writes it. NVML writes an eight-digit domain and capital letters.
fn bus_id(pci: &str) -> String {
    let text = pci.to_ascii_lowercase();
    let short = text.split_once(':').filter(|(domain, _)| domain.len() == 8);
    match short.and_then(|(domain, rest)| Some((domain.strip_prefix("0000")?, rest))) {
        Some((domain, rest)) => format!("{domain}:{rest}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use observer::{AllReadings, DeviceReading, Unread};
    use std::time::Instant;

    #[test]
    fn a_gpu_in_mig_mode_is_not_offered() {
        let reading = |index: u32, mig| {
            let id = GpuId::from_bytes([index as u8; 16]);
            let mut reading = DeviceReading::unread(index, id, &Unread::NotSupported);
            reading.hardware.mig = mig;
            reading
        };
        let mut seen = Seen::default();
        let mut offered = |second| {
            let devices = vec![reading(0, Err(Unread::NotSupported)), reading(1, second)];
            let readings = AllReadings { taken: Instant::now(), devices };
            seen.take(observer::Seen::Devices(readings)).unwrap().len()
        };
        assert_eq!([Ok(false), Ok(true), Ok(false)].map(&mut offered), [2, 1, 2]);
    }

    #[test]
    fn addresses_are_written_as_the_kernel_does() {
        assert_eq!(bus_id("00000000:1A:00.0"), "0000:1a:00.0");
        assert_eq!(bus_id("0000:01:00.0"), "0000:01:00.0");
        assert_eq!(bus_id("00010000:01:00.0"), "00010000:01:00.0");
    }

    #[test]
    fn what_the_driver_does_not_tell_is_as_the_originals_write_it() {
        let why = || Unread::NotSupported;
        let other = limits::GpuId::from_bytes([7; 16]);
        let none = observer::Hardware {
            pci: Err(why()),
            numa: Err(why()),
            capability: Err(why()),
            mig: Err(why()),
            links: Vec::new(),
        };
        assert_eq!(hardware(&none), Hardware::default());
        let all = observer::Hardware {
            pci: Ok("00000000:C1:00.0".to_owned()),
            numa: Ok(1),
            capability: Ok((9, 0)),
            mig: Ok(false),
            links: vec![(other, Link::Node), (other, Link::NvLinks(18))],
        };
        let wanted = Hardware {
            numa: Some(1),
            bus_id: "0000:c1:00.0".to_owned(),
            capability: (9, 0),
            links: vec![(other, 2), (other, 24)],
        };
        assert_eq!(hardware(&all), wanted);
    }
}

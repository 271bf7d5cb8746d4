//! What the observer shows, as GPUs to be offered.

use observer::{Blind, DeviceView, Model};

use crate::pool::Gpu;

const MIB: u64 = 1 << 20;

/// Gathers what is seen. Used by the observer's own thread.
#[derive(Debug, Default)]
pub(crate) struct Seen(Model);

impl Seen {
    /// The GPUs as they are now known.
    pub(crate) fn take(&mut self, news: observer::Seen) -> Result<Vec<Gpu>, Blind> {
        match news {
            observer::Seen::Devices(readings) => _ = self.0.read(readings),
            observer::Seen::Xid(gpu, xid) => _ = self.0.xid(gpu, xid),
            observer::Seen::Blind(why) => {
                self.0.blind(why.clone());
                return Err(why);
            }
        }
        let view = self.0.view();
        match view.blind {
            Some(why) => Err(why),
            None => Ok(view.devices.iter().map(offered).collect()),
        }
    }
}

fn offered(device: &DeviceView) -> Gpu {
    let memory = device.reading.memory.as_ref();
    Gpu {
        id: device.reading.uuid,
        memory_mib: memory.ok().map(|memory| memory.total / MIB),
        healthy: device.health.is_healthy(),
        product: device.reading.name.clone().unwrap_or_else(|_| "GPU".to_owned()),
    }
}

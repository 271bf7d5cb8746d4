//! The node's GPUs, asked for once. A session on the simulated driver has its own NVML.

use std::cell::OnceCell;
use std::path::Path;

use limits::GpuId;
use session::directory::Found;

use crate::devices::{self, VisibleGpu};
use crate::parts::{self, Parts};

/// The GPUs as NVML lists them, if it can.
#[derive(Debug, Default)]
pub(crate) struct Gpus {
    real: OnceCell<Vec<VisibleGpu>>,
    simulated: OnceCell<Vec<VisibleGpu>>,
}

impl Gpus {
    /// Those that a session sees. What a user's directory holds only says whether they are simulated: the library that
    /// is loaded is always that of this installation.
    pub(crate) fn of(&self, session: &Found) -> &[VisibleGpu] {
        if is_simulated(session) {
            return self.simulated.get_or_init(|| {
                let library = Parts::locate(None).and_then(|parts| parts.find(parts::FAKE_NVML.0));
                library.map_or_else(|_| Vec::new(), |library| listed(Some(&library)))
            });
        }
        self.real()
    }

    /// The index of a GPU in `nvidia-smi`. `session`: as it sees them; `None`: those of the driver. Under the limiter
    /// NVML is not asked: this process would become one of its session.
    pub(crate) fn index(&self, session: Option<&Found>, uuid: GpuId) -> Option<u32> {
        self.find(session, uuid).map(|gpu| gpu.index)
    }

    /// A GPU, in the same way.
    pub(crate) fn find(&self, session: Option<&Found>, uuid: GpuId) -> Option<&VisibleGpu> {
        if is_limited() {
            return None;
        }
        let gpus = session.map_or_else(|| self.real(), |session| self.of(session));
        gpus.iter().find(|gpu| gpu.uuid == uuid)
    }

    /// Those of the driver; none under the limiter.
    pub(crate) fn of_driver(&self) -> &[VisibleGpu] {
        if is_limited() { &[] } else { self.real() }
    }

    /// The memory of a GPU of the driver, in bytes.
    pub(crate) fn memory(&self, uuid: GpuId) -> Option<u64> {
        self.real().iter().find(|gpu| gpu.uuid == uuid)?.known_memory()
    }

    /// Those of the driver.
    fn real(&self) -> &[VisibleGpu] {
        self.real.get_or_init(|| listed(None))
    }
}

/// The GPUs that NVML lists. Under the limiter it shows the session's limit in place of a GPU's memory, which is not
/// known then.
fn listed(library: Option<&Path>) -> Vec<VisibleGpu> {
    let mut gpus = devices::list(library).unwrap_or_default();
    if is_limited() {
        gpus.iter_mut().for_each(|gpu| gpu.memory = 0);
    }
    gpus
}

/// Whether the limiter is loaded into this process.
fn is_limited() -> bool {
    let preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    preload.to_string_lossy().contains(parts::LIMITER)
}

/// Whether a session runs on the simulated driver.
pub(crate) fn is_simulated(session: &Found) -> bool {
    // A session inside another one's directory shares that one's driver.
    let own = |folder: &Path| folder.join("fake-driver").join(parts::FAKE_NVML.1);
    session.path.ancestors().take(2).any(|path| own(path).symlink_metadata().is_ok())
}

//! How the node's part is to run.

use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use dialects::gates::FeatureGates;
use dialects::registers::HamiForm;
use dialects::table::offered;
use dialects::vgpu_rs::{GpuInfo, GpuInfoError};
use dialects::{Dialect, Resource, ResourceNames};

use crate::cluster::ClusterOptions;
use crate::image_preloads::ImagePreloads;
use crate::pool::Scaling;

/// The kubelet's folder.
pub const KUBELET: &str = "/var/lib/kubelet";
/// The folder of allocations.
pub const ALLOCATIONS: &str = "/run/sluice-allocations";
/// The folder of the libraries that containers preload.
pub const LIBRARY: &str = "/usr/lib/sluice";
/// The daemon's socket.
pub const DAEMON: &str = "/run/sluice/hypervisor.sock";
/// Where in the kubelet's folder plugins are.
const PLUGINS: &str = "device-plugins";

/// How a container gets the driver's device files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceList {
    /// They are named, and `NVIDIA_VISIBLE_DEVICES` tells NVIDIA's container runtime to bring its libraries.
    Files,
    /// The container runtime has NVIDIA's CDI file, which names both.
    Cdi,
    /// They are named, and the driver's libraries are mounted: the container runtime knows nothing of NVIDIA's.
    Mounts,
}

impl DeviceList {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Files, Self::Cdi, Self::Mounts];

    /// Its name in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Cdi => "cdi",
            Self::Mounts => "mounts",
        }
    }
}

/// A text that names no such way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no way to name devices; expected files, cdi or mounts")]
pub struct DeviceListError(String);

impl FromStr for DeviceList {
    type Err = DeviceListError;

    fn from_str(text: &str) -> Result<Self, DeviceListError> {
        let named = Self::ALL.into_iter().find(|list| list.name() == text);
        named.ok_or_else(|| DeviceListError(text.to_owned()))
    }
}

/// How the node's part is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The kubelet's folder.
    pub kubelet: PathBuf,
    /// The folder of allocations.
    pub allocations: PathBuf,
    /// Whose names pods may use.
    pub dialects: Vec<Dialect>,
    /// What is switched on.
    pub gates: FeatureGates,
    /// What the cluster calls resources.
    pub names: ResourceNames,
    /// How many containers may have a part of one GPU.
    pub split: NonZeroU32,
    /// How many MiB one unit of memory is.
    pub memory_factor: NonZeroU32,
    /// The folder of the libraries that containers preload.
    pub library: PathBuf,
    /// The socket of the node's daemon, whose folder containers see.
    pub daemon: PathBuf,
    /// How containers get device files.
    pub devices: DeviceList,
    /// The node's folder of the driver's libraries. `None`: it is looked for.
    pub driver: Option<PathBuf>,
    /// How what images preload themselves is kept. `None`: it is hidden.
    pub image_preloads: Option<ImagePreloads>,
    /// How often what a GPU has may be promised.
    pub scaling: Scaling,
    /// The file that says how many TFLOPS GPUs have, for pods of vgpu.rs.
    pub gpu_info: Option<PathBuf>,
    /// In which form HAMi's schedulers are told of the devices.
    pub hami: HamiForm,
    /// Where pods say what they ask for. `None`: the kubelet's counts are all that is known.
    pub cluster: Option<ClusterOptions>,
    /// Where the container runtime finds the CDI files of claims. `None`: there is no DRA driver.
    pub dra: Option<PathBuf>,
    /// The container runtime's socket for its plugins. `None`: containers of other schedulers are left alone.
    pub nri: Option<PathBuf>,
}

/// An option that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// Nothing is to be offered.
    #[error("no dialect is chosen; expected vgpu-manager, volcano, hami or vgpu-rs")]
    NoDialect,
    /// A folder has to be named from the root: the kubelet mounts it.
    #[error("{option} {folder}; expected a path that begins with /", folder = folder.display())]
    Relative {
        /// The option.
        option: &'static str,
        /// Its value.
        folder: PathBuf,
    },
    /// What GPUs can do cannot be read.
    #[error("--gpu-info {file}: {why}", file = file.display())]
    GpuInfo {
        /// The file.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// Containers see the daemon's folder, and must not see what others have.
    #[error(
        "--allocations {allocations}: it is in the folder of --daemon {daemon}, which every container sees; expected another folder",
        allocations = allocations.display(),
        daemon = daemon.display()
    )]
    Within {
        /// The folder of allocations.
        allocations: PathBuf,
        /// The daemon's socket.
        daemon: PathBuf,
    },
    /// Claims are the API server's.
    #[error(
        "--dra without --node-name: the driver has to ask an API server; expected --node-name NAME"
    )]
    DraWithoutCluster,
    /// There is no kubelet's folder.
    #[error(
        "--kubelet-dir: {folder}: {source}; expected the folder in which a kubelet keeps its plugins' sockets",
        folder = folder.display()
    )]
    Kubelet {
        /// The folder of plugins.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Options {
    /// What is to be offered.
    pub(crate) fn resources(&self) -> Result<Vec<Resource>, OptionsError> {
        let resources = offered(&self.dialects, &self.gates);
        if resources.is_empty() { Err(OptionsError::NoDialect) } else { Ok(resources) }
    }

    /// What GPUs can do. Empty: nobody says it.
    pub(crate) fn gpu_info(&self) -> Result<GpuInfo, OptionsError> {
        let Some(file) = &self.gpu_info else { return Ok(GpuInfo::default()) };
        let wrong = |why| OptionsError::GpuInfo { file: file.clone(), why };
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        text.parse().map_err(|error: GpuInfoError| wrong(error.to_string()))
    }

    /// The folder of plugins. It is not made: without it there is no kubelet here.
    pub(crate) fn plugin_folder(&self) -> Result<PathBuf, OptionsError> {
        let hook = self.image_preloads.as_ref();
        let hook = hook.map(|hook| [("--cdi-dir", &hook.cdi), ("--hook", &hook.program)]);
        let ways = [("--cdi-dir", &self.dra), ("--nri", &self.nri)];
        let ways = ways.into_iter().filter_map(|(name, path)| Some((name, path.as_ref()?)));
        let always = [
            ("--kubelet-dir", &self.kubelet),
            ("--allocations", &self.allocations),
            ("--library", &self.library),
            ("--daemon", &self.daemon),
        ];
        for (option, folder) in always.into_iter().chain(hook.into_iter().flatten()).chain(ways) {
            if !folder.is_absolute() {
                return Err(OptionsError::Relative { option, folder: folder.clone() });
            }
        }
        if self.daemon.parent().is_none_or(|seen| self.allocations.starts_with(seen)) {
            let (allocations, daemon) = (self.allocations.clone(), self.daemon.clone());
            return Err(OptionsError::Within { allocations, daemon });
        }
        let folder = self.kubelet.join(PLUGINS);
        match folder_exists(&folder) {
            Ok(()) => Ok(folder),
            Err(source) => Err(OptionsError::Kubelet { folder, source }),
        }
    }
}

fn folder_exists(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_dir() {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::NotADirectory))
    }
}

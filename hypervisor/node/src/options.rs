//! The options of `hypervisor node`, with their defaults and checks.

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

/// Default of the kubelet's directory.
pub const KUBELET: &str = "/var/lib/kubelet";
/// Default of the allocations' directory.
pub const ALLOCATIONS: &str = "/run/sluice-allocations";
/// Default directory of the libraries that containers preload.
pub const LIBRARY: &str = "/usr/lib/sluice";
/// Default of the daemon's socket.
pub const DAEMON: &str = "/run/sluice/hypervisor.sock";
/// Subdirectory of the kubelet's directory with the device plugins' sockets.
const PLUGINS: &str = "device-plugins";

/// How a container gets the driver's device files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceList {
    /// The plugin lists the device files, and `NVIDIA_VISIBLE_DEVICES` makes NVIDIA's container runtime mount the
    /// libraries.
    Files,
    /// The plugin names CDI devices; NVIDIA's CDI file lists device files and libraries.
    Cdi,
    /// The plugin lists the device files and mounts the driver's libraries. For runtimes without NVIDIA's container
    /// toolkit.
    Mounts,
}

impl DeviceList {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Files, Self::Cdi, Self::Mounts];

    /// The name in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Cdi => "cdi",
            Self::Mounts => "mounts",
        }
    }
}

/// The text is no name of a [`DeviceList`].
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

/// The options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The kubelet's directory.
    pub kubelet: PathBuf,
    /// The allocations' directory.
    pub allocations: PathBuf,
    /// The dialects whose resource names pods may use.
    pub dialects: Vec<Dialect>,
    /// The feature gates.
    pub gates: FeatureGates,
    /// The resource names that the cluster uses.
    pub names: ResourceNames,
    /// How many containers may share a GPU.
    pub split: NonZeroU32,
    /// MiB per memory unit.
    pub memory_factor: NonZeroU32,
    /// The directory of the libraries that containers preload.
    pub library: PathBuf,
    /// The daemon's socket. Containers see its directory.
    pub daemon: PathBuf,
    /// How containers get device files and the driver's libraries.
    pub devices: DeviceList,
    /// The directory of the driver's libraries. `None`: search for it.
    pub driver: Option<PathBuf>,
    /// How images' preload lists are kept. `None`: they are hidden.
    pub image_preloads: Option<ImagePreloads>,
    /// How far GPUs may be overcommitted.
    pub scaling: Scaling,
    /// The file with the TFLOPS of GPU models, for pods of vgpu.rs.
    pub gpu_info: Option<PathBuf>,
    /// The format in which devices are registered for HAMi's schedulers.
    pub hami: HamiForm,
    /// How to read pods from the API server. `None`: only the kubelet's counts are known.
    pub cluster: Option<ClusterOptions>,
    /// The directory for the CDI files of claims. `None`: no DRA driver.
    pub dra: Option<PathBuf>,
    /// The container runtime's NRI socket. `None`: containers of other schedulers are not limited.
    pub nri: Option<PathBuf>,
}

/// An invalid option.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// No dialect is chosen.
    #[error("no dialect is chosen; expected vgpu-manager, volcano, hami or vgpu-rs")]
    NoDialect,
    /// Paths must be absolute, since the kubelet mounts them.
    #[error("{option} {folder}; expected a path that begins with /", folder = folder.display())]
    Relative {
        /// The option.
        option: &'static str,
        /// Its value.
        folder: PathBuf,
    },
    /// The file with the TFLOPS of GPU models cannot be read.
    #[error("--gpu-info {file}: {why}", file = file.display())]
    GpuInfo {
        /// The file.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// Every container sees the daemon's directory, so allocations must not be in it.
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
    /// The DRA driver reads claims from the API server.
    #[error(
        "--dra without --node-name: the driver has to ask an API server; expected --node-name NAME"
    )]
    DraWithoutCluster,
    /// The kubelet's plugin directory is missing.
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
    /// The resources to offer.
    pub(crate) fn resources(&self) -> Result<Vec<Resource>, OptionsError> {
        let resources = offered(&self.dialects, &self.gates);
        if resources.is_empty() { Err(OptionsError::NoDialect) } else { Ok(resources) }
    }

    /// The TFLOPS of GPU models. Empty without the option.
    pub(crate) fn gpu_info(&self) -> Result<GpuInfo, OptionsError> {
        let Some(file) = &self.gpu_info else { return Ok(GpuInfo::default()) };
        let wrong = |why| OptionsError::GpuInfo { file: file.clone(), why };
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        text.parse().map_err(|error: GpuInfoError| wrong(error.to_string()))
    }

    /// The directory for plugins' sockets. Never created: if it is missing, no kubelet runs here.
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

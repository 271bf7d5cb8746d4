//! Reads and writes the annotations that list a node's devices, in each dialect's format.

use core::num::NonZeroU32;
use core::str::FromStr;

use limits::GpuId;
use serde::{Deserialize, Serialize};

use crate::table::Dialect;

/// A device in a node's annotation.
#[derive(Clone, Debug, PartialEq)]
pub struct Registered {
    /// Its index on the node.
    pub index: u32,
    /// Its UUID.
    pub gpu: GpuId,
    /// The product name as the driver reports it.
    pub product: String,
    /// Percent of its compute that may be promised in total.
    pub cores: u64,
    /// Memory in MiB that may be promised in total.
    pub memory_mib: u64,
    /// How many containers may share it.
    pub places: u64,
    /// Its hardware.
    pub hardware: Hardware,
    /// Whether it may be allocated.
    pub healthy: bool,
}

/// Properties of a GPU that schedulers consider beside its free capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// Its NUMA node. `None`: the driver does not report it; written as 0, as by the originals.
    pub numa: Option<u32>,
    /// Its PCI address, such as `0000:01:00.0`. Empty: unknown.
    pub bus_id: String,
    /// Its compute capability: major and minor. Zeros: unknown.
    pub capability: (u32, u32),
    /// Its links to other GPUs, with kinds as in [`Links`](crate::Links). Not part of the annotation.
    pub links: Vec<(GpuId, u32)>,
}

/// Why an annotation cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Invalid JSON.
    #[error("a node's devices: {0}")]
    Json(String),
    /// The dialect has no such annotation.
    #[error("{0} has no text for a node's devices")]
    None(&'static str),
    /// A device has another format.
    #[error("{text:?} is no device of a node; expected {form}")]
    Device {
        /// The device.
        text: String,
        /// The accepted format.
        form: &'static str,
    },
}

/// VGPU-Manager's JSON of a device.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VgpuDevice {
    id: u32,
    #[serde(rename = "type")]
    product: String,
    uuid: String,
    core: u64,
    memory: u64,
    number: u64,
    /// -1 if unknown, in some versions.
    numa: i32,
    mig: bool,
    bus_id: String,
    capability: f32,
    healthy: bool,
}

/// The JSON of a device in newer versions of HAMi. Zero values are omitted.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct HamiDevice {
    id: String,
    #[serde(skip_serializing_if = "is_default")]
    index: u32,
    #[serde(skip_serializing_if = "is_default")]
    count: u64,
    #[serde(skip_serializing_if = "is_default")]
    devmem: u64,
    #[serde(skip_serializing_if = "is_default")]
    devcore: u64,
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    product: String,
    #[serde(skip_serializing_if = "is_default")]
    numa: i32,
    #[serde(skip_serializing_if = "is_default")]
    mode: String,
    #[serde(skip_serializing_if = "is_default")]
    health: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The format for HAMi's schedulers. Newer versions read JSON, older ones fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HamiForm {
    /// A JSON list.
    #[default]
    Json,
    /// Nine comma-separated fields per device.
    Fields,
}

impl HamiForm {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::Json, Self::Fields];

    /// The name in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Fields => "fields",
        }
    }
}

/// The text is no name of a [`HamiForm`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no form of HAMi's registration; expected json or fields")]
pub struct HamiFormError(String);

impl FromStr for HamiForm {
    type Err = HamiFormError;

    fn from_str(text: &str) -> Result<Self, HamiFormError> {
        let named = Self::ALL.into_iter().find(|form| form.name() == text);
        named.ok_or_else(|| HamiFormError(text.to_owned()))
    }
}

/// VGPU-Manager's annotation on how a node's GPUs are split.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeConfig {
    /// How many containers may share a GPU.
    pub device_split: u32,
    /// Factor by which compute may be promised.
    pub cores_scaling: f64,
    /// MiB per memory unit.
    pub memory_factor: u32,
    /// Factor by which memory may be promised.
    pub memory_scaling: f64,
}

/// The prefix of product names in HAMi's and Volcano's formats.
pub(crate) const MAKER: &str = "NVIDIA-";
/// How limits are enforced on the devices.
const MODE: &str = "hami-core";
const VOLCANO_FORM: &str = "UUID,COUNT,MEMORY,TYPE,HEALTH,MODE";
const HAMI_FORM: &str = "UUID,COUNT,MIB,CORES,TYPE,NUMA,HEALTH,INDEX,MODE";

/// Formats a node's devices. `form`: for HAMi. `factor`: the node's memory factor.
///
/// # Errors
/// [`RegisterError::None`]; never [`RegisterError::Json`] for real devices.
pub fn write(
    dialect: Dialect,
    form: HamiForm,
    devices: &[Registered],
    factor: NonZeroU32,
) -> Result<String, RegisterError> {
    // Product names must not contain separators.
    let plain = |name: &str| name.replace([',', ':', ';'], "-");
    let json = |error: serde_json::Error| RegisterError::Json(error.to_string());
    Ok(match dialect {
        Dialect::VgpuManager => {
            let one = |device: &Registered| VgpuDevice {
                id: device.index,
                product: device.product.clone(),
                uuid: device.gpu.to_string(),
                core: device.cores,
                memory: device.memory_mib,
                number: device.places,
                numa: signed(device.hardware.numa),
                mig: false,
                bus_id: device.hardware.bus_id.clone(),
                capability: fraction(device.hardware.capability),
                healthy: device.healthy,
            };
            let all: Vec<VgpuDevice> = devices.iter().map(one).collect();
            serde_json::to_string(&all).map_err(json)?
        }
        Dialect::VgpuRs => return Err(RegisterError::None(dialect.name())),
        Dialect::Volcano => devices.iter().map(|device| {
            let Registered { gpu, places, memory_mib, product, healthy, .. } = device;
            let memory = memory_mib / dialect.text_unit(factor);
            // Volcano's scheduler ignores the health, so an unhealthy GPU has no places.
            let places = if *healthy { *places } else { 0 };
            format!("{gpu},{places},{memory},{MAKER}{},{healthy},{MODE}:", plain(product))
        }).collect(),
        Dialect::Hami if form == HamiForm::Json => {
            let one = |device: &Registered| HamiDevice {
                id: device.gpu.to_string(),
                index: device.index,
                count: device.places,
                devmem: device.memory_mib,
                devcore: device.cores,
                product: format!("{MAKER}{}", plain(&device.product)),
                numa: signed(device.hardware.numa),
                mode: MODE.to_owned(),
                health: device.healthy,
            };
            let all: Vec<HamiDevice> = devices.iter().map(one).collect();
            serde_json::to_string(&all).map_err(json)?
        }
        Dialect::Hami => devices.iter().map(|device| {
            let Registered { index, gpu, product, cores, memory_mib, places, hardware, healthy } = device;
            let (product, numa) = (plain(product), signed(hardware.numa));
            format!("{gpu},{places},{memory_mib},{cores},{MAKER}{product},{numa},{healthy},{index},{MODE}:")
        }).collect(),
    })
}

fn signed(numa: Option<u32>) -> i32 {
    i32::try_from(numa.unwrap_or_default()).unwrap_or_default()
}

fn unsigned(numa: i32) -> Option<u32> {
    u32::try_from(numa).ok()
}

/// VGPU-Manager's form of a compute capability, such as 8.6.
fn fraction((major, minor): (u32, u32)) -> f32 {
    format!("{major}.{minor}").parse().unwrap_or_default()
}

fn capability(fraction: f32) -> (u32, u32) {
    let text = fraction.to_string();
    let (major, minor) = text.split_once('.').unwrap_or((&text, "0"));
    major.parse().ok().zip(minor.parse().ok()).unwrap_or_default()
}

/// Formats the annotation on how a node's GPUs are split.
///
/// # Errors
/// [`RegisterError::Json`]: never.
pub fn write_config(config: &NodeConfig) -> Result<String, RegisterError> {
    serde_json::to_string(config).map_err(|error| RegisterError::Json(error.to_string()))
}

///
/// # Errors
/// [`RegisterError::Json`]
pub fn read_config(text: &str) -> Result<NodeConfig, RegisterError> {
    serde_json::from_str(text).map_err(|error| RegisterError::Json(error.to_string()))
}

/// Reads what [`write`] writes, the shorter formats of older versions, and HAMi's newer format. `factor`: the node's
/// memory factor.
///
/// # Errors
/// [`RegisterError`]
pub fn read(
    dialect: Dialect,
    text: &str,
    factor: NonZeroU32,
) -> Result<Vec<Registered>, RegisterError> {
    let json = |error: serde_json::Error| RegisterError::Json(error.to_string());
    let form = if dialect == Dialect::Volcano { VOLCANO_FORM } else { HAMI_FORM };
    let wrong = |text: &str| RegisterError::Device { text: text.chars().take(120).collect(), form };
    match dialect {
        Dialect::VgpuRs => Err(RegisterError::None(dialect.name())),
        Dialect::VgpuManager => {
            let all: Vec<VgpuDevice> = serde_json::from_str(text).map_err(json)?;
            let one = |device: VgpuDevice| {
                Ok(Registered {
                    index: device.id,
                    gpu: device.uuid.parse().map_err(|_| wrong(&device.uuid))?,
                    product: device.product,
                    cores: device.core,
                    memory_mib: device.memory,
                    places: device.number,
                    hardware: Hardware {
                        numa: unsigned(device.numa),
                        bus_id: device.bus_id,
                        capability: capability(device.capability),
                        links: Vec::new(),
                    },
                    healthy: device.healthy,
                })
            };
            // MIG instances are listed as devices of their own.
            all.into_iter().filter(|device| !device.mig).map(one).collect()
        }
        Dialect::Hami if text.trim_start().starts_with('[') => {
            let all: Vec<HamiDevice> = serde_json::from_str(text).map_err(json)?;
            let one = |device: HamiDevice| {
                Ok(Registered {
                    index: device.index,
                    gpu: device.id.parse().map_err(|_| wrong(&device.id))?,
                    product: unprefixed(&device.product),
                    cores: device.devcore,
                    memory_mib: device.devmem,
                    places: device.count,
                    hardware: Hardware { numa: unsigned(device.numa), ..Hardware::default() },
                    healthy: device.health,
                })
            };
            all.into_iter().map(one).collect()
        }
        Dialect::Volcano | Dialect::Hami => {
            let parts = text.split(':').map(str::trim).filter(|part| !part.is_empty());
            parts
                .zip(0..)
                .map(|(part, index)| {
                    let fields: Vec<&str> = part.split(',').collect();
                    let found = match dialect {
                        Dialect::Volcano => volcano(&fields, index, dialect.text_unit(factor)),
                        _ => hami(&fields, index),
                    };
                    found.ok_or_else(|| wrong(part))
                })
                .collect()
        }
    }
}

fn unprefixed(product: &str) -> String {
    product.strip_prefix(MAKER).unwrap_or(product).to_owned()
}

fn volcano(fields: &[&str], index: u32, unit: u64) -> Option<Registered> {
    let (&[gpu, places, memory, product, healthy] | &[gpu, places, memory, product, healthy, _]) =
        fields
    else {
        return None;
    };
    Some(Registered {
        index,
        gpu: gpu.parse().ok()?,
        product: unprefixed(product),
        cores: crate::CORES,
        memory_mib: memory.parse::<u64>().ok()?.checked_mul(unit)?,
        places: places.parse().ok()?,
        hardware: Hardware::default(),
        healthy: healthy.parse().ok()?,
    })
}

fn hami(fields: &[&str], place: u32) -> Option<Registered> {
    let (gpu, places, memory, cores, product, numa, healthy, index) = match *fields {
        [gpu, places, memory, cores, product, numa, healthy] => {
            (gpu, places, memory, cores, product, numa, healthy, place)
        }
        [gpu, places, memory, cores, product, numa, healthy, index, _] => {
            (gpu, places, memory, cores, product, numa, healthy, index.parse().ok()?)
        }
        _ => return None,
    };
    Some(Registered {
        index,
        gpu: gpu.parse().ok()?,
        product: unprefixed(product),
        cores: cores.parse().ok()?,
        memory_mib: memory.parse().ok()?,
        places: places.parse().ok()?,
        hardware: Hardware { numa: unsigned(numa.parse().ok()?), ..Hardware::default() },
        healthy: healthy.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn device(index: u32, gpu: &str, product: &str, memory_mib: u64) -> Registered {
        Registered {
            index,
            gpu: gpu.parse().unwrap(),
            product: product.to_owned(),
            cores: 100,
            memory_mib,
            places: 10,
            hardware: Hardware { numa: Some(0), ..Hardware::default() },
            healthy: true,
        }
    }

    const A: &str = "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec";
    const B: &str = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448";

    /// From docs/develop/protocol.md of HAMi, in its three formats over time.
    #[test]
    fn hamis_own_examples() {
        let two = [
            device(0, A, "Tesla V100-PCIE-32GB", 32768),
            device(1, B, "Tesla V100-PCIE-32GB", 32768),
        ];
        let seven = format!(
            "{A},10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:{B},10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
        );
        assert_eq!(read(Dialect::Hami, &seven, NonZeroU32::MIN).unwrap(), two);
        let nine = format!(
            "{A},10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true,0,hami-core:{B},10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true,1,hami-core:"
        );
        assert_eq!(read(Dialect::Hami, &nine, NonZeroU32::MIN).unwrap(), two);
        assert_eq!(write(Dialect::Hami, HamiForm::Fields, &two, NonZeroU32::MIN).unwrap(), nine);
        let json = format!(
            r#"[{{"id":"{A}","count":10,"devmem":32768,"devcore":100,"type":"NVIDIA-Tesla V100-PCIE-32GB","numa":1,"mode":"hami-core","health":true}}]"#
        );
        let hardware = Hardware { numa: Some(1), ..Hardware::default() };
        let numa = Registered { hardware, ..two[0].clone() };
        assert_eq!(
            read(Dialect::Hami, &json, NonZeroU32::MIN).unwrap(),
            std::slice::from_ref(&numa)
        );
        assert_eq!(write(Dialect::Hami, HamiForm::Json, &[numa], NonZeroU32::MIN).unwrap(), json);
        // Zero values are omitted, as in Go: index 0, NUMA node 0, not healthy.
        let second = Registered { index: 1, ..two[0].clone() };
        let said = write(Dialect::Hami, HamiForm::Json, &[second], NonZeroU32::MIN).unwrap();
        assert!(said.starts_with(&format!(r#"[{{"id":"{A}","index":1,"count":10,"#)), "{said}");
        let ill = Registered { healthy: false, ..two[0].clone() };
        let said = write(Dialect::Hami, HamiForm::Json, &[ill], NonZeroU32::MIN).unwrap();
        assert!(said.ends_with(r#""mode":"hami-core"}]"#) && !said.contains("numa"), "{said}");
        for form in HamiForm::ALL {
            assert_eq!(form.name().parse(), Ok(form));
        }
        let said = "yaml".parse::<HamiForm>().unwrap_err().to_string();
        assert!(said.ends_with("; expected json or fields"), "{said}");
    }

    /// A node of a Volcano cluster, with the five fields of an older version.
    #[test]
    fn volcanos_example() {
        let text = "GPU-151ae9c0-83a9-2dd1-8981-b5f44c021a58,1,1126,NVIDIA-NVIDIA GeForce GTX 1080 Ti,true:";
        let [found] = &read(Dialect::Volcano, text, NonZeroU32::MIN).unwrap()[..] else {
            panic!("one device")
        };
        assert_eq!((found.places, found.memory_mib, found.healthy), (1, 1126, true));
        assert_eq!(found.product, "NVIDIA GeForce GTX 1080 Ti");
        let one = std::slice::from_ref(found);
        let written = write(Dialect::Volcano, HamiForm::default(), one, NonZeroU32::MIN).unwrap();
        assert_eq!(written, text.replace("true:", "true,hami-core:"));
        let ill = Registered { healthy: false, ..found.clone() };
        let written =
            write(Dialect::Volcano, HamiForm::default(), &[ill], NonZeroU32::MIN).unwrap();
        let none = text.replace(",1,1126,", ",0,1126,").replace("true:", "false,hami-core:");
        assert_eq!(written, none);
    }

    /// From VGPU-Manager's documentation of overcommitted memory, as `kubectl` shows it.
    #[test]
    fn vgpu_managers_own_example() {
        let gpu = "GPU-49aa2e6a-33f3-99dd-e08b-ea4beb0e0d28";
        let text = format!(
            r#"[{{"id":0,"type":"NVIDIA GeForce GTX 1050 Ti","uuid":"{gpu}","core":100,"memory":8192,"number":10,"numa":0,"mig":false,"busId":"0000:01:00.0","capability":6.1,"healthy":true}}]"#
        );
        let bus_id = "0000:01:00.0".to_owned();
        let hardware = Hardware { numa: Some(0), bus_id, capability: (6, 1), links: Vec::new() };
        let one = Registered { hardware, ..device(0, gpu, "NVIDIA GeForce GTX 1050 Ti", 8192) };
        let written = write(
            Dialect::VgpuManager,
            HamiForm::default(),
            std::slice::from_ref(&one),
            NonZeroU32::MIN,
        );
        assert_eq!(written.unwrap(), text);
        assert_eq!(
            read(Dialect::VgpuManager, &text, NonZeroU32::MIN).unwrap(),
            std::slice::from_ref(&one)
        );
        // Go omits the point of whole numbers, and some versions do not know the NUMA node.
        let whole = text.replace("6.1", "9").replace(r#""numa":0"#, r#""numa":-1"#);
        let found = read(Dialect::VgpuManager, &whole, NonZeroU32::MIN).unwrap();
        assert_eq!((found[0].hardware.capability, found[0].hardware.numa), ((9, 0), None));
        let parts = text.replace("\"mig\":false", "\"mig\":true");
        assert_eq!(read(Dialect::VgpuManager, &parts, NonZeroU32::MIN).unwrap(), []);
        let config = NodeConfig {
            device_split: 10,
            cores_scaling: 1.0,
            memory_factor: 1,
            memory_scaling: 1.5,
        };
        let text = r#"{"deviceSplit":10,"coresScaling":1.0,"memoryFactor":1,"memoryScaling":1.5}"#;
        assert_eq!(write_config(&config).unwrap(), text);
        assert_eq!(read_config(text), Ok(config));
    }

    #[test]
    fn other_texts_are_refused() {
        let said = |dialect, text| read(dialect, text, NonZeroU32::MIN).unwrap_err().to_string();
        assert!(said(Dialect::VgpuManager, "x").starts_with("a node's devices: "));
        assert!(
            said(Dialect::Volcano, "GPU-1,1")
                .contains("; expected UUID,COUNT,MEMORY,TYPE,HEALTH,MODE")
        );
        assert!(
            said(Dialect::Hami, &format!("{A},1,2,3,x,0,yes:")).contains("UUID,COUNT,MIB,CORES")
        );
    }

    prop_compose! {
        fn any_device()(
            bytes: [u8; 16], product in "[A-Za-z][A-Za-z0-9 ,:;-]{0,24}[A-Za-z0-9]", cores in 0_u64..400,
            memory_mib: u64, places in 1_u64..512, numa in 0_u32..8, bus in 0_u8..255, major in 1_u32..20, minor in 0_u32..10,
            healthy: bool,
        ) -> Registered {
            let hardware = Hardware { numa: Some(numa), bus_id: format!("0000:{bus:02x}:00.0"), capability: (major, minor), links: Vec::new() };
            Registered { index: 0, gpu: GpuId::from_bytes(bytes), product, cores, memory_mib, places, hardware, healthy }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(mut devices in prop::collection::vec(any_device(), 0..9)) {
            for (device, index) in devices.iter_mut().zip(0..) {
                device.index = index;
            }
            let told = Dialect::ALL.into_iter().filter(|dialect| dialect.annotations().register.is_some());
            let all = told.flat_map(|dialect| HamiForm::ALL.map(|form| (dialect, form)));
            for (dialect, form) in all {
                let read = read(dialect, &write(dialect, form, &devices, NonZeroU32::MIN).unwrap(), NonZeroU32::MIN).unwrap();
                prop_assert_eq!(read.len(), devices.len());
                for (read, device) in read.iter().zip(&devices) {
                    let product = device.product.replace([',', ':', ';'], "-");
                    let near = Hardware { numa: device.hardware.numa, ..Hardware::default() };
                    let kept = match dialect {
                        Dialect::VgpuManager => device.clone(),
                        Dialect::Hami => Registered { product, hardware: near, ..device.clone() },
                        Dialect::Volcano => {
                            let places = if device.healthy { device.places } else { 0 };
                            Registered { product, cores: 100, places, hardware: Hardware::default(), ..device.clone() }
                        }
                        Dialect::VgpuRs => unreachable!("it tells nobody"),
                    };
                    prop_assert_eq!(read, &kept);
                }
            }
        }

        #[test]
        fn no_text_breaks_the_reader(text in ".{0,120}") {
            for dialect in Dialect::ALL {
                _ = read(dialect, &text, NonZeroU32::MIN);
            }
        }
    }
}

//! GPU identity by UUID.
//!
//! Only a GPU's UUID is the same in every process and container; an index depends on which program counts. NVML prints
//! a UUID as `GPU-3430f778-7a25-704c-9090-8b0bb2478114`, or as `MIG-…` for a MIG instance. Both are accepted
//! everywhere, in any case, and written as NVML writes them.

use std::borrow::Cow;

use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::units::parse_whole;

/// Characters of an invalid text that an error shows.
const SHOWN: usize = 80;
/// First bytes of simulated devices' UUIDs.
const SIMULATED: [u8; 8] = [0x5a, 0x1c, 0xe0, 0, 0, 0, 0x40, 0];

/// A GPU's UUID (`cuDeviceGetUuid`, `nvmlDeviceGetUUID`).
///
/// The 128 bits identify the GPU. The prefix tells the kind of device and is only kept for display: CUDA returns the
/// bits without it.
#[derive(Clone, Copy, Debug)]
pub struct GpuId {
    kind: Kind,
    bytes: [u8; 16],
}

/// The kind of device, from a UUID's prefix.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Gpu,
    Mig,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Gpu, Self::Mig];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Gpu => "GPU-",
            Self::Mig => "MIG-",
        }
    }

    /// Splits a text into kind and remainder.
    fn split(text: &str) -> Option<(Self, &str)> {
        let (prefix, rest) = text.split_at_checked(4)?;
        let kind = Self::ALL.into_iter().find(|kind| prefix.eq_ignore_ascii_case(kind.prefix()))?;
        Some((kind, rest))
    }
}

/// The text is not a GPU's UUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a GPU; expected a UUID as NVML prints it, such as GPU-3430f778-7a25-704c-9090-8b0bb2478114 or \
     MIG-…, in any case"
)]
pub struct GpuIdError(pub String);

impl GpuId {
    /// From 16 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self { kind: Kind::Gpu, bytes }
    }

    /// The UUID's 16 bytes.
    #[must_use]
    pub const fn bytes(&self) -> [u8; 16] {
        self.bytes
    }

    /// Whether the UUID is a simulated GPU's, which NVIDIA's kernel module does not know.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.bytes.starts_with(&SIMULATED)
    }

    /// The text after the prefix.
    fn digits(&self) -> String {
        self.to_string().split_off(self.kind.prefix().len())
    }
}

impl PartialEq for GpuId {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for GpuId {}

impl Hash for GpuId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

impl PartialOrd for GpuId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for GpuId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes.cmp(&other.bytes)
    }
}

impl FromStr for GpuId {
    type Err = GpuIdError;

    /// Parses NVML's form, in any case.
    fn from_str(text: &str) -> Result<Self, GpuIdError> {
        let invalid = || GpuIdError(text.chars().take(SHOWN).collect());
        let (kind, digits) = Kind::split(text).ok_or_else(invalid)?;
        let groups = digits.split('-').map(str::len);
        if digits.len() != 36 || !groups.eq([8, 4, 4, 4, 12]) {
            return Err(invalid());
        }
        let mut bytes = [0; 16];
        let hex: Vec<u8> = digits.bytes().filter(|c| *c != b'-').collect();
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
            *byte = match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => return Err(invalid()),
            };
        }
        Ok(Self { kind, bytes })
    }
}

impl fmt::Display for GpuId {
    /// Writes NVML's form, digits in lower case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.prefix())?;
        for (index, byte) in self.bytes.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl Serialize for GpuId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GpuId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// The GPU in the key of a setting: UUID or index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuKey {
    /// The GPU with this UUID.
    Id(GpuId),
    /// The GPU with this index; the caller knows who counts.
    Index(u32),
}

/// The text is neither a UUID nor an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("neither a GPU UUID nor a device index")]
pub struct GpuKeyError;

impl FromStr for GpuKey {
    type Err = GpuKeyError;

    fn from_str(text: &str) -> Result<Self, GpuKeyError> {
        let id = || text.parse().ok().map(Self::Id);
        parse_whole(text).map(Self::Index).or_else(id).ok_or(GpuKeyError)
    }
}

impl fmt::Display for GpuKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Index(index) => index.fmt(f),
        }
    }
}

/// A user's choice of a GPU: an index, a UUID, or the beginning of a UUID, as in `CUDA_VISIBLE_DEVICES`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuChoice {
    /// The GPU with this index.
    Index(u32),
    /// GPUs whose UUID begins with these digits.
    Beginning(String),
}

impl FromStr for GpuChoice {
    type Err = GpuKeyError;

    fn from_str(text: &str) -> Result<Self, GpuKeyError> {
        let text = text.trim();
        if let Some(index) = parse_whole(text) {
            return Ok(Self::Index(index));
        }
        match Kind::split(text) {
            Some((_, digits)) if !digits.is_empty() => {
                Ok(Self::Beginning(digits.to_ascii_lowercase()))
            }
            _ => Err(GpuKeyError),
        }
    }
}

impl From<GpuId> for GpuChoice {
    fn from(id: GpuId) -> Self {
        Self::Beginning(id.digits())
    }
}

impl GpuChoice {
    /// Whether the choice matches this GPU.
    #[must_use]
    pub fn fits(&self, index: Option<u32>, id: &GpuId) -> bool {
        match self {
            Self::Index(number) => index == Some(*number),
            Self::Beginning(digits) => id.digits().starts_with(digits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "GPU-3430f778-7a25-704c-9090-8b0bb2478114";

    #[test]
    fn any_case_reads_and_nvml_form_is_written() {
        let id: GpuId = TEXT.to_ascii_uppercase().parse().unwrap();
        assert_eq!(id, TEXT.to_ascii_lowercase().parse().unwrap());
        assert_eq!(id.to_string(), TEXT);
        assert_eq!(id.bytes()[0], 0x34);
        let slice: GpuId = TEXT.replace("GPU", "mig").parse().unwrap();
        assert_eq!(slice.to_string(), TEXT.replace("GPU", "MIG"));
        // Only the bits identify a GPU.
        assert_eq!(slice, id);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "0",
            "GPU-",
            "gpu-",
            "é",
            "GPU-3430f778-7a25-704c-9090",
            &TEXT[4..],
            "GPU-3430f778-7a25-704c-9090-8b0bb247811",
            "GPU-3430f778-7a25-704c-9090-8b0bb24781140",
            "GPU-3430f778-7a25-704c-9090-8b0bb2478114-",
            "GPU-3430f778/../-704c-9090-8b0bb2478114",
            "GPU-3430f77é-7a25-704c-9090-8b0bb2478114",
            "MIG-GPU-3430f778-7a25-704c-9090-8b0bb2478114/1/0",
            "MIG-1/2",
        ] {
            assert_eq!(text.parse::<GpuId>(), Err(GpuIdError(text.to_owned())));
        }
        assert!(TEXT.replace("f778", "g778").parse::<GpuId>().is_err());
        let long = "x".repeat(1000).parse::<GpuId>().unwrap_err().to_string();
        assert!(long.len() < 300 && !long.contains(char::is_control), "{long}");
    }

    #[test]
    fn keys_and_choices() {
        assert_eq!("7".parse(), Ok(GpuKey::Index(7)));
        assert!(matches!(TEXT.to_lowercase().parse(), Ok(GpuKey::Id(_))));
        for wrong in ["", "-1", "00", "07", "GPU-3", "gpu0", "4294967296"] {
            assert_eq!(wrong.parse::<GpuKey>(), Err(GpuKeyError), "{wrong}");
        }
        let id: GpuId = TEXT.parse().unwrap();
        let fits = |text: &str| text.parse::<GpuChoice>().map(|choice| choice.fits(Some(3), &id));
        for yes in ["3", " 3 ", TEXT, &TEXT.to_lowercase(), "GPU-3", "gpu-3430F778-7"] {
            assert_eq!(fits(yes), Ok(true), "{yes}");
        }
        for no in ["1", "GPU-4", "gpu-3430f778-7a25-704c-9090-8b0bb24781145"] {
            assert_eq!(fits(no), Ok(false), "{no}");
        }
        for wrong in ["", "-1", "GPU-", "tesla", "3430f778"] {
            assert_eq!(fits(wrong), Err(GpuKeyError), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn ids_come_back_in_any_case(bytes in any::<[u8; 16]>(), cases in any::<[bool; 40]>()) {
            let written = GpuId::from_bytes(bytes).to_string();
            let mixed: String = written
                .chars()
                .zip(cases)
                .map(|(c, upper)| if upper { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() })
                .collect();
            let read: GpuId = mixed.parse().unwrap();
            prop_assert_eq!(read.bytes(), bytes);
            prop_assert_eq!(read.to_string(), written);
        }

        #[test]
        fn no_text_breaks_the_reader(text in ".{0,60}") {
            if let Ok(id) = text.parse::<GpuId>() {
                prop_assert!(id.to_string().eq_ignore_ascii_case(&text));
            }
            let _ = (text.parse::<GpuKey>(), text.parse::<GpuChoice>());
        }
    }
}

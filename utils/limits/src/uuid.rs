//! The one name of a device that holds in every process and container.

use core::fmt;
use core::str::FromStr;

/// A device's UUID (`cuDeviceGetUuid`, `nvmlDeviceGetUUID`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeviceUuid([u8; 16]);

/// A text that is not a device UUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a GPU UUID: expected the form GPU-3430f778-7a25-704c-9090-8b0bb2478114")]
pub struct UuidError(pub String);

impl DeviceUuid {
    /// From its 16 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its 16 bytes.
    #[must_use]
    pub const fn bytes(&self) -> [u8; 16] {
        self.0
    }
}

impl FromStr for DeviceUuid {
    type Err = UuidError;

    /// Reads NVML's form, in any case.
    fn from_str(text: &str) -> Result<Self, UuidError> {
        let invalid = || UuidError(text.to_owned());
        let (prefix, digits) = text.split_at_checked(4).ok_or_else(invalid)?;
        if !prefix.eq_ignore_ascii_case("GPU-") {
            return Err(invalid());
        }
        let groups: Vec<&str> = digits.split('-').collect();
        if !groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) {
            return Err(invalid());
        }
        let mut bytes = [0; 16];
        let hex: Vec<u8> = groups.concat().into_bytes();
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
            *byte = match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => return Err(invalid()),
            };
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for DeviceUuid {
    /// Writes NVML's form, digits in lower case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "GPU-3430f778-7a25-704c-9090-8b0bb2478114";

    #[test]
    fn any_case_reads_and_nvml_form_is_written() {
        let uuid: DeviceUuid = TEXT.to_ascii_uppercase().parse().unwrap();
        assert_eq!(uuid, TEXT.to_ascii_lowercase().parse().unwrap());
        assert_eq!(uuid.to_string(), TEXT);
        assert_eq!(uuid.bytes()[0], 0x34);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "0", "GPU-", "é", "GPU-3430f778-7a25-704c-9090", &TEXT[4..]] {
            assert_eq!(text.parse::<DeviceUuid>(), Err(UuidError(text.to_owned())));
        }
        assert!(TEXT.replace("f778", "g778").parse::<DeviceUuid>().is_err());
    }
}

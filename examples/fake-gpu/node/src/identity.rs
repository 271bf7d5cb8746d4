//! Names of the devices, equal in driver and NVML.

/// Product name.
pub const NAME: &str = "NVIDIA Fake GPU (Sluice)";

/// The 16 bytes of a device's UUID.
#[must_use]
pub fn uuid_bytes(device: u32) -> [u8; 16] {
    [0x5a, 0x1c, 0xe0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, device as u8]
}

/// `GPU-5a1ce000-0000-4000-8000-00000000000N`
#[must_use]
pub fn uuid_text(device: u32) -> String {
    let mut text = String::from("GPU-");
    for (index, byte) in uuid_bytes(device).iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// PCI bus number.
#[must_use]
pub fn pci_bus(device: u32) -> u32 {
    0x10 + device
}

/// NUMA node of a device, as in a machine with two sockets and four devices each.
#[must_use]
pub fn numa_node(device: u32) -> u32 {
    device / 4
}

/// Compute capability: major, minor.
pub const CAPABILITY: (i32, i32) = (9, 0);

/// PCI address as the driver writes it.
#[must_use]
pub fn pci_text(device: u32) -> String {
    format!("0000:{:02X}:00.0", pci_bus(device))
}

/// Whether a text is this device's PCI address, in any case; domain and function may be missing.
#[must_use]
pub fn pci_matches(text: &str, device: u32) -> bool {
    let (address, function) = text.split_once('.').unwrap_or((text, "0"));
    let mut parts = address.rsplit(':').map(|part| u32::from_str_radix(part, 16).ok());
    let slot = parts.next().flatten();
    let bus = parts.next().flatten();
    let domain = parts.next().map_or(Some(0), |part| part);
    u32::from_str_radix(function, 16) == Ok(0)
        && slot == Some(0)
        && bus == Some(pci_bus(device))
        && domain == Some(0)
        && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(uuid_text(1), "GPU-5a1ce000-0000-4000-8000-000000000001");
        assert_eq!(pci_text(1), "0000:11:00.0");
        for text in ["0000:11:00.0", "11:00.0", "11:00", "00000000:11:00.0"] {
            assert!(pci_matches(text, 1), "{text}");
        }
        for text in ["0000:10:00.0", "11", "", "0001:11:00.0", "11:00.1", "x"] {
            assert!(!pci_matches(text, 1), "{text}");
        }
    }
}

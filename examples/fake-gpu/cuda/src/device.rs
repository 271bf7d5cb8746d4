//! Device management.

use core::ffi::{c_char, c_int, c_uint};

use driver::cuda::{CuResult, Device, Uuid};
use fake_node::held::{MOST_QUEUES, QUEUES};
use fake_node::{identity, older};

use crate::attributes;
use crate::ffi::{self, Api, Out, Text, api, ensure};
use crate::state::driver;

/// CUDA version of this driver, unless an older one is chosen.
const VERSION: c_int = 13000;

/// The node's devices that this process may see, according to `CUDA_VISIBLE_DEVICES`: by index, by UUID or by a unique
/// UUID prefix. The list ends at the first entry that names no device, or a device named before.
pub(crate) fn visible(devices: u32) -> Vec<u32> {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(list) => select(&list, devices),
        Err(_) => (0..devices).collect(),
    }
}

/// Hardware queues of this process per device (`CUDA_DEVICE_MAX_CONNECTIONS`).
pub(crate) fn queues() -> u32 {
    let set = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().and_then(|n| n.parse().ok());
    set.map_or(QUEUES, |queues: u32| queues.clamp(1, MOST_QUEUES))
}

fn select(list: &str, devices: u32) -> Vec<u32> {
    let mut chosen = Vec::new();
    for entry in list.split(',') {
        let entry = entry.trim();
        let found = if entry.to_ascii_uppercase().starts_with("GPU-") {
            let wanted = entry.to_ascii_lowercase();
            let mut matching = (0..devices)
                .filter(|&d| identity::uuid_text(d).to_ascii_lowercase().starts_with(&wanted));
            match (matching.next(), matching.next()) {
                (Some(device), None) => Some(device),
                _ => None,
            }
        } else {
            entry.parse::<u32>().ok().filter(|&index| index < devices)
        };
        match found {
            Some(device) if !chosen.contains(&device) => chosen.push(device),
            _ => break,
        }
    }
    chosen
}

pub(crate) extern "C" fn driver_version(version: Out<c_int>) -> CuResult {
    api(|| {
        version.required()?.set(older::chosen().map_or(VERSION, |older| older.cuda));
        Ok(())
    })
}

pub(crate) extern "C" fn get(device: Out<Device>, ordinal: c_int) -> CuResult {
    api(|| {
        let driver = driver()?;
        device.required()?;
        driver.device(ordinal)?;
        device.set(ordinal);
        Ok(())
    })
}

pub(crate) extern "C" fn count(count: Out<c_int>) -> CuResult {
    api(|| {
        let driver = driver()?;
        count.required()?.set(driver.visible.len() as c_int);
        Ok(())
    })
}

pub(crate) extern "C" fn name(name: Out<c_char>, length: c_int, device: Device) -> CuResult {
    api(|| {
        driver()?.device(device)?;
        ffi::put_text(name, length, identity::NAME)
    })
}

pub(crate) extern "C" fn uuid(uuid: Out<Uuid>, device: Device) -> CuResult {
    api(|| {
        let driver = driver()?;
        uuid.required()?;
        let bytes = identity::uuid_bytes(driver.device(device)?);
        uuid.set(Uuid { bytes });
        Ok(())
    })
}

fn total(device: Device) -> Api<u64> {
    let driver = driver()?;
    driver.device(device)?;
    Ok(driver.node.config().memory)
}

pub(crate) extern "C" fn total_memory(bytes: Out<usize>, device: Device) -> CuResult {
    api(|| {
        driver()?;
        bytes.required()?.set(total(device)? as usize);
        Ok(())
    })
}

/// The form of CUDA 2 has 32 bits: larger sizes saturate.
pub(crate) extern "C" fn total_memory_v1(bytes: Out<c_uint>, device: Device) -> CuResult {
    api(|| {
        driver()?;
        bytes.required()?.set(u32::try_from(total(device)?).unwrap_or(u32::MAX));
        Ok(())
    })
}

pub(crate) extern "C" fn attribute(
    value: Out<c_int>,
    attribute: c_uint,
    device: Device,
) -> CuResult {
    api(|| {
        let driver = driver()?;
        value.required()?;
        let on_node = driver.device(device)?;
        value.set(
            attributes::device(attribute, on_node, driver.node.config())
                .ok_or(CuResult::INVALID_VALUE)?,
        );
        Ok(())
    })
}

pub(crate) extern "C" fn compute_capability(
    major: Out<c_int>,
    minor: Out<c_int>,
    device: Device,
) -> CuResult {
    api(|| {
        driver()?.device(device)?;
        major.required()?.set(attributes::COMPUTE_MAJOR);
        minor.required()?.set(attributes::COMPUTE_MINOR);
        Ok(())
    })
}

pub(crate) extern "C" fn pci_bus_id(to: Out<c_char>, length: c_int, device: Device) -> CuResult {
    api(|| {
        let on_node = driver()?.device(device)?;
        ffi::put_text(to, length, &identity::pci_text(on_node))
    })
}

pub(crate) extern "C" fn by_pci_bus_id(device: Out<Device>, id: Text) -> CuResult {
    api(|| {
        let driver = driver()?;
        device.required()?;
        let wanted = id.string()?;
        let found = driver
            .visible
            .iter()
            .position(|&on_node| identity::pci_matches(&wanted, on_node))
            .ok_or(CuResult::INVALID_DEVICE)?;
        device.set(found as Device);
        Ok(())
    })
}

pub(crate) extern "C" fn can_access_peer(
    can: Out<c_int>,
    device: Device,
    peer: Device,
) -> CuResult {
    api(|| {
        let driver = driver()?;
        can.required()?;
        driver.device(device)?;
        driver.device(peer)?;
        can.set(c_int::from(device != peer));
        Ok(())
    })
}

pub(crate) extern "C" fn p2p_attribute(
    value: Out<c_int>,
    attribute: c_uint,
    device: Device,
    peer: Device,
) -> CuResult {
    api(|| {
        let driver = driver()?;
        value.required()?;
        driver.device(device)?;
        driver.device(peer)?;
        ensure(device != peer, CuResult::INVALID_DEVICE)?;
        ensure((1..=5).contains(&attribute), CuResult::INVALID_VALUE)?;
        value.set(c_int::from(attribute == 2));
        Ok(())
    })
}

/// `cuDeviceGetExecAffinitySupport`: programs do query it, unlike `cuDeviceGetTexture1DLinearMaxWidth` and the like,
/// which are not simulated.
pub(crate) extern "C" fn exec_affinity_support(
    supported: Out<c_int>,
    _kind: c_uint,
    device: Device,
) -> CuResult {
    api(|| {
        driver()?.device(device)?;
        supported.required()?.set(0);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::select;

    #[test]
    fn visible_devices() {
        assert_eq!(select("1,0", 2), [1, 0]);
        assert_eq!(select("0,9,1", 2), [0]);
        assert_eq!(select("", 2), [0_u32; 0]);
        assert_eq!(select("-1", 2), [0_u32; 0]);
        assert_eq!(select("0,0", 2), [0]);
        assert_eq!(select("GPU-5A1CE000-0000-4000-8000-000000000001", 2), [1]);
        assert_eq!(select("GPU-5a1ce000", 2), [0_u32; 0]);
        assert_eq!(select("GPU-5a1ce000", 1), [0]);
    }
}

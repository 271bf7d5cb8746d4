//! What a visible index means.

use super::snapshot::{DEVICE_ORDER, Snapshot, VISIBLE_DEVICES};
use limits::GpuId;
use limits::gpu::GpuChoice;
use std::ffi::OsStr;

/// A device's index as counted by a program with the variables in `decided`. `ordinal`: the driver's number under the
/// variables in `present`. `host_index`: NVML's.
///
/// A program may choose other devices or another order before its first call. Its own numbering then differs from the
/// one for which the limits were set, and must not move them: the index follows from `decided` alone.
#[must_use]
pub fn index(
    device: GpuId,
    ordinal: Option<u32>,
    host_index: impl FnOnce() -> Option<u32>,
    decided: &Snapshot,
    present: &Snapshot,
) -> Option<u32> {
    // An empty list hides all devices; an empty order counts as unset.
    let set = |of: &Snapshot, name: &str| {
        let value = of.value(OsStr::new(name)).map(OsStr::to_owned);
        value.filter(|value| name == VISIBLE_DEVICES || !value.is_empty())
    };
    let same =
        [VISIBLE_DEVICES, DEVICE_ORDER].iter().all(|name| set(decided, name) == set(present, name));
    if let Some(ordinal) = ordinal.filter(|_| same) {
        return Some(ordinal);
    }
    // Unless another order was chosen, the driver's order is the host's.
    let host_index = host_index()
        .filter(|_| set(decided, DEVICE_ORDER).is_none_or(|order| order == "PCI_BUS_ID"));
    let Some(list) = set(decided, VISIBLE_DEVICES) else { return host_index };
    let position = list.to_str()?.split(',').position(|entry| {
        let choice = entry.trim().parse::<GpuChoice>().ok();
        choice.is_some_and(|choice| choice.fits(host_index, &device))
    })?;
    u32::try_from(position).ok()
}

/// NVML's index of the only device that a process sees under `present`, if NVML does not tell: the chosen index, or 0
/// if none was chosen.
#[must_use]
pub fn only_index(present: &Snapshot) -> Option<u32> {
    match present.value(OsStr::new(VISIBLE_DEVICES)) {
        None => Some(0),
        Some(list) => match list.to_str()?.split(',').next()?.parse().ok()? {
            GpuChoice::Index(index) => Some(index),
            GpuChoice::Beginning(_) => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    const UUID: &str = "GPU-5a1ce000-0000-4000-8000-000000000001";

    /// `-`: the variable is unset.
    fn seen(devices: &str) -> Snapshot {
        let set = |devices| (OsString::from(VISIBLE_DEVICES), OsString::from(devices));
        Some(devices).filter(|devices| *devices != "-").map(set).into_iter().collect()
    }

    #[test]
    fn the_programs_own_choice_moves_no_index() {
        let device = UUID.parse().unwrap();
        let count = |ordinal, decided: &str, present: &str| {
            index(device, ordinal, || Some(1), &seen(decided), &seen(present))
        };
        assert_eq!(count(Some(5), "1,0", "1,0"), Some(5), "the driver counted as was decided");
        assert_eq!(count(Some(5), "-", "-"), Some(5));
        for present in ["0,1", "1", "", UUID] {
            assert_eq!(count(Some(5), "-", present), Some(1), "all, in the host's order");
            assert_eq!(count(Some(5), "3,2,1", present), Some(2));
            assert_eq!(count(None, "GPU-5a1ce000-0000-4000-8000-000000000001,3", present), Some(0));
            assert_eq!(count(Some(0), "0,2", present), None, "it was not to be seen");
        }
        for (chosen, expected) in
            [("-", Some(0)), ("1", Some(1)), (" 3 ,1", Some(3)), ("", None), (UUID, None)]
        {
            assert_eq!(only_index(&seen(chosen)), expected, "{chosen}");
        }
        // No device was visible, so none has an index.
        for present in ["-", "0,1", "1", UUID] {
            assert_eq!(count(Some(0), "", present), None, "{present}");
        }
    }
}

//! What is accepted from callers.

use std::collections::BTreeMap;

use limits::Policy;
use limits::units::{MAX_WEIGHT, PPM_ONE};
use protocol::{DeviceQuota, Register, VERSION};

use super::refused::Refused;
use scheduler::Quota;

/// Devices that one session may have a quota on.
pub(super) const DEVICES: usize = 64;
/// Sessions that are served.
pub(super) const SESSIONS: usize = 1024;
/// Processes that are served.
pub(super) const WORKERS: usize = 4096;
const NAME_BYTES: usize = 253;

/// Whether one more of something is served for a user that has `own` of the `all` that there are, of `most`: nobody has
/// more than are left for everybody else.
pub(super) fn check_fair_part(
    what: &'static str,
    uid: u32,
    (own, all): (usize, usize),
    most: usize,
) -> Result<(), Refused> {
    let fits = own < most.saturating_sub(all);
    if fits { Ok(()) } else { Err(Refused::TooMany { what, uid, own }) }
}

/// Checks a registration; returns its quotas by device, in lower case.
pub(super) fn check(register: &Register) -> Result<BTreeMap<String, Quota>, Refused> {
    if register.protocol != VERSION {
        return Err(Refused::Protocol(register.protocol));
    }
    let name = &register.session;
    if name.is_empty() || name.len() > NAME_BYTES || name.chars().any(char::is_control) {
        let shown = name.chars().take(80).collect();
        return Err(Refused::SessionName(shown));
    }
    if register.devices.is_empty() || register.devices.len() > DEVICES {
        return Err(Refused::DeviceCount(register.devices.len()));
    }
    let mut quotas = BTreeMap::new();
    for device in &register.devices {
        let (uuid, quota) = check_quota(device)?;
        if quotas.insert(uuid.clone(), quota).is_some() {
            return Err(Refused::NamedTwice(uuid));
        }
    }
    Ok(quotas)
}

/// Checks the quota of one device.
pub(super) fn check_quota(device: &DeviceQuota) -> Result<(String, Quota), Refused> {
    let uuid = uuid_form(&device.uuid)?;
    let DeviceQuota { share_ppm, policy, soft_ppm, weight, priority, .. } = *device;
    if policy != Policy::None && !(1..=PPM_ONE).contains(&share_ppm) {
        return Err(Refused::Share { uuid, share_ppm });
    }
    if let Some(soft_ppm) = soft_ppm.filter(|soft| !(1..=PPM_ONE).contains(soft)) {
        return Err(Refused::SoftShare { uuid, soft_ppm });
    }
    if !(1..=MAX_WEIGHT).contains(&weight) {
        return Err(Refused::Weight { uuid, weight });
    }
    Ok((uuid, Quota { share_ppm, policy, soft_ppm, weight, priority }))
}

/// The UUID in lower case: `gpu-` or `mig-` and 8-4-4-4-12 hexadecimal digits.
pub(super) fn uuid_form(uuid: &str) -> Result<String, Refused> {
    let refused = || Refused::Uuid(uuid.chars().take(80).collect());
    let lower = uuid.to_ascii_lowercase();
    let digits = lower.strip_prefix("gpu-").or_else(|| lower.strip_prefix("mig-"));
    let groups: Vec<&str> = digits.ok_or_else(refused)?.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let hexadecimal = groups.iter().all(|group| group.bytes().all(|b| b.is_ascii_hexdigit()));
    if lengths == [8, 4, 4, 4, 12] && hexadecimal { Ok(lower) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "GPU-5a1ce000-0000-4000-8000-000000000000";

    fn register(devices: &[(&str, u32, Policy)]) -> Register {
        let quota = |&(uuid, share_ppm, policy): &(&str, u32, Policy)| DeviceQuota {
            policy,
            ..DeviceQuota::fixed(uuid, share_ppm)
        };
        Register {
            protocol: VERSION,
            session: "a".into(),
            devices: devices.iter().map(quota).collect(),
        }
    }

    #[test]
    fn a_good_registration() {
        let quotas = check(&register(&[(UUID, 250_000, Policy::Fixed)])).unwrap();
        assert_eq!(quotas, BTreeMap::from([(UUID.to_lowercase(), Quota::fixed(250_000))]));
        assert!(check(&register(&[(UUID, 0, Policy::None)])).is_ok());
    }

    #[test]
    fn each_fault_is_named() {
        let fixed = Policy::Fixed;
        let fault = |register: &Register| check(register).unwrap_err();
        let good = register(&[(UUID, 1, fixed)]);
        assert_eq!(fault(&Register { protocol: 9, ..good.clone() }), Refused::Protocol(9));
        for name in ["", "a\nb", &"x".repeat(254)] {
            let named = Register { session: name.to_owned(), ..good.clone() };
            assert!(matches!(fault(&named), Refused::SessionName(_)), "{name:?}");
        }
        assert_eq!(fault(&register(&[])), Refused::DeviceCount(0));
        let uuids: Vec<String> =
            (0..65).map(|n| format!("gpu-{n:08}-0000-0000-0000-000000000000")).collect();
        let many: Vec<_> = uuids.iter().map(|uuid| (uuid.as_str(), 1, fixed)).collect();
        assert_eq!(fault(&register(&many)), Refused::DeviceCount(65));
        for share in [0, 1_000_001, u32::MAX] {
            assert!(matches!(fault(&register(&[(UUID, share, fixed)])), Refused::Share { .. }));
        }
        let mut soft = register(&[(UUID, 1, Policy::Balance)]);
        for wrong in [0, 1_000_001, u32::MAX] {
            soft.devices[0].soft_ppm = Some(wrong);
            assert!(
                matches!(fault(&soft), Refused::SoftShare { soft_ppm, .. } if soft_ppm == wrong)
            );
        }
        let mut heavy = register(&[(UUID, 1, Policy::Balance)]);
        for wrong in [0, 10_001, u32::MAX] {
            heavy.devices[0].weight = wrong;
            assert!(matches!(fault(&heavy), Refused::Weight { weight, .. } if weight == wrong));
        }
        let upper = UUID.to_uppercase();
        let twice = register(&[(UUID, 1, fixed), (&upper, 2, fixed)]);
        assert_eq!(fault(&twice), Refused::NamedTwice(UUID.to_lowercase()));
    }

    #[test]
    fn uuids_have_one_form() {
        assert_eq!(uuid_form(UUID), Ok(UUID.to_lowercase()));
        assert!(uuid_form("MIG-5a1ce000-0000-4000-8000-000000000000").is_ok());
        for wrong in [
            "",
            "gpu-",
            "0",
            "5a1ce000-0000-4000-8000-000000000000",
            "gpu-5a1ce000-0000-4000-8000-00000000000",
            "gpu-5a1ce000-0000-4000-8000-0000000000000",
            "gpu-5a1ce00x-0000-4000-8000-000000000000",
            "gpu-5a1ce000-0000-4000-8000-000000000000-",
            "gpu-5a1ce000/../-4000-8000-000000000000",
        ] {
            assert!(matches!(uuid_form(wrong), Err(Refused::Uuid(_))), "{wrong}");
        }
    }
}

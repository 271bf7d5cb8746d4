//! What is accepted from callers.

use std::collections::BTreeMap;

use utils::protocol::{DeviceQuota, Policy, Priority, Register, VERSION};
use utils::units::PPM_ONE;

use super::refused::Refused;

/// Devices that one session may have a quota on.
pub(super) const DEVICES: usize = 64;
/// Sessions that are served.
pub(super) const SESSIONS: usize = 1024;
/// Processes that are served.
pub(super) const WORKERS: usize = 4096;
const NAME_BYTES: usize = 253;

/// A session's quota on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) share_ppm: u32,
    pub(super) policy: Policy,
    pub(super) soft_ppm: Option<u32>,
    pub(super) weight: u32,
    pub(super) priority: Priority,
}

impl std::fmt::Display for Quota {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.policy {
            Policy::None => out.write_str("no limit"),
            Policy::Fixed | Policy::Balance => {
                write!(out, "{} %", f64::from(self.share_ppm) / 10_000.0)
            }
        }
    }
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
    for DeviceQuota { uuid, share_ppm, policy, soft_ppm, weight, priority } in &register.devices {
        let uuid = uuid_form(uuid)?;
        let (share_ppm, policy) = (*share_ppm, *policy);
        if policy != Policy::None && !(1..=PPM_ONE).contains(&share_ppm) {
            return Err(Refused::Share { uuid, share_ppm });
        }
        let quota =
            Quota { share_ppm, policy, soft_ppm: *soft_ppm, weight: *weight, priority: *priority };
        if quotas.insert(uuid.clone(), quota).is_some() {
            return Err(Refused::NamedTwice(uuid));
        }
    }
    Ok(quotas)
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
            uuid: uuid.to_owned(),
            share_ppm,
            policy,
            soft_ppm: None,
            weight: 1,
            priority: Priority::High,
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
        let quota = Quota {
            share_ppm: 250_000,
            policy: Policy::Fixed,
            soft_ppm: None,
            weight: 1,
            priority: Priority::High,
        };
        assert_eq!(quotas, BTreeMap::from([(UUID.to_lowercase(), quota)]));
        assert_eq!(quota.to_string(), "25 %");
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

//! Bounds on what callers can make the daemon keep, fair among users, and validation of registrations.

use std::collections::BTreeMap;

use limits::{ComputeLimit, GpuId};
use protocol::{DeviceQuota, MAX_DEVICES, Register, VERSION};

use super::refused::CallRefused;

/// Most sessions served.
pub(super) const SESSIONS: usize = 1024;
/// Most processes served.
pub(super) const WORKERS: usize = 4096;
/// Most devices served that cannot be looked up.
pub(super) const UNLISTED_DEVICES: usize = 256;
/// Most devices whose totals of forgotten sessions are kept.
pub(super) const TOTALS: usize = 4 * UNLISTED_DEVICES;
/// Most quotas kept: each session has one per device that it named.
pub(super) const QUOTAS: usize = 8192;
/// Most gate pages kept, one per process. Together with the reserve, fewer than can be mapped.
pub(super) const GATE_PAGES: usize = 1024;
/// Most sessions in saved state: the served ones, with the reserve, and as many that wait for their processes.
pub(super) const MOST_SAVED_SESSIONS: usize = 4 * SESSIONS;
const NAME_BYTES: usize = 253;

/// Whether this is a valid session name.
pub(super) fn is_session_name(name: &str) -> bool {
    (1..=NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// Items beyond a bound, reserved for users who hold few: otherwise any number of cooperating users could take
/// everything.
const fn reserve(most: usize) -> usize {
    most / 2
}

/// Most items that a user may hold using the reserve. A process takes two descriptors.
const fn few(most: usize) -> usize {
    let part = reserve(most) / 32;
    if part < 2 { 2 } else { part }
}

/// The bound which, with its reserve, adds up to `all`.
pub(super) const fn most_of(all: usize) -> usize {
    all * 2 / 3
}

/// Whether a user who holds `own` of the `all` existing items, of at most `most`, may have one more. A user may not
/// hold more than is left for all others; one who holds few may also use the reserve.
pub(super) fn check_fair_part(
    what: &'static str,
    uid: u32,
    has: (usize, usize),
    most: usize,
) -> Result<(), CallRefused> {
    check_fair_parts(what, uid, has, 1, most)
}

/// Like [`check_fair_part`], for `more` items taken one after the other.
pub(super) fn check_fair_parts(
    what: &'static str,
    uid: u32,
    (own, all): (usize, usize),
    more: usize,
    most: usize,
) -> Result<(), CallRefused> {
    let Some(others) = more.checked_sub(1) else { return Ok(()) };
    let few = few(most);
    let is_fair = own + others < most.saturating_sub(all + others);
    let is_little = own + more <= few && all + more <= most + reserve(most);
    if is_fair || is_little {
        Ok(())
    } else if own > few {
        Err(CallRefused::TooMany { what, uid, own })
    } else {
        Err(CallRefused::TakenByOthers { what, uid, own, more })
    }
}

/// Validates a registration; returns its quotas by device.
pub(super) fn check(register: &Register) -> Result<BTreeMap<GpuId, ComputeLimit>, CallRefused> {
    if register.protocol != VERSION {
        return Err(CallRefused::Protocol(register.protocol));
    }
    let name = &register.session;
    if !is_session_name(name) {
        let shown = name.chars().take(80).collect();
        return Err(CallRefused::SessionName(shown));
    }
    if register.devices.is_empty() || register.devices.len() > MAX_DEVICES {
        return Err(CallRefused::DeviceCount(register.devices.len()));
    }
    let mut quotas = BTreeMap::new();
    for device in &register.devices {
        check_quota(device)?;
        if quotas.insert(device.uuid, device.limit).is_some() {
            return Err(CallRefused::NamedTwice(device.uuid));
        }
    }
    Ok(quotas)
}

/// Validates the quota of one device.
pub(super) fn check_quota(quota: &DeviceQuota) -> Result<(), CallRefused> {
    let refused = |problem| CallRefused::Quota { uuid: quota.uuid, problem };
    quota.limit.check().map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of users who get at least one item if each takes all that it can.
    fn users_served(most: usize) -> usize {
        let mut all = 0;
        let got_something = |uid| {
            let mut own = 0;
            while check_fair_part("items", uid, (own, all), most).is_ok() {
                (own, all) = (own + 1, all + 1);
            }
            own > 0
        };
        let served = (0..).map(got_something).take_while(|&served| served).count();
        assert!(all <= most + reserve(most));
        served
    }

    #[test]
    fn users_who_act_together_leave_something_for_the_next() {
        for most in
            [SESSIONS, WORKERS, UNLISTED_DEVICES, QUOTAS, GATE_PAGES, most_of(16_384), most_of(192)]
        {
            let served = users_served(most);
            assert!(served >= 32, "{served} users of {most}");
        }
    }

    #[test]
    fn a_refusal_says_who_has_taken_the_others() {
        let refused =
            |has, more| check_fair_parts("devices", 7, has, more, 256).unwrap_err().to_string();
        assert_eq!(
            refused((0, 384), 1),
            "user 7 has 0 devices and asks for 1 more, but other users hold the rest"
        );
        assert_eq!(
            refused((0, 256), 5),
            "user 7 has 0 devices and asks for 5 more, but other users hold the rest"
        );
        assert!(check_fair_parts("devices", 7, (0, 256), 4, 256).is_ok());
        assert!(refused((128, 128), 1).contains("as many as are left for all other users"));
    }

    #[test]
    fn the_reserve_is_part_of_what_the_system_allows() {
        for all in 0..20_000 {
            let most = most_of(all);
            assert!(most + reserve(most) <= all && most <= all, "{all}");
        }
    }
}

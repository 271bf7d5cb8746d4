//! Why a session waits or was refused, from the figures alone.

use limits::units::{PPM_ONE, PPM_PER_PERCENT};
use limits::{Policy, Priority};
use protocol::reports::{ExplainedDevice, ExplainedProcess, Explanation, ReasonWord};

use super::process::{not_preloaded, unseen};
use crate::shares::Shares;
use crate::status::{Bytes, Percent, Seconds, compute_limit, sharing_words};

/// What is known of a session.
pub(super) struct Known<'a> {
    pub(super) name: &'a str,
    pub(super) process: Option<&'a ExplainedProcess>,
    pub(super) frozen: bool,
    pub(super) has_daemon: bool,
    pub(super) devices: &'a [ExplainedDevice],
    pub(super) shares: &'a Shares,
}

/// A session that got this part of its share has used it.
const USED_PPM: u64 = 900_000;
/// Less than this part of the memory limit left is little.
const LITTLE: u64 = 16;

/// The reasons, the most important first.
pub(super) fn reasons(known: &Known<'_>) -> Vec<Explanation> {
    let mut reasons = Vec::new();
    match known.process.map(|process| (process.pid, process.preloaded, process.uses_cuda)) {
        Some((pid, Some(false), uses)) => reasons.push(not_preloaded(pid, uses == Some(true))),
        Some((pid, None, _)) => reasons.push(unseen(pid)),
        _ => {}
    }
    if known.frozen {
        reasons.push(Explanation {
            code: ReasonWord::Frozen,
            text: "the session is frozen: the daemon grants it no GPU time".to_owned(),
            remedy: Some(format!("sluice thaw {}", known.name)),
        });
    }
    if known.devices.is_empty() {
        reasons.push(Explanation {
            code: ReasonWord::NotUsedYet,
            text: "no process of the session has used a device".to_owned(),
            remedy: None,
        });
    }
    for device in known.devices {
        reasons.extend(memory(known, device));
        reasons.extend(time(known, device));
    }
    let shares = known.devices.iter().filter_map(sharing);
    if reasons.is_empty() {
        let free = |device: &ExplainedDevice| {
            let got = device.compute.recent_ppm.map_or_else(String::new, |ppm| {
                format!(", and got {} of the last 10 s", Percent(ppm))
            });
            let limit = compute_limit(&device.compute);
            let ahead = match (device.compute.policy, device.compute.recent_ppm) {
                (Policy::Fixed, Some(got)) if got / 10 > device.compute.share_ppm / 9 => {
                    "; it is ahead of its share, by kernels that outlasted its leases, and waits for that later"
                }
                _ => "",
            };
            format!("{}: nothing holds it back; GPU time: {limit}{got}{ahead}", device.uuid)
        };
        let all = known.devices.iter().map(free);
        reasons.extend(all.map(|text| Explanation { code: ReasonWord::Free, text, remedy: None }));
    }
    reasons.extend(shares);
    reasons
}

/// How the session shares a device with others.
fn sharing(device: &ExplainedDevice) -> Option<Explanation> {
    let text = format!("{}: {}", device.uuid, sharing_words(device.compute.sharing.as_ref()?));
    Some(Explanation { code: ReasonWord::Sharing, text, remedy: None })
}

fn memory(known: &Known<'_>, device: &ExplainedDevice) -> Option<Explanation> {
    let (limit, used, uuid, name) = (device.limit?, device.used, device.uuid, known.name);
    let left = limit.saturating_sub(used);
    let refused = device.refused_bytes.map_or_else(String::new, |bytes| {
        let ago = device.refused_ago_us.unwrap_or(0);
        let (count, bytes, ago) = (device.refusals, Bytes(bytes), Seconds(ago));
        match count {
            1 => format!("; an allocation of {bytes} was refused {ago} ago"),
            count => format!("; {count} allocations were refused, the last of {bytes} {ago} ago"),
        }
    });
    let state = if used > limit {
        format!("allocations fail until {} are freed", Bytes(used - limit))
    } else if device.refusals > 0 || left < limit / LITTLE {
        format!("{} are left", Bytes(left))
    } else {
        return None;
    };
    let wanted = used.max(limit).saturating_add(device.refused_bytes.unwrap_or(0)) >> 20;
    Some(Explanation {
        code: ReasonWord::Memory,
        text: format!("{uuid}: {} of {} are in use, {state}{refused}", Bytes(used), Bytes(limit)),
        remedy: Some(format!("sluice limit {name} --mem {}MiB", wanted + 1)),
    })
}

fn time(known: &Known<'_>, device: &ExplainedDevice) -> Option<Explanation> {
    let (compute, uuid, name) = (&device.compute, device.uuid, known.name);
    if compute.policy == Policy::None || device.waiting == 0 || known.frozen {
        return None;
    }
    let limit = compute_limit(compute);
    let ceiling = match compute.policy {
        Policy::Balance => compute.soft_ppm.unwrap_or(PPM_ONE),
        Policy::Fixed | Policy::None => compute.share_ppm,
    };
    let got = compute.recent_ppm.unwrap_or(0);
    let of_share = |share: u32| u64::from(got) * 1_000_000 >= u64::from(share) * USED_PPM;
    let waits = format!(
        "{uuid}: waiting for GPU time; limit: {limit}; got {} of the last 10 s",
        Percent(got)
    );
    let more = compute.share_ppm.saturating_mul(2).min(PPM_ONE).div_ceil(PPM_PER_PERCENT);
    let others = device.others_asking.unwrap_or(0);
    if of_share(ceiling) {
        return Some(Explanation {
            code: ReasonWord::ShareUsed,
            text: format!("{waits}: its share is used up; it continues as it earns more"),
            remedy: Some(match known.has_daemon {
                true => format!(
                    "sluice limit {name} --compute {more}, or --policy balance for idle time"
                ),
                false => format!("sluice limit {name} --compute {more}"),
            }),
        });
    }
    if let Some(gpu) = known.shares.overcommitted(uuid) {
        return Some(Explanation {
            code: ReasonWord::Others,
            text: format!("{waits}: {}, so no session gets all of its share", gpu.notice),
            remedy: Some(
                "sluice limit SESSION --compute N, until they add up to 100 or less; or run a session on another GPU"
                    .to_owned(),
            ),
        });
    }
    if let Some(owed) = device.balance_us.filter(|&balance| balance < 0) {
        let owed = owed.unsigned_abs();
        let until = owed.saturating_mul(u64::from(PPM_ONE)) / u64::from(compute.share_ppm.max(1));
        return Some(Explanation {
            code: ReasonWord::Debt,
            text: format!(
                "{waits}: it owes {} ms for work that outlasted its leases; its share earns that in {} ms",
                owed / 1000,
                until / 1000
            ),
            remedy: Some(format!("shorter kernels, or sluice limit {name} --compute {more}")),
        });
    }
    if compute.priority == Priority::Low && others > 0 {
        let guaranteed = compute_limit(compute).guaranteed_ppm();
        return Some(Explanation {
            code: ReasonWord::Others,
            text: format!(
                "{waits}: it is of low priority, which is guaranteed {} and gets what sessions of high priority leave",
                Percent(guaranteed)
            ),
            remedy: Some(format!("sluice limit {name} --priority high")),
        });
    }
    if compute.policy == Policy::Balance && !known.has_daemon && of_share(compute.share_ppm) {
        return Some(Explanation {
            code: ReasonWord::NoDaemon,
            text: format!("{waits}: only a daemon gives out idle time"),
            remedy: Some("hypervisor daemon".to_owned()),
        });
    }
    Some(match others {
        0 => Explanation {
            code: ReasonWord::Waits,
            text: format!("{waits}: its turn has not come yet"),
            remedy: None,
        },
        others => Explanation {
            code: ReasonWord::Others,
            text: match others {
                1 => format!("{waits}; it takes turns with 1 other session"),
                others => format!("{waits}; it takes turns with {others} other sessions"),
            },
            remedy: Some(format!(
                "sluice limit OTHER --priority low, or sluice limit {name} --compute {more}"
            )),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use limits::GpuId;
    use protocol::sessions::{ComputeReport, SharingReason, SharingReport, SharingWay};

    fn device() -> ExplainedDevice {
        ExplainedDevice {
            uuid: GpuId::from_bytes([7; 16]),
            used: 1 << 30,
            limit: Some(8 << 30),
            refusals: 0,
            refused_bytes: None,
            refused_ago_us: None,
            compute: ComputeReport {
                policy: Policy::Fixed,
                share_ppm: 300_000,
                soft_ppm: None,
                weight: 30,
                priority: Priority::High,
                density_ppm: None,
                recent_ppm: Some(100_000),
                mean_ppm: Some(100_000),
                delivered_us: 0,
                sharing: None,
                waited_us: 0,
            },
            waiting: 0,
            holding: 1,
            balance_us: None,
            others_asking: None,
        }
    }

    fn of(device: ExplainedDevice, has_daemon: bool, frozen: bool) -> Vec<(ReasonWord, String)> {
        let devices = [device];
        of_promised(&devices, has_daemon, frozen, &Shares::default())
    }

    fn of_promised(
        devices: &[ExplainedDevice],
        has_daemon: bool,
        frozen: bool,
        shares: &Shares,
    ) -> Vec<(ReasonWord, String)> {
        let known = Known { name: "train", process: None, frozen, has_daemon, devices, shares };
        let whole = |reason: Explanation| {
            let remedy = reason.remedy.unwrap_or_default();
            (reason.code, format!("{} -> {remedy}", reason.text))
        };
        reasons(&known).into_iter().map(whole).collect()
    }

    #[test]
    fn each_reason_has_its_numbers_and_a_remedy() {
        let with = |change: fn(&mut ExplainedDevice)| {
            let mut changed = device();
            change(&mut changed);
            changed
        };
        let waits = |change: fn(&mut ExplainedDevice)| {
            let mut changed = with(change);
            changed.waiting = 1;
            changed
        };
        let balance = |device: &mut ExplainedDevice| {
            device.compute.policy = Policy::Balance;
            device.compute.recent_ppm = Some(299_000);
        };
        for (device, daemon, code, words) in [
            (device(), true, ReasonWord::Free, vec!["30% fixed", "10.0 % of the last 10 s"]),
            (
                with(|device| device.used = 9 << 30),
                true,
                ReasonWord::Memory,
                vec!["9.0 GiB of 8.0 GiB", "1.0 GiB are freed", "--mem 9217MiB"],
            ),
            (
                with(|device| {
                    (device.refusals, device.refused_bytes) = (3, Some(2 << 30));
                    device.refused_ago_us = Some(12_000_000);
                }),
                true,
                ReasonWord::Memory,
                vec![
                    "3 allocations were refused, the last of 2.0 GiB 12.0 s ago",
                    "--mem 10241MiB",
                ],
            ),
            (
                waits(|device| device.compute.recent_ppm = Some(298_000)),
                true,
                ReasonWord::ShareUsed,
                vec!["29.8 %", "sluice limit train --compute 60,"],
            ),
            (
                waits(|device| device.balance_us = Some(-30_000)),
                true,
                ReasonWord::Debt,
                vec!["owes 30 ms", "earns that in 100 ms"],
            ),
            (
                waits(|device| device.others_asking = Some(2)),
                true,
                ReasonWord::Others,
                vec!["2 other sessions"],
            ),
            (waits(balance), false, ReasonWord::NoDaemon, vec!["hypervisor daemon"]),
            (waits(|_| ()), true, ReasonWord::Waits, vec!["its turn has not come yet"]),
        ] {
            let found = of(device, daemon, false);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].0, code, "{found:?}");
            for word in words {
                assert!(found[0].1.contains(word), "{word}: {}", found[0].1);
            }
        }
        // More is promised than there is: a larger share would not help.
        let mut shares = Shares::default();
        shares.add(device().uuid, 1_500_000, || Some(0));
        let one = waits(|device| device.others_asking = Some(2));
        let found = of_promised(&[one], true, false, &shares);
        assert_eq!(found.len(), 1);
        assert!(found[0].1.contains("shares on GPU 0 add up to 150.0 %"), "{found:?}");
        assert!(!found[0].1.contains("--compute 60"), "{found:?}");
        // A frozen session waits because it is frozen.
        let frozen = of(waits(|_| ()), true, true);
        assert_eq!(frozen.len(), 1);
        assert!(frozen[0].1.ends_with("-> sluice thaw train"), "{frozen:?}");
    }

    #[test]
    fn how_a_session_shares_is_said_with_why() {
        let sharing = |way, reason| {
            let (in_turns_ppm, at_once_ppm) = (Some(510_000), Some(1_000_000));
            let since_us = 12_000_000;
            let mut shares = device();
            shares.compute.sharing =
                Some(SharingReport { way, reason, since_us, in_turns_ppm, at_once_ppm });
            of(shares, true, false).pop().unwrap()
        };
        let (code, text) = sharing(SharingWay::Overlap, SharingReason::MoreDone);
        assert_eq!(code, ReasonWord::Sharing);
        for word in ["at once", "for 12.0 s", "more done than in turns", "51.0 % in turns"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let (_, text) = sharing(SharingWay::Turns, SharingReason::Guarantee);
        assert!(text.contains("takes turns") && text.contains("less than its guarantee"), "{text}");
    }

    #[test]
    fn low_priority_is_named_as_the_reason() {
        let mut low = device();
        (low.waiting, low.others_asking, low.compute.priority) = (1, Some(1), Priority::Low);
        let (code, text) = of(low, true, false).remove(0);
        assert_eq!(code, ReasonWord::Others);
        assert!(text.contains("low priority") && text.contains("10.0 %"), "{text}");
        assert!(text.ends_with("-> sluice limit train --priority high"), "{text}");
    }
}

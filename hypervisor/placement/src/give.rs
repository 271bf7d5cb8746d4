//! Chooses GPUs on the node itself, for the container to which the kubelet is about to give some.

use std::collections::BTreeMap;

use dialects::policy::Order;
use dialects::{Choice, Policy, Share};
use limits::GpuId;

use crate::account::{Account, Amount};

/// That container. By default nothing is known of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recipient {
    /// Its share of each GPU that is large enough. `None`: only places are counted.
    pub shares: Option<BTreeMap<GpuId, Share>>,
    /// The GPUs that its scheduler has claimed for it.
    pub claimed: Vec<GpuId>,
    /// What other containers have.
    pub promised: Vec<(GpuId, Share)>,
    /// What schedulers have claimed for other containers that have no GPU yet.
    pub awaited: Vec<(GpuId, Share)>,
    /// Which GPUs its pod wants.
    pub choice: Choice,
    /// Where these are to be. By default the emptiest come first: a pod without a claim has no scheduler that leaves
    /// other GPUs free for larger pods.
    pub policy: Policy,
}

/// A container wants more GPUs than it can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} GPUs requested, each another one that the pod wants; expected at most {possible}")]
pub struct TooFewGpus {
    asked: usize,
    possible: usize,
}

impl Account {
    /// Chooses so many GPUs: those that the kubelet gives the container anyway (`must`), those that were claimed for it
    /// and have room, and then the best others, if possible where nobody else has claimed the room. Where too few have
    /// room, only places are counted, and the container is refused at its start if there is still no room by then.
    ///
    /// # Errors
    /// [`TooFewGpus`]
    pub fn give(
        &self,
        to: &Recipient,
        must: &[GpuId],
        asked: usize,
    ) -> Result<Vec<GpuId>, TooFewGpus> {
        let beside = self.clone().without(&to.promised);
        let apart = beside.clone().without(&to.awaited);
        let places_alone = &Recipient { shares: None, ..to.clone() };
        let places = |count| self.chosen((self, places_alone), must, count);
        let chosen = apart.chosen((&beside, to), must, asked);
        let chosen = chosen.or_else(|| beside.chosen((&beside, to), must, asked));
        chosen.or_else(|| places(asked)).ok_or_else(|| {
            let possible = (1..asked).rev().find(|count| places(*count).is_some());
            TooFewGpus { asked, possible: possible.unwrap_or_default() }
        })
    }

    /// Less these shares. Places are the kubelet's to count.
    fn without(mut self, shares: &[(GpuId, Share)]) -> Self {
        for (id, share) in shares {
            for gpu in self.gpus.iter_mut().filter(|gpu| gpu.id == *id) {
                gpu.left = gpu.left.less(Amount { places: 0, ..Amount::of(*share) });
            }
        }
        self
    }

    /// `keeps`: by which a claimed GPU has room.
    fn chosen(
        &self,
        (keeps, to): (&Self, &Recipient),
        must: &[GpuId],
        count: usize,
    ) -> Option<Vec<GpuId>> {
        let any = Choice::default();
        let (mut first, mut others) = (Vec::new(), Vec::new());
        for (at, gpu) in self.gpus.iter().enumerate() {
            let share = match &to.shares {
                Some(shares) => shares.get(&gpu.id).copied(),
                None => Some(Share::default()),
            };
            let fits = |choice, left| share.filter(|one| gpu.lacks(choice, left, *one).is_none());
            if must.contains(&gpu.id) {
                first.insert(0, (at, share.unwrap_or_default()));
            } else if to.claimed.contains(&gpu.id)
                && let Some(share) = fits(&any, keeps.gpus[at].left)
            {
                first.push((at, share));
            } else if let Some(share) = fits(&to.choice, gpu.left) {
                others.push((at, share));
            }
        }
        let id = |(at, _): &(usize, Share)| self.gpus[*at].id;
        // Its scheduler knows best how these are connected.
        if first.len() >= count {
            return Some(first.iter().take(count).map(id).collect());
        }
        let counted = |left: Amount| match to.shares {
            Some(_) => left,
            None => Amount { places: left.places, ..Amount::default() },
        };
        let left: Vec<Amount> = self.gpus.iter().map(|gpu| counted(gpu.left)).collect();
        let device = to.policy.device.or(Some(Order::Spread));
        let policy = Policy { device, ..to.policy };
        let mut choices = self.choices(policy, &first, others, (count, &left)).ok()?;
        choices.next().map(|chosen| chosen.iter().map(id).collect())
    }
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU32;

    use dialects::policy::{Connection, Topology};
    use dialects::registers::Hardware;
    use dialects::{Links, Registered};

    use super::*;

    fn gpu(number: u8) -> GpuId {
        GpuId::from_bytes([number; 16])
    }

    /// Five GPUs of 1000 MiB, the last one not healthy, the first two on another NUMA node than the others.
    fn account() -> Account {
        let device = |number: u8| Registered {
            index: number.into(),
            gpu: gpu(number),
            product: "A10".to_owned(),
            cores: 100,
            memory_mib: 1000,
            places: 4,
            hardware: Hardware { numa: Some(u32::from(number > 1)), ..Hardware::default() },
            healthy: number != 4,
        };
        Account::new((0..5).map(device).collect(), NonZeroU32::MIN, Links::default())
    }

    fn on(number: u8, cores: u64) -> (GpuId, Share) {
        (gpu(number), Share { cores, memory_mib: 10 })
    }

    /// 40 cores and 100 MiB of each GPU.
    fn recipient(claimed: &[u8]) -> Recipient {
        let share = Share { cores: 40, memory_mib: 100 };
        Recipient {
            shares: Some((0..5).map(|number| (gpu(number), share)).collect()),
            claimed: claimed.iter().map(|number| gpu(*number)).collect(),
            ..Recipient::default()
        }
    }

    #[test]
    fn a_claim_is_followed_where_there_is_room_and_else_one_that_nobody_has_claimed() {
        let of = |claimed: &[u8], count, promised: &[_], awaited: &[_]| {
            let (promised, awaited) = (promised.to_vec(), awaited.to_vec());
            let to = Recipient { promised, awaited, ..recipient(claimed) };
            account().give(&to, &[], count).unwrap()
        };
        // Claims of others do not count on a GPU that was claimed for it.
        assert_eq!(of(&[1], 1, &[on(1, 60)], &[on(1, 40)]), [gpu(1)]);
        let full = [on(1, 61), on(0, 20)];
        assert_eq!(of(&[1], 1, &full, &[on(2, 70)]), [gpu(3)]);
        assert_eq!(of(&[1, 2], 2, &full, &[]), [gpu(2), gpu(3)]);
        // Others have claimed all room.
        assert_eq!(of(&[1], 1, &full, &[on(0, 70), on(2, 70), on(3, 70)]), [gpu(2)]);
        // Nothing has room.
        let all: Vec<_> = (0..4).map(|number| on(number, 70)).collect();
        assert_eq!(of(&[1], 1, &all, &[]), [gpu(1)]);
        assert_eq!(of(&[], 3, &full, &[]), [gpu(2), gpu(3), gpu(0)]);
    }

    #[test]
    fn what_the_kubelet_gives_anyway_and_what_the_pod_wants_have_a_say() {
        let mut to = recipient(&[]);
        to.policy.topology = Some(Topology { by: Connection::Numa, strict: true });
        assert_eq!(account().give(&to, &[gpu(2)], 2), Ok(vec![gpu(2), gpu(3)]));
        let refused = TooFewGpus { asked: 4, possible: 2 };
        assert_eq!(account().give(&to, &[], 4), Err(refused));
        assert!(refused.to_string().ends_with("expected at most 2"), "{refused}");
        // How its scheduler's claim is connected, the scheduler has decided.
        let claimed = Recipient { claimed: vec![gpu(0), gpu(2)], ..to };
        assert_eq!(account().give(&claimed, &[], 2), Ok(vec![gpu(0), gpu(2)]));
        let unknown = Recipient::default();
        assert_eq!(account().give(&unknown, &[gpu(3)], 1), Ok(vec![gpu(3)]));
    }
}

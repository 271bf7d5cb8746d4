//! The nearest smaller request that would fit.

use core::fmt;

use dialects::{MemoryNeed, Need, Share};

use crate::account::{Account, Gpu};
use crate::refusal::Refusal;
use crate::request::Request;

/// A number of GPUs with a share of each. Its loss against a request: what is missing, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The number of GPUs.
    pub gpus: u64,
    /// The share of each.
    pub share: Share,
}

impl Offer {
    pub(crate) const fn of(gpus: u64, share: Share) -> Self {
        Self { gpus, share }
    }

    /// How much of a request is missing, in thousandths of its GPUs, cores and memory.
    pub(crate) fn loss(&self, wanted: &Self) -> u64 {
        let part = |has: u64, wanted: u64| match wanted {
            0 => 0,
            _ => wanted.saturating_sub(has).saturating_mul(1000) / wanted,
        };
        part(self.gpus, wanted.gpus)
            + part(self.share.cores, wanted.share.cores)
            + part(self.share.memory_mib, wanted.share.memory_mib)
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpus, share: Share { cores, memory_mib } } = self;
        write!(f, "{gpus} GPU{}", if *gpus == 1 { "" } else { "s" })?;
        match cores {
            0 => write!(f, " with {memory_mib} MiB"),
            _ => write!(f, " with {cores} cores and {memory_mib} MiB"),
        }
    }
}

impl Account {
    /// The nearest request of the refused container for which the pod fits, with its loss, if that is below `below`.
    #[must_use]
    pub fn nearest(
        &self,
        request: &Request,
        refusal: &Refusal,
        below: u64,
    ) -> Option<(u64, Offer)> {
        let Refusal::NoRoom { container, wanted, .. } = refusal else { return None };
        let at = request.containers.iter().position(|one| one.name == *container)?;
        if self.least_loss(request, wanted) >= below {
            return None;
        }
        let offers = self.offers(request, *wanted).into_iter();
        let with_loss = offers.map(|offer| (offer.loss(wanted), offer));
        let mut offers: Vec<(u64, Offer)> = with_loss.filter(|(loss, _)| *loss < below).collect();
        offers.sort_by_key(|(loss, _)| *loss);
        offers.into_iter().find(|(_, offer)| {
            let mut smaller = request.clone();
            let Offer { gpus: places, share: Share { cores, memory_mib } } = *offer;
            let need = &mut smaller.containers[at].need;
            *need = Need { places, cores, memory: MemoryNeed::Mib(memory_mib), ..*need };
            self.place(&smaller).is_ok()
        })
    }

    /// The part of the wanted share that each usable GPU has free.
    fn most(&self, request: &Request, wanted: Share) -> impl Iterator<Item = Share> {
        let unit = u64::from(self.factor.get());
        let is_usable =
            |gpu: &&Gpu| gpu.lacks(&request.choice, gpu.left, Share::default()).is_none();
        let most = self.gpus.iter().filter(is_usable).map(move |gpu| Share {
            cores: wanted.cores.min(gpu.left.cores),
            memory_mib: match gpu.total.memory_mib {
                0 => wanted.memory_mib,
                _ => wanted.memory_mib.min(gpu.left.memory_mib / unit * unit),
            },
        });
        most.filter(|share| share.memory_mib > 0)
    }

    /// A lower bound of every offer's loss, since each is limited by some GPU. Skips most nodes of a large cluster.
    fn least_loss(&self, request: &Request, wanted: &Offer) -> u64 {
        let most = self.most(request, wanted.share);
        let losses = most.map(|share| Offer::of(wanted.gpus, share).loss(wanted));
        losses.min().unwrap_or(u64::MAX)
    }

    /// Candidates for a smaller request: less of each GPU, or fewer GPUs.
    fn offers(&self, request: &Request, wanted: Offer) -> Vec<Offer> {
        let most: Vec<Share> = self.most(request, wanted.share).collect();
        let full = most.iter().filter(|share| **share == wanted.share).count();
        let fewer = u64::try_from(full).unwrap_or_default().min(wanted.gpus);
        let mut offers = Vec::new();
        if (1..wanted.gpus).contains(&fewer) {
            offers.push(Offer::of(fewer, wanted.share));
        }
        for Share { cores, memory_mib } in &most {
            for cores in most.iter().map(|share| share.cores).filter(|other| other <= cores) {
                if cores > 0 || wanted.share.cores == 0 {
                    let share = Share { cores, memory_mib: *memory_mib };
                    let enough = most
                        .iter()
                        .filter(|has| has.cores >= cores && has.memory_mib >= *memory_mib);
                    let enough = u64::try_from(enough.count()).unwrap_or_default();
                    let offer = Offer::of(enough.min(wanted.gpus), share);
                    if !offers.contains(&offer) && offer != wanted {
                        offers.push(offer);
                    }
                }
            }
        }
        offers
    }
}

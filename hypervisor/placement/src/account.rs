//! The free capacity of a node's GPUs.

use core::num::NonZeroU32;

use dialects::policy::Order;
use dialects::registers::{self, RegisterError};
use dialects::table::NODE_CONFIG;
use dialects::topology::{Links, NODE_TOPOLOGY};
use dialects::{Choice, Claim, Dialect, Need, NeedError, Policy, Registered, Share};
use limits::GpuId;

use crate::holding::Holding;
use crate::refusal::{Lack, Refusal};

/// A node's GPUs, each with its free capacity.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) factor: NonZeroU32,
    pub(crate) links: Links,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) index: u32,
    pub(crate) id: GpuId,
    pub(crate) product: Box<str>,
    pub(crate) numa: u32,
    pub(crate) healthy: bool,
    pub(crate) total: Amount,
    pub(crate) left: Amount,
}

/// A part of a GPU: places, compute and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Amount {
    pub(crate) places: u64,
    pub(crate) cores: u64,
    pub(crate) memory_mib: u64,
}

impl Amount {
    /// The part that one container takes.
    pub(crate) const fn of(share: Share) -> Self {
        Self { places: 1, cores: share.cores, memory_mib: share.memory_mib }
    }

    fn each(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            places: with(self.places, other.places),
            cores: with(self.cores, other.cores),
            memory_mib: with(self.memory_mib, other.memory_mib),
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    pub(crate) fn less(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    pub(crate) fn max(self, other: Self) -> Self {
        self.each(other, u64::max)
    }
}

impl Gpu {
    pub(crate) fn new(device: Registered) -> Self {
        let Registered { index, gpu, product, cores, memory_mib, places, hardware, healthy } =
            device;
        let total = Amount { places, cores, memory_mib };
        let product = product.into_boxed_str();
        Self {
            index,
            id: gpu,
            product,
            numa: hardware.numa.unwrap_or_default(),
            healthy,
            total,
            left: total,
        }
    }

    /// Why a GPU has no room for a share if `left` is free, and how much is left of what it lacks.
    pub(crate) fn lacks(&self, choice: &Choice, left: Amount, asked: Share) -> Option<(Lack, u64)> {
        // A total of 0: the driver does not report it, so memory is not counted.
        let counts_memory = self.total.memory_mib > 0;
        if !choice.takes(self.id, &self.product) {
            Some((Lack::Choice, 0))
        } else if !self.healthy {
            Some((Lack::Health, 0))
        } else if left.places == 0 {
            Some((Lack::Places, 0))
        } else if asked.cores > left.cores {
            Some((Lack::Cores, left.cores))
        } else if counts_memory && asked.memory_mib > left.memory_mib {
            Some((Lack::Memory, left.memory_mib))
        } else {
            None
        }
    }

    /// The share of this GPU that a container requests. Nodes do not report their GPUs' TFLOPS.
    pub(crate) fn share(&self, need: &Need, factor: NonZeroU32) -> Result<Share, NeedError> {
        need.on(self.total.memory_mib, None, factor)
    }

    /// How full the GPU is, in thousandths: its compute or its memory, whichever is fuller.
    fn fullness(&self) -> u64 {
        let part = |left: u64, total: u64| match total {
            0 => 0,
            _ => total.saturating_sub(left).saturating_mul(1000) / total,
        };
        let by_time = part(self.left.cores, self.total.cores);
        by_time.max(part(self.left.memory_mib, self.total.memory_mib))
    }
}

/// The highest node score that kube-scheduler accepts from extenders.
const BEST: u64 = 10;

impl Account {
    /// Reads a node's registration, with everything free. `annotation` returns the node's annotations by name.
    ///
    /// # Errors
    /// [`Refusal::Unregistered`], [`Refusal::OtherScheduler`], [`Refusal::Register`]
    pub fn of<'a>(
        dialect: Dialect,
        annotation: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Self, Refusal> {
        let other = Refusal::OtherScheduler(dialect.name());
        let name = dialect.annotations().register.ok_or(other)?;
        let text = annotation(name).ok_or(Refusal::Unregistered(name))?;
        let wrong = |name| move |source| Refusal::Register { name, source };
        // Nodes of other agents lack the annotation.
        let factor = match annotation(NODE_CONFIG) {
            None => NonZeroU32::MIN,
            Some(text) => {
                let config = registers::read_config(text).map_err(wrong(NODE_CONFIG))?;
                let zero = || RegisterError::Json("a memoryFactor of 0".to_owned());
                let factor = NonZeroU32::new(config.memory_factor).ok_or_else(zero);
                factor.map_err(wrong(NODE_CONFIG))?
            }
        };
        let links = annotation(NODE_TOPOLOGY).map(Links::read).transpose();
        let links = links.map_err(wrong(NODE_TOPOLOGY))?.unwrap_or_default();
        let devices = registers::read(dialect, text, factor).map_err(wrong(name))?;
        Ok(Self::new(devices, factor, links))
    }

    /// Of these GPUs, with nothing taken.
    #[must_use]
    pub fn new(devices: Vec<Registered>, factor: NonZeroU32, links: Links) -> Self {
        Self { gpus: devices.into_iter().map(Gpu::new).collect(), factor, links }
    }

    /// The node's memory factor: MiB per memory unit.
    #[must_use]
    pub const fn factor(&self) -> NonZeroU32 {
        self.factor
    }

    /// Frees everything.
    pub fn reset(&mut self) {
        self.gpus.iter_mut().for_each(|gpu| gpu.left = gpu.total);
    }

    /// Subtracts what a pod holds.
    pub fn take(&mut self, holding: &Holding) {
        for gpu in &mut self.gpus {
            gpu.left = gpu.left.less(holding.on(gpu, self.factor));
        }
    }

    pub(crate) fn claim(&self, (gpu, share): (usize, Share)) -> Claim {
        let Gpu { index, id, .. } = self.gpus[gpu];
        Claim { index, gpu: id, cores: share.cores, memory_mib: share.memory_mib }
    }

    /// How well the node suits a pod that has room on it, by the pod's policy: 0 to 10.
    #[must_use]
    pub fn score(&self, policy: Policy, is_connected: impl FnOnce() -> bool) -> u64 {
        let gpus = u64::try_from(self.gpus.len()).unwrap_or(u64::MAX).max(1);
        let full = self.gpus.iter().map(Gpu::fullness).sum::<u64>() * BEST / (1000 * gpus);
        let by_order = match policy.node {
            None => 0,
            Some(Order::Binpack) => full,
            Some(Order::Spread) => BEST - full,
        };
        // A strict pod only has room on nodes where its GPUs are connected.
        match policy.topology {
            Some(topology) if !topology.strict => {
                let connected = if is_connected() { BEST / 2 } else { 0 };
                connected + by_order / 2
            }
            _ => by_order,
        }
    }
}

#[cfg(test)]
#[path = "account_tests.rs"]
mod tests;

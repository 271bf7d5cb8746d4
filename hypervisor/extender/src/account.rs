//! What a node's GPUs have left, and where on them a pod fits. Pure.

use core::num::NonZeroU32;
use std::collections::BTreeMap;

use dialects::claims::ContainerClaims;
use dialects::registers::{self, RegisterError};
use dialects::table::NODE_CONFIG;
use dialects::{Choice, Claim, Dialect, Need, NeedError, PodClaims, Registered, Share};

/// What a pod's containers ask for, all in the words of one dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNeeds {
    /// Whose words.
    pub dialect: Dialect,
    /// By the containers' names, in their order.
    pub containers: Vec<(String, Need)>,
    /// Which GPUs it wants.
    pub choice: Choice,
}

/// A node's GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    gpus: Vec<Gpu>,
    factor: NonZeroU32,
}

/// One of them, with what is left of it.
#[derive(Clone, Debug, PartialEq)]
struct Gpu {
    device: Registered,
    places: u64,
    left: Share,
}

/// Why a pod does not fit a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The node offers nothing by this name.
    #[error("no GPUs are registered: the node has no annotation {0}")]
    Unregistered(&'static str),
    /// Nodes tell nobody what they have.
    #[error("pods that ask by the names of {0} have a scheduler of their own")]
    OtherScheduler(&'static str),
    /// What it offers cannot be read.
    #[error("the node's annotation {name}: {source}")]
    Register {
        /// The annotation.
        name: &'static str,
        /// Why.
        source: RegisterError,
    },
    /// It cannot be counted.
    #[error(transparent)]
    Need(#[from] NeedError),
    /// There is not so much left on so many GPUs.
    #[error(
        "container {container} asks for {asked} GPUs: {fitting} have room{why}",
        why = because(lack)
    )]
    NoRoom {
        /// Its name.
        container: String,
        /// On how many GPUs.
        asked: u64,
        /// How many have room for it.
        fitting: usize,
        /// How many have none, by reason.
        lack: BTreeMap<Lack, usize>,
    },
}

/// What a GPU has too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// The pod wants others.
    Choice,
    /// It is not to be given out.
    Health,
    /// So many containers have a part of it.
    Places,
    /// Its time.
    Cores,
    /// Its memory.
    Memory,
}

fn because(lack: &BTreeMap<Lack, usize>) -> String {
    let one = |(lack, count): (&Lack, &usize)| match lack {
        Lack::Choice => format!("{count} that the pod does not want"),
        Lack::Health => format!("{count} unhealthy"),
        Lack::Places => format!("{count} with no place left"),
        Lack::Cores => format!("{count} with too few cores left"),
        Lack::Memory => format!("{count} with too little memory left"),
    };
    let all: Vec<String> = lack.iter().map(one).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

impl Gpu {
    fn lacks(&self, asked: Share) -> Option<Lack> {
        // A total of 0: the driver does not tell, and nobody can count it.
        let counts_memory = self.device.memory_mib > 0;
        if !self.device.healthy {
            Some(Lack::Health)
        } else if self.places == 0 {
            Some(Lack::Places)
        } else if asked.cores > self.left.cores {
            Some(Lack::Cores)
        } else if counts_memory && asked.memory_mib > self.left.memory_mib {
            Some(Lack::Memory)
        } else {
            None
        }
    }

    fn take(&mut self, share: Share) {
        self.places = self.places.saturating_sub(1);
        self.left.cores = self.left.cores.saturating_sub(share.cores);
        self.left.memory_mib = self.left.memory_mib.saturating_sub(share.memory_mib);
    }
}

impl Account {
    /// Of what a node has registered, with nothing taken. `annotation`: the node's, by name.
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
        // Nodes that do not say it are of other agents.
        let factor = match annotation(NODE_CONFIG) {
            None => NonZeroU32::MIN,
            Some(text) => {
                let config = registers::read_config(text).map_err(wrong(NODE_CONFIG))?;
                let zero = || RegisterError::Json("a memoryFactor of 0".to_owned());
                let factor = NonZeroU32::new(config.memory_factor).ok_or_else(zero);
                factor.map_err(wrong(NODE_CONFIG))?
            }
        };
        let devices = registers::read(dialect, text, factor).map_err(wrong(name))?;
        let gpu = |device: Registered| Gpu {
            places: device.places,
            left: Share { cores: device.cores, memory_mib: device.memory_mib },
            device,
        };
        Ok(Self { gpus: devices.into_iter().map(gpu).collect(), factor })
    }

    /// The node's memory factor.
    #[must_use]
    pub const fn factor(&self) -> NonZeroU32 {
        self.factor
    }

    /// A container has these parts.
    pub fn take(&mut self, claims: &[Claim]) {
        for claim in claims {
            if let Some(gpu) = self.gpus.iter_mut().find(|gpu| gpu.device.gpu == claim.gpu) {
                gpu.take(Share { cores: claim.cores, memory_mib: claim.memory_mib });
            }
        }
    }

    /// A container has these parts. Where they do not say how much, its own words do, as far as nodes tell what these are.
    pub fn take_as_said(&mut self, claims: &[Claim], need: &Need) {
        for claim in claims {
            if let Some(gpu) = self.gpus.iter_mut().find(|gpu| gpu.device.gpu == claim.gpu) {
                let said = || need.on(gpu.device.memory_mib, None, self.factor).ok();
                gpu.take(claim.share().or_else(said).unwrap_or_default());
            }
        }
    }

    /// A container has so much, nobody says where: it may be any of the GPUs.
    pub fn take_anywhere(&mut self, need: &Need) {
        for gpu in &mut self.gpus {
            // What cannot be counted is not given out either.
            if let Ok(share) = need.on(gpu.device.memory_mib, None, self.factor) {
                gpu.take(share);
            }
        }
    }

    /// Finds room for a pod: for each container so many GPUs, each another one, the fullest first that have room.
    ///
    /// # Errors
    /// [`Refusal::NoRoom`], [`Refusal::Need`]
    pub fn place(&self, pod: &PodNeeds) -> Result<PodClaims, Refusal> {
        let mut rest = self.clone();
        let mut all = PodClaims::default();
        for (container, need) in &pod.containers {
            let claims = rest.place_one(container, need, &pod.choice)?;
            rest.take(&claims);
            all.0.push(ContainerClaims { container: container.clone(), claims });
        }
        Ok(all)
    }

    fn place_one(
        &self,
        container: &str,
        need: &Need,
        choice: &Choice,
    ) -> Result<Vec<Claim>, Refusal> {
        let mut fitting = Vec::new();
        let mut lack = BTreeMap::new();
        for gpu in &self.gpus {
            let share = need.on(gpu.device.memory_mib, None, self.factor)?;
            let is_wanted = choice.takes(gpu.device.gpu, &gpu.device.product);
            match gpu.lacks(share).filter(|_| is_wanted).or((!is_wanted).then_some(Lack::Choice)) {
                None => fitting.push((gpu, share)),
                Some(why) => *lack.entry(why).or_default() += 1,
            }
        }
        let wanted = usize::try_from(need.places).unwrap_or(usize::MAX);
        if fitting.len() < wanted {
            let (container, asked) = (container.to_owned(), need.places);
            return Err(Refusal::NoRoom { container, asked, fitting: fitting.len(), lack });
        }
        fitting.sort_by_key(|(gpu, _)| (gpu.left.memory_mib, gpu.left.cores, gpu.device.index));
        fitting.truncate(wanted);
        fitting.sort_by_key(|(gpu, _)| gpu.device.index);
        let claim = |(gpu, share): (&Gpu, Share)| Claim {
            index: gpu.device.index,
            gpu: gpu.device.gpu,
            cores: share.cores,
            memory_mib: share.memory_mib,
        };
        Ok(fitting.into_iter().map(claim).collect())
    }
}

#[cfg(test)]
#[path = "account_tests.rs"]
mod tests;

//! The limits decided for a container: the check against its GPUs' free capacity, and the files written for the
//! container.

use std::io;
use std::path::PathBuf;

use dialects::Share;
use limits::{GpuId, Limits, Policy, Priority};
use session::settings::OwnerSettings;

use crate::amounts::Part;
use crate::identity::Holder;

/// The limits of a container, and what they take from its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) holder: Holder,
    /// The UID of its pod, if known.
    pub(crate) pod: Option<String>,
    pub(crate) parts: Vec<Part>,
    /// The shares withheld from others. For an init container: only what exceeds the later containers with the same
    /// GPUs.
    pub(crate) promised: Vec<(GpuId, Share)>,
    pub(crate) is_init: bool,
    /// The ResourceClaim, if one claim stands for all of its containers.
    pub(crate) claim: Option<String>,
    /// Path of the daemon's socket inside the container.
    pub(crate) daemon: PathBuf,
}

/// Why limits are not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// Other containers have the rest, possibly through other resources.
    #[error("{what} of {gpu} are asked for: {asked}; {left} of {total} are left")]
    NoRoom { what: &'static str, gpu: GpuId, asked: u64, left: u64, total: u64 },
    /// The container has ended.
    #[error("the container {0} has ended")]
    Gone(Box<Holder>),
    #[error("the container's page: {0}")]
    Page(#[from] session::PageError),
    #[error("the container's limits: {0}")]
    Settings(#[from] session::settings::SettingsError),
    #[error("the allocation's folder: {0}")]
    Folder(#[from] io::Error),
}

impl Decision {
    /// A decision that promises everything the container has.
    pub(crate) fn in_full(
        holder: Holder,
        pod: Option<String>,
        parts: Vec<Part>,
        daemon: PathBuf,
    ) -> Self {
        let promised = parts.iter().map(|part| (part.gpu, part.share)).collect();
        Self { holder, pod, parts, promised, is_init: false, claim: None, daemon }
    }

    /// The container's share of each GPU.
    pub(super) fn shares(&self) -> Vec<(GpuId, Share)> {
        self.parts.iter().map(|part| (part.gpu, part.share)).collect()
    }

    /// Whether its GPUs have room for the promised shares beside those of `others`.
    pub(super) fn has_room(&self, others: &[(GpuId, Share)]) -> Result<(), WriteError> {
        self.promised.iter().try_for_each(|(gpu, share)| {
            let parts = self.parts.iter().filter(|part| part.gpu == *gpu);
            let parts = parts.map(|part| Part { share: *share, ..*part });
            parts.into_iter().try_for_each(|part| has_room(&part, others))
        })
    }

    pub(super) fn settings(&self) -> OwnerSettings {
        let Self { holder, parts, claim, daemon, .. } = self;
        let by_device = |value: &dyn Fn(&Limits) -> Option<serde_json::Value>| {
            let pairs =
                parts.iter().filter_map(|part| Some((part.gpu.to_string(), value(&part.limits)?)));
            let map: serde_json::Map<String, serde_json::Value> = pairs.collect();
            (!map.is_empty()).then(|| serde_json::Value::Object(map).to_string())
        };
        let memory = by_device(&|limits| Some(limits.memory?.limit.into()));
        let percent = |ppm: u32| f64::from(ppm) / 10_000.0;
        let share = by_device(&|limits| {
            limits.compute.is_limit().then(|| percent(limits.compute.share_ppm).into())
        });
        let real = by_device(&|limits| Some(limits.memory?.real?.into()));
        let is_balance = |part: &Part| part.limits.compute.policy == Policy::Balance;
        let balance = parts.iter().any(is_balance).then(|| "balance".to_owned());
        let is_low = |part: &Part| part.limits.compute.priority == Priority::Low;
        let low = parts.iter().any(is_low).then(|| Priority::Low.name().to_owned());
        let limits = [
            (::limits::env::MEMORY_LIMIT, memory),
            (::limits::env::MEMORY_REAL, real),
            (::limits::env::COMPUTE_LIMIT, share),
            (::limits::env::POLICY, balance),
            (::limits::env::PRIORITY, low),
        ];
        let limits = limits.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let others = [
            (::limits::env::DAEMON_SOCKET, daemon.display().to_string()),
            ("POD_NAMESPACE", holder.namespace.clone()),
            ("POD_NAME", holder.pod.clone()),
            ("CONTAINER_NAME", holder.container.clone()),
        ];
        let pairs = limits.chain(others).map(|(name, value)| (name.to_owned(), value));
        OwnerSettings {
            variables: pairs.collect(),
            devices: Some(parts.iter().map(|part| part.gpu).collect()),
            name: Some(match claim {
                Some(claim) => format!("claim {}/{claim}", holder.namespace),
                None => holder.to_string(),
            }),
            command: None,
        }
    }
}

/// Whether a GPU has room for `part` beside the shares of `others`.
fn has_room(part: &Part, others: &[(GpuId, Share)]) -> Result<(), WriteError> {
    let on_it = others.iter().filter(|(gpu, _)| *gpu == part.gpu);
    let taken = on_it.fold(Share::default(), |sum, (_, share)| Share {
        cores: sum.cores.saturating_add(share.cores),
        memory_mib: sum.memory_mib.saturating_add(share.memory_mib),
    });
    let Part { gpu, share, total, .. } = *part;
    for (what, asked, total, taken) in [
        ("cores", share.cores, total.cores, taken.cores),
        ("MiB", share.memory_mib, total.memory_mib, taken.memory_mib),
    ] {
        let left = total.saturating_sub(taken);
        // A total of 0: the driver does not report it.
        if asked > left && total > 0 {
            return Err(WriteError::NoRoom { what, gpu, asked, left, total });
        }
    }
    Ok(())
}

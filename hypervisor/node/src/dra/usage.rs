//! Writes the usage of a claim's containers into the claim's status.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use api_server::{CallError, answered, segment};
use kube::api::{Patch, PatchParams};
use limits::units::PPM_ONE;
use serde_json::{Value, json};
use session::{Page, Summary};

use super::claim::{Planned, plan};
use super::{DRIVER, Driver};
use crate::allocations::{Grantor, Held};
use crate::chain::chain;
use crate::cluster::ANSWERS_WITHIN;

/// How often usage is written. Rarely, because each write changes an object in etcd.
const LOOK: Duration = Duration::from_secs(60);

impl Driver {
    /// Writes periodically, and at once when a claim has been prepared. Never returns.
    pub(crate) async fn tell_usage(self) -> Infallible {
        let mut told: BTreeMap<String, Value> = BTreeMap::new();
        loop {
            let granted = self.allocations.granted(Grantor::Claim);
            told.retain(|uid, _| granted.iter().any(|(owner, _)| owner == uid));
            for (uid, held) in granted {
                let before = told.get(&uid);
                match self.tell_one(&uid, &held, before).await {
                    Ok(Some(now)) => _ = told.insert(uid, now),
                    Ok(None) => {}
                    Err(error) => {
                        let (claim, reason) = (held.holder.to_string(), chain(error));
                        tracing::debug!(claim, reason, "its use is not told");
                    }
                }
            }
            _ = tokio::time::timeout(LOOK, self.prepared.notified()).await;
        }
    }

    /// Writes one claim's usage. Returns it if it is new.
    async fn tell_one(
        &self,
        uid: &str,
        held: &Held,
        before: Option<&Value>,
    ) -> Result<Option<Value>, CallError> {
        let (own, key, gpus) = (self.allocations.clone(), held.key.clone(), held.gpus.clone());
        let read = tokio::task::spawn_blocking(move || {
            let folder = own.session_of(&key);
            let one = |gpu: limits::GpuId| {
                let page = Page::open_existing(&folder.join(format!("{gpu}.page"))).ok()?;
                Some((gpu, data(&page.look().ok().map(Summary::of)?)))
            };
            gpus.into_iter().filter_map(one).collect::<BTreeMap<_, _>>()
        });
        let Ok(used) = read.await else { return Ok(None) };
        let now: Value = used.iter().map(|(gpu, data)| json!([gpu.to_string(), data])).collect();
        if before == Some(&now) {
            return Ok(None);
        }
        let (namespace, name) = (&held.holder.namespace, &held.holder.container);
        let Some(claim) = self.claim(namespace, name).await? else { return Ok(None) };
        let pool = std::sync::Arc::clone(&self.pool.borrow());
        // The claim may be gone and its name reused.
        let planned = plan(claim, uid, (self.cluster.name(), &pool), true);
        let Ok(Planned { devices, .. }) = planned else { return Ok(None) };
        let one = |(device, gpu): &(super::Allocated, limits::GpuId)| {
            let (pool, name, share) = (&device.pool, &device.device, &device.share_id);
            let mut one =
                json!({"driver": DRIVER, "pool": pool, "device": name, "data": used.get(gpu)});
            if let Some(share) = share {
                one["shareID"] = share.as_str().into();
            }
            one
        };
        let devices: Vec<Value> = devices.iter().map(one).collect();
        let patch = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": {"devices": devices},
        });
        let how = PatchParams::apply(DRIVER).force();
        let (claims, name, patch) = (self.claims(namespace), segment(name), Patch::Apply(patch));
        answered(ANSWERS_WITHIN, claims.patch_status(&name, &how, &patch)).await?;
        Ok(Some(now))
    }
}

/// The usage of one GPU by a claim, as written to the status.
fn data(summary: &Summary) -> Value {
    let compute = summary.limits.compute;
    let percent = |ppm: u32| f64::from(ppm) * 100.0 / f64::from(PPM_ONE);
    json!({
        "memoryLimitBytes": summary.limits.memory.map(|memory| memory.limit),
        "memoryUsedBytes": summary.used,
        "memoryPeakBytes": summary.peak_bytes,
        "memoryRefusals": summary.refused.map_or(0, |refused| refused.count),
        "computePercent": compute.is_limit().then(|| percent(compute.share_ppm)),
        "processes": summary.processes.len(),
    })
}

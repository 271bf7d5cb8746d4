//! Keeps the node's ResourceSlice up to date, from which schedulers and autoscalers know its GPUs.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api_server::{CallError, answered, segment};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use serde_json::Value;

use super::slice::{devices, slice, slice_name};
use super::{Driver, kind};
use crate::chain::chain;
use crate::cluster::ANSWERS_WITHIN;

/// How often to check that the slice exists: the kubelet removes it when it has not seen the driver for a while.
const LOOK: Duration = Duration::from_secs(20);
/// Pause after a failed call.
const AGAIN: Duration = Duration::from_secs(1);
/// The version of NVIDIA's kernel module, which is also the driver's.
const MODULE_VERSION: &str = "/sys/module/nvidia/version";

/// The slice as last written.
#[derive(Debug, Default)]
struct Written {
    devices: Value,
    generation: u64,
}

impl Driver {
    /// Writes the slice at start, periodically, and at once when the pool changes. Never returns.
    pub(crate) async fn publish(self) -> Infallible {
        let mut pool = self.pool.clone();
        let (mut written, mut told) = (Written::default(), None);
        loop {
            let now = Arc::clone(&pool.borrow_and_update());
            let version = std::fs::read_to_string(MODULE_VERSION).ok();
            let wait = match self.put(devices(&now, version.as_deref()), &mut written).await {
                Ok(()) => {
                    told = None;
                    LOOK
                }
                Err(error) => {
                    let reason = chain(error);
                    // Logs each reason once: a failure may last.
                    if told.as_ref() != Some(&reason) {
                        tracing::warn!(reason, "the node's ResourceSlice is not written");
                    }
                    told = Some(reason);
                    AGAIN
                }
            };
            // An error means that the sender ended, with the program.
            _ = tokio::time::timeout(wait, pool.changed()).await;
        }
    }

    /// Writes the slice if it differs. Compares with the last write, since a cluster without a feature drops fields.
    async fn put(&self, devices: Value, written: &mut Written) -> Result<(), CallError> {
        let node = self.cluster.name();
        let slices: Api<DynamicObject> =
            Api::all_with(self.cluster.client(), &kind("ResourceSlice", "resourceslices"));
        let name = segment(&slice_name(node));
        let found = answered(ANSWERS_WITHIN, slices.get_opt(&name)).await?;
        let generation = |slice: &DynamicObject| slice.data["spec"]["pool"]["generation"].as_u64();
        let present = found.as_ref().and_then(generation).unwrap_or_default();
        if found.is_some() && present == written.generation && devices == written.devices {
            return Ok(());
        }
        let nodes: Api<Node> = Api::all(self.cluster.client());
        let uid = answered(ANSWERS_WITHIN, nodes.get(&segment(node))).await?.metadata.uid;
        let next = present.max(written.generation) + 1;
        let mut object = slice((node, &uid.unwrap_or_default()), &devices, next);
        let how = PostParams::default();
        let wrong = |error| CallError::Failed(kube::Error::SerdeError(error));
        match found {
            Some(found) => {
                object["metadata"]["resourceVersion"] = found.metadata.resource_version.into();
                let object = serde_json::from_value(object).map_err(wrong)?;
                answered(ANSWERS_WITHIN, slices.replace(&name, &how, &object)).await?;
            }
            None => {
                let object = serde_json::from_value(object).map_err(wrong)?;
                answered(ANSWERS_WITHIN, slices.create(&how, &object)).await?;
            }
        }
        *written = Written { devices, generation: next };
        Ok(())
    }
}

//! `/api/v1/workers` and `/api/v1/leases`: processes, and the leases that they hold.

use std::sync::Arc;

use api::{LeaseList, WorkerList};
use poem_openapi::OpenApi;

use super::payload::Sent;
use super::problem::Refused;
use crate::core::Core;
use crate::identity::Caller;

pub(super) struct Leases(pub(super) Arc<Core>);

#[OpenApi]
impl Leases {
    /// Lists the processes that the daemon serves.
    #[oai(path = "/api/v1/workers", method = "get")]
    async fn workers(&self, caller: Caller) -> Result<Sent<WorkerList>, Refused> {
        Ok(Sent::with(self.0.worker_list(&caller).await?))
    }

    /// Lists the leases held.
    #[oai(path = "/api/v1/leases", method = "get")]
    async fn leases(&self, caller: Caller) -> Result<Sent<LeaseList>, Refused> {
        Ok(Sent::with(self.0.lease_list(&caller).await?))
    }
}

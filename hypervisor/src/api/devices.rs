//! `/api/v1/devices`: the node's devices, and declaring a device healthy.

use std::sync::Arc;

use api::{Device, DeviceDeclared, DeviceList, ProblemCode};
use limits::GpuId;
use poem_openapi::OpenApi;
use poem_openapi::param::Path;

use super::payload::Sent;
use super::problem::Refused;
use crate::core::Core;
use crate::identity::Caller;

pub(super) struct Devices(pub(super) Arc<Core>);

#[OpenApi]
impl Devices {
    /// Lists the devices that the daemon observes, and those on which a session with a compute share was seen.
    #[oai(path = "/api/v1/devices", method = "get")]
    async fn devices(&self, caller: Caller) -> Result<Sent<DeviceList>, Refused> {
        Ok(Sent::with(self.0.device_list(&caller).await?))
    }

    /// Shows a device, by UUID.
    #[oai(path = "/api/v1/devices/:uuid", method = "get")]
    async fn device(&self, caller: Caller, uuid: Path<String>) -> Result<Sent<Device>, Refused> {
        let wanted: Option<GpuId> = uuid.0.parse().ok();
        let found = Sent::with(self.0.device_list(&caller).await?).map(|list| {
            let same =
                |device: &Device| wanted.is_some_and(|wanted| device.uuid == wanted.to_string());
            list.devices.into_iter().find(same)
        });
        found.ok_or_else(|| unknown(&uuid.0))
    }

    /// Declares an unhealthy device healthy, for root and the daemon's own user. Leases are granted on it again, and
    /// further faults count.
    #[oai(path = "/api/v1/devices/:uuid/healthy", method = "post")]
    async fn declare_healthy(
        &self,
        caller: Caller,
        uuid: Path<String>,
    ) -> Result<Sent<DeviceDeclared>, Refused> {
        let wanted = uuid.0.parse().map_err(|_| unknown(&uuid.0))?;
        Ok(self.0.declare_healthy(&caller, wanted)?.into())
    }
}

fn unknown(uuid: &str) -> Refused {
    let shown: String = uuid.chars().take(80).collect();
    let message = format!("device {shown:?} is unknown");
    Refused::new(ProblemCode::NotFound, message, "a UUID that GET /api/v1/devices lists")
}

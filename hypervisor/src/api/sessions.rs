//! `/api/v1/sessions`: sessions, freeze and thaw.

use std::sync::Arc;

use api::{Session, SessionAction, SessionList};
use poem_openapi::OpenApi;
use poem_openapi::param::Path;

use super::limits;
use super::payload::Sent;
use super::problem::Refused;
use crate::core::Core;
use crate::identity::Caller;
use crate::refused::CallRefused;

pub(super) struct Sessions(pub(super) Arc<Core>);

#[OpenApi]
impl Sessions {
    /// Lists the sessions. Root and the daemon's own user see all; others see their own, and the number of others.
    #[oai(path = "/api/v1/sessions", method = "get")]
    async fn sessions(&self, caller: Caller) -> Result<Sent<SessionList>, Refused> {
        Ok(Sent::with(self.0.session_list(&caller).await?))
    }

    /// Shows a session, by id.
    #[oai(path = "/api/v1/sessions/:id", method = "get")]
    async fn session(&self, caller: Caller, id: Path<u64>) -> Result<Sent<Session>, Refused> {
        Ok(Sent::with(self.0.session(&caller, id.0).await?))
    }

    /// Freezes a session: no leases are granted to it. Its leases end at once on devices with gates in streams, and
    /// within 50 milliseconds elsewhere.
    #[oai(path = "/api/v1/sessions/:id/freeze", method = "post")]
    async fn freeze(&self, caller: Caller, id: Path<u64>) -> Result<Sent<SessionAction>, Refused> {
        let refused = match self.0.freeze_or_thaw(&caller, id.0, true).await {
            Ok(done) => return Ok(done.into()),
            Err(CallRefused::NoTimeLimit { session, device }) => (session, device),
            Err(refused) => return Err(refused.into()),
        };
        let (session, device) = refused;
        let pages = self.0.session_to_change(&caller, id.0)?;
        let _permit = self.0.permit(&caller).await?;
        let looked = tokio::task::spawn_blocking(move || limits::limits_time(&pages, device)).await;
        Err(match looked {
            Ok(true) => CallRefused::LimitNotTold { session, device }.into(),
            Ok(false) | Err(_) => CallRefused::NoTimeLimit { session, device }.into(),
        })
    }

    /// Thaws a session: leases are granted to it again, without saved time.
    #[oai(path = "/api/v1/sessions/:id/thaw", method = "post")]
    async fn thaw(&self, caller: Caller, id: Path<u64>) -> Result<Sent<SessionAction>, Refused> {
        Ok(self.0.freeze_or_thaw(&caller, id.0, false).await?.into())
    }
}

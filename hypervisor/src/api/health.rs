//! `/healthz` and `/readyz`: whether the daemon answers, and whether it can serve.

use std::sync::Arc;

use api::Readiness;
use poem::http::StatusCode;
use poem::{IntoResponse, Response};
use poem_openapi::registry::{MetaResponses, Registry};
use poem_openapi::types::Type;
use poem_openapi::{ApiResponse, OpenApi};

use super::payload::{Sent, response};
use crate::core::Core;

pub(super) struct Health(pub(super) Arc<Core>);

#[OpenApi]
impl Health {
    /// Shows that the daemon is alive.
    #[oai(path = "/healthz", method = "get")]
    async fn health(&self) -> Sent<api::Health> {
        self.0.health().into()
    }

    /// Shows whether the daemon can serve.
    #[oai(path = "/readyz", method = "get")]
    async fn ready(&self) -> Ready {
        Ready(self.0.readiness().await)
    }
}

struct Ready(Readiness);

impl IntoResponse for Ready {
    fn into_response(self) -> Response {
        let ready = self.0.ready;
        let mut response = Sent::from(self.0).into_response();
        if !ready {
            response.set_status(StatusCode::SERVICE_UNAVAILABLE);
        }
        response
    }
}

impl ApiResponse for Ready {
    fn meta() -> MetaResponses {
        let responses = [200, 503].map(|status| response::<Readiness>(Some(status), None));
        MetaResponses { responses: responses.into() }
    }

    fn register(registry: &mut Registry) {
        Readiness::register(registry);
    }
}

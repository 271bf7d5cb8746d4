//! `/metrics`: figures for Prometheus.

use std::sync::Arc;

use http_bidir_comm::server::kept_body;
use poem::{IntoResponse, Response};
use poem_openapi::param::Header;
use poem_openapi::registry::{MetaMediaType, MetaResponse, MetaResponses, Registry};
use poem_openapi::types::Type;
use poem_openapi::{ApiResponse, OpenApi};

use super::problem::Refused;
use crate::core::Core;
use crate::identity::Caller;
use crate::metrics::Format;
use crate::status_quota::StatusPermit;

pub(super) struct Metrics(pub(super) Arc<Core>);

#[OpenApi]
impl Metrics {
    /// Shows figures of the devices, and of the sessions that the caller may see, for Prometheus: as OpenMetrics if the
    /// caller accepts it, else in the older text format.
    #[oai(path = "/metrics", method = "get")]
    async fn metrics(
        &self,
        caller: Caller,
        /// Formats that the caller accepts.
        #[oai(name = "Accept")]
        accept: Header<Option<String>>,
    ) -> Result<Text, Refused> {
        let format = Format::accepted(accept.0.as_deref());
        let (text, permit) = self.0.metrics(&caller, format).await?;
        Ok(Text { text, permit, format })
    }
}

struct Text {
    text: String,
    permit: StatusPermit,
    format: Format,
}

impl IntoResponse for Text {
    fn into_response(self) -> Response {
        let body = kept_body(self.text.into_bytes(), self.permit);
        Response::builder().content_type(self.format.content_type()).body(body)
    }
}

impl ApiResponse for Text {
    fn meta() -> MetaResponses {
        let content = [Format::OpenMetrics, Format::Classic].map(|format| MetaMediaType {
            content_type: format.content_type(),
            schema: String::schema_ref(),
        });
        let response = MetaResponse {
            description: "The figures.",
            status: Some(200),
            status_range: None,
            content: content.into(),
            headers: vec![],
        };
        MetaResponses { responses: vec![response] }
    }

    fn register(_: &mut Registry) {}
}

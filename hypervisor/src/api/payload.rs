//! Bodies of calls and answers: serde reads and writes them, `poem_openapi` describes them.

use http_bidir_comm::server::{Answer, AnswerKept, Body};
use poem::{FromRequest, IntoResponse, Request, RequestBody, Response};
use poem_openapi::payload::{ParsePayload, Payload};
use poem_openapi::registry::{MetaMediaType, MetaResponse, MetaResponses, MetaSchemaRef, Registry};
use poem_openapi::types::Type;
use poem_openapi::{ApiResponse, impl_apirequest_for_payload};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::status_quota::StatusPermit;

pub(super) const JSON: &str = "application/json";

/// The body of a call, with the bounds of [`Body`].
pub(super) struct Call<T>(pub(super) T);

impl<T: Type> Payload for Call<T> {
    const CONTENT_TYPE: &'static str = JSON;

    fn check_content_type(content_type: &str) -> bool {
        content_type.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(JSON))
    }

    fn schema_ref() -> MetaSchemaRef {
        T::schema_ref()
    }

    fn register(registry: &mut Registry) {
        T::register(registry);
    }
}

impl<T: Type + DeserializeOwned> ParsePayload for Call<T> {
    const IS_REQUIRED: bool = true;

    async fn from_request(request: &Request, body: &mut RequestBody) -> poem::Result<Self> {
        Ok(Self(Body::from_request(request, body).await?.0))
    }
}

impl_apirequest_for_payload!(Call<T>, T: Type + DeserializeOwned);

/// An answer, and the permit for a long answer.
pub(super) struct Sent<T> {
    value: T,
    permit: Option<StatusPermit>,
}

impl<T> From<T> for Sent<T> {
    fn from(value: T) -> Self {
        Self { value, permit: None }
    }
}

impl<T> Sent<T> {
    pub(super) fn with((value, permit): (T, StatusPermit)) -> Self {
        Self { value, permit: Some(permit) }
    }

    pub(super) fn map<U>(self, map: impl FnOnce(T) -> Option<U>) -> Option<Sent<U>> {
        Some(Sent { value: map(self.value)?, permit: self.permit })
    }
}

impl<T: Serialize + Send> IntoResponse for Sent<T> {
    fn into_response(self) -> Response {
        match self.permit {
            Some(permit) => AnswerKept(self.value, permit).into_response(),
            None => Answer(self.value).into_response(),
        }
    }
}

impl<T: Type> ApiResponse for Sent<T> {
    fn meta() -> MetaResponses {
        MetaResponses { responses: vec![response::<T>(Some(200), None)] }
    }

    fn register(registry: &mut Registry) {
        T::register(registry);
    }
}

pub(super) fn response<T: Type>(status: Option<u16>, range: Option<&str>) -> MetaResponse {
    MetaResponse {
        description: "",
        status,
        status_range: range.map(str::to_owned),
        content: vec![MetaMediaType { content_type: JSON, schema: T::schema_ref() }],
        headers: vec![],
    }
}

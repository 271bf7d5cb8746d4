//! JSON bodies with a size limit, and refusals as [`ErrorBody`].

use poem::error::ResponseError;
use poem::http::StatusCode;
use poem::{FromRequest, IntoResponse, Request, RequestBody, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{BODY_LIMIT, ErrorBody};

/// A call's body, read as JSON; at most [`BODY_LIMIT`] bytes.
#[derive(Clone, Debug)]
pub struct Body<T>(pub T);

impl<'a, T: DeserializeOwned> FromRequest<'a> for Body<T> {
    async fn from_request(_: &'a Request, body: &mut RequestBody) -> poem::Result<Self> {
        let bytes = body.take()?.into_bytes_limit(BODY_LIMIT).await.map_err(|error| {
            let status = ResponseError::status(&error);
            ApiError::new(
                status,
                format!("the body can not be read: {error} (at most {BODY_LIMIT} bytes)"),
            )
        })?;
        let value = serde_json::from_slice(&bytes).map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body is not as expected: {error}"))
        })?;
        Ok(Self(value))
    }
}

/// An answer, written as JSON.
#[derive(Clone, Debug)]
pub struct Answer<T>(pub T);

impl<T: Serialize + Send> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(bytes) => json(StatusCode::OK, bytes),
            Err(error) => refuse(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("the answer can not be encoded: {error}"),
            ),
        }
    }
}

/// Why a call is refused: a status, and a message for the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    status: StatusCode,
    message: String,
}

impl ApiError {
    /// `message` says what was wrong with which value, and what would be accepted.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl ApiError {
    /// The bytes for a connection that is closed after them.
    pub(super) fn last_words(&self) -> Vec<u8> {
        let body =
            serde_json::to_vec(&ErrorBody { error: self.message.clone() }).unwrap_or_default();
        let mut words = format!(
            "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n",
            self.status,
            body.len()
        )
        .into_bytes();
        words.extend(body);
        words
    }
}

impl ResponseError for ApiError {
    fn status(&self) -> StatusCode {
        self.status
    }

    fn as_response(&self) -> Response {
        refuse(self.status, self.message.clone())
    }
}

/// Turns any error of a Poem route, also for an unknown path, into an [`ErrorBody`]. For
/// `EndpointExt::catch_all_error`.
pub async fn error_to_json(error: poem::Error) -> Response {
    refuse(error.status(), error.to_string())
}

fn refuse(status: StatusCode, error: String) -> Response {
    json(status, serde_json::to_vec(&ErrorBody { error }).unwrap_or_default())
}

fn json(status: StatusCode, bytes: Vec<u8>) -> Response {
    Response::builder().status(status).content_type("application/json").body(bytes)
}

//! JSON bodies with a size limit; refusals as [`ErrorBody`]. Used by handlers of routes.

use std::time::Duration;

use bytes::Bytes;
use poem::error::ResponseError;
use poem::http::StatusCode;
use poem::{Body as HttpBody, FromRequest, IntoResponse, Request, RequestBody, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::{CALL_LIMIT, ErrorBody};

/// Longest time to receive the body of a call. Callers send it together with the head.
const BODY_WITHIN: Duration = Duration::from_secs(2);

/// A call's body, read as JSON; at most [`CALL_LIMIT`] bytes.
#[derive(Clone, Debug)]
pub struct Body<T>(pub T);

impl<'a, T: DeserializeOwned> FromRequest<'a> for Body<T> {
    async fn from_request(_: &'a Request, body: &mut RequestBody) -> poem::Result<Self> {
        Ok(Self(read_json(body.take()?, CALL_LIMIT, BODY_WITHIN).await?))
    }
}

/// Reads a body as JSON: at most `most` bytes, received within `within`.
///
/// # Errors
/// The answer to the caller.
pub(super) async fn read_json<T: DeserializeOwned>(
    body: HttpBody,
    most: usize,
    within: Duration,
) -> Result<T, ApiError> {
    let bytes = timeout(within, body.into_bytes_limit(most))
        .await
        .map_err(|_| {
            let problem = format!("the body did not arrive within {within:?}");
            ApiError::new(StatusCode::REQUEST_TIMEOUT, problem)
        })?
        .map_err(|error| {
            let status = ResponseError::status(&error);
            ApiError::new(status, format!("cannot read the body: {error} (at most {most} bytes)"))
        })?;
    serde_json::from_slice(&bytes).map_err(|error| {
        ApiError::new(StatusCode::BAD_REQUEST, format!("the body is not as expected: {error}"))
    })
}

/// An answer in JSON.
#[derive(Clone, Debug)]
pub struct Answer<T>(pub T);

impl<T: Serialize + Send> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(bytes) => json(StatusCode::OK, bytes),
            Err(error) => not_encoded(&error),
        }
    }
}

fn not_encoded(error: &serde_json::Error) -> Response {
    let problem = format!("cannot encode the answer: {error}");
    refuse(StatusCode::INTERNAL_SERVER_ERROR, problem)
}

/// An answer in JSON that keeps a value alive until the answer has been sent, such as the permit that bounds the number
/// of long answers.
#[derive(Clone, Debug)]
pub struct AnswerKept<T, K>(pub T, pub K);

/// A body that keeps a value alive until the body has been sent.
pub fn kept_body<K: Send + 'static>(bytes: Vec<u8>, kept: K) -> HttpBody {
    HttpBody::from_bytes(Bytes::from_owner(Kept { bytes, _kept: kept }))
}

struct Kept<K> {
    bytes: Vec<u8>,
    _kept: K,
}

impl<K> AsRef<[u8]> for Kept<K> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<T: Serialize + Send, K: Send + 'static> IntoResponse for AnswerKept<T, K> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(bytes) => json(StatusCode::OK, kept_body(bytes, self.1)),
            Err(error) => not_encoded(&error),
        }
    }
}

/// A refusal: HTTP status, and message for the caller.
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
    /// The refusal as a complete HTTP response, for a connection that is closed afterwards.
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

/// Turns any error of a Poem route, including an unknown path, into an [`ErrorBody`]; for
/// `EndpointExt::catch_all_error`.
pub async fn error_to_json(error: poem::Error) -> Response {
    refuse(error.status(), error.to_string())
}

fn refuse(status: StatusCode, error: String) -> Response {
    json(status, serde_json::to_vec(&ErrorBody { error }).unwrap_or_default())
}

fn json(status: StatusCode, body: impl Into<HttpBody>) -> Response {
    Response::builder().status(status).content_type("application/json").body(body)
}

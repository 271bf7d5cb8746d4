//! Refusals of the API: HTTP status and [`Problem`].

use api::{Problem, ProblemCode};
use limits::RequestError;
use poem::http::StatusCode;
use poem::{IntoResponse, Response};
use poem_openapi::ApiResponse;
use poem_openapi::error::ParsePathError;
use poem_openapi::registry::{MetaResponses, Registry};
use poem_openapi::types::Type;

use super::payload::response;
use crate::refused::CallRefused;

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    status: StatusCode,
    problem: Problem,
}

impl Refused {
    pub(super) fn new(
        code: ProblemCode,
        message: impl Into<String>,
        accepted: impl Into<String>,
    ) -> Self {
        let status = match code {
            ProblemCode::BadRequest | ProblemCode::BadLimits => StatusCode::BAD_REQUEST,
            ProblemCode::Forbidden => StatusCode::FORBIDDEN,
            ProblemCode::NotFound => StatusCode::NOT_FOUND,
            ProblemCode::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            ProblemCode::Timeout => StatusCode::REQUEST_TIMEOUT,
            ProblemCode::NoTimeLimit | ProblemCode::Frozen | ProblemCode::NoPage => {
                StatusCode::CONFLICT
            }
            ProblemCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ProblemCode::WrongType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ProblemCode::TooMany => StatusCode::TOO_MANY_REQUESTS,
            ProblemCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let (message, accepted) = (message.into(), accepted.into());
        Self { status, problem: Problem { code, message, accepted } }
    }

    pub(super) fn forbidden(message: String) -> Self {
        Self::new(ProblemCode::Forbidden, message, "calls by the session's user, and by root")
    }

    pub(super) fn limits(error: &RequestError) -> Self {
        let accepted = "new limits that fit together with those that stay";
        Self::new(ProblemCode::BadLimits, error.to_string(), accepted)
    }
}

impl From<CallRefused> for Refused {
    fn from(refused: CallRefused) -> Self {
        let message = refused.to_string();
        match refused {
            CallRefused::UnknownSession(_) => {
                Self::new(ProblemCode::NotFound, message, "an id that GET /api/v1/sessions lists")
            }
            CallRefused::NotOperator => {
                let accepted = "calls by root and by the daemon's own user";
                Self::new(ProblemCode::Forbidden, message, accepted)
            }
            CallRefused::NotObserved(_) => {
                let accepted = "a device that GET /api/v1/devices lists with `figures`";
                Self::new(ProblemCode::NotFound, message, accepted)
            }
            CallRefused::NoTimeLimit { .. } => {
                let accepted = "a session with a compute share on each of its devices (share_ppm 1000000 under policy \
                                balance costs it nothing)";
                Self::new(ProblemCode::NoTimeLimit, message, accepted)
            }
            CallRefused::LimitNotTold { .. } => {
                let accepted = "the same call once a program of the session has used the device";
                Self::new(ProblemCode::NoTimeLimit, message, accepted)
            }
            CallRefused::StatusNotRead { .. } => {
                let accepted = "the same call once an answer has been read";
                Self::new(ProblemCode::TooMany, message, accepted)
            }
            other => Self::new(code(other.status()), message, "see the message"),
        }
    }
}

/// The code for a status without further details.
fn code(status: StatusCode) -> ProblemCode {
    match status {
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => ProblemCode::Forbidden,
        StatusCode::NOT_FOUND => ProblemCode::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => ProblemCode::MethodNotAllowed,
        StatusCode::REQUEST_TIMEOUT => ProblemCode::Timeout,
        StatusCode::PAYLOAD_TOO_LARGE => ProblemCode::TooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => ProblemCode::WrongType,
        StatusCode::TOO_MANY_REQUESTS => ProblemCode::TooMany,
        status if status.is_server_error() => ProblemCode::Internal,
        _ => ProblemCode::BadRequest,
    }
}

/// Refuses a call before a route is found.
pub(crate) fn turned_away(
    status: StatusCode,
    message: &'static str,
    accepted: &'static str,
) -> poem::Error {
    Refused { status, ..Refused::new(code(status), message, accepted) }.into()
}

/// Converts an error of a route to a [`Problem`].
pub(crate) async fn error_to_problem(error: poem::Error) -> Response {
    if error.is_from_response() {
        return error.into_response();
    }
    let message: String = error.to_string().chars().take(1_000).collect();
    if error.status() == StatusCode::FORBIDDEN {
        return Refused::forbidden(message).into_response();
    }
    if let Some(path) = error.downcast_ref::<ParsePathError>() {
        let message = format!("the id in the path: {}", path.reason);
        let accepted = "the number that GET /api/v1/sessions lists as \"id\"";
        return Refused::new(ProblemCode::BadRequest, message, accepted).into_response();
    }
    let accepted = "what GET /api/v1/openapi.json describes";
    let refused = Refused::new(code(error.status()), message, accepted);
    // Several statuses share a code, so the original status is kept.
    Refused { status: error.status(), ..refused }.into_response()
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.problem).unwrap_or_default();
        Response::builder().status(self.status).content_type(super::payload::JSON).body(body)
    }
}

impl From<Refused> for poem::Error {
    fn from(refused: Refused) -> Self {
        Self::from_response(refused.into_response())
    }
}

impl ApiResponse for Refused {
    fn meta() -> MetaResponses {
        let mut refused = response::<Problem>(None, Some("4XX"));
        refused.description = "Refused: what is wrong, and what would be accepted.";
        MetaResponses { responses: vec![refused] }
    }

    fn register(registry: &mut Registry) {
        Problem::register(registry);
    }
}

//! Errors of a call, and their classification from ureq's errors.

use std::time::Duration;

use super::socket::{Endpoint, Stranger};
use super::transport::TransportError;

/// Why a call was not answered.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server could not be reached: no connection could be made, or the connection broke before the answer.
    #[error("{endpoint} cannot be reached: {source}")]
    Connect {
        /// The server's address.
        endpoint: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The server belongs to another user. Nothing was sent.
    #[error("{endpoint} is not used: {stranger}")]
    Untrusted {
        /// The server's address.
        endpoint: String,
        /// The user who runs the server.
        stranger: Stranger,
    },
    /// The server does not speak TLS, or its certificate is not accepted. No call was sent.
    #[error("{endpoint} is not used: {problem}")]
    Tls {
        /// The server's address.
        endpoint: String,
        /// What is wrong, and what would be accepted.
        problem: String,
    },
    /// No answer came within the timeout. The server may have acted on the call.
    #[error("{endpoint} did not answer within {after:?}")]
    Timeout {
        /// The server's address.
        endpoint: String,
        /// The call's timeout.
        after: Duration,
    },
    /// The server understood the call and refused it.
    #[error("refused ({status}): {message}")]
    Refused {
        /// HTTP status, 300 or more.
        status: u16,
        /// The server's message.
        message: String,
    },
    /// The answer is unusable: not HTTP, not JSON, too large, or not of the expected type.
    #[error("{endpoint} gave an unexpected answer: {what}")]
    Protocol {
        /// The server's address.
        endpoint: String,
        /// What was unexpected.
        what: String,
    },
}

impl ClientError {
    /// Whether a retry is pointless: the server refused the call with a status from 400 to 499 other than 408 and 429.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { status: 400..500, .. })
            && !matches!(self, Self::Refused { status: 408 | 429, .. })
    }
}

pub(super) fn classify(error: ureq::Error, endpoint: &Endpoint, after: Duration) -> ClientError {
    let endpoint = endpoint.to_string();
    match error {
        ureq::Error::Timeout(_) => ClientError::Timeout { endpoint, after },
        ureq::Error::Io(source) => ClientError::Connect { endpoint, source },
        ureq::Error::Other(other) => match other.downcast::<TransportError>() {
            Ok(transport) => match *transport {
                TransportError::NoConnection(source) | TransportError::Stale(source) => {
                    match source.get_ref().and_then(|inner| inner.downcast_ref::<Stranger>()) {
                        Some(&stranger) => ClientError::Untrusted { endpoint, stranger },
                        None => ClientError::Connect { endpoint, source },
                    }
                }
                TransportError::Tls(problem) => ClientError::Tls { endpoint, problem },
            },
            Err(other) => ClientError::Protocol { endpoint, what: other.to_string() },
        },
        other => ClientError::Protocol { endpoint, what: other.to_string() },
    }
}

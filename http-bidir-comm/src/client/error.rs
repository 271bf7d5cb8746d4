//! What can go wrong with a call.

use std::time::Duration;

use super::socket::{Endpoint, Stranger};
use super::transport::TransportError;

/// Why a call was not answered.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server could not be reached: no connection could be made, or it broke before an answer
    /// came.
    #[error("{endpoint} cannot be reached: {source}")]
    Connect {
        /// The address at which the server was expected.
        endpoint: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Another user's process listens there. Nothing was sent to it.
    #[error("{endpoint} is not used: {stranger}")]
    Untrusted {
        /// Where the server was called.
        endpoint: String,
        /// Who runs it.
        stranger: Stranger,
    },
    /// The server does not speak TLS, or is not who it should be. No call was sent to it.
    #[error("{endpoint} is not used: {problem}")]
    Tls {
        /// Where the server was called.
        endpoint: String,
        /// What is wrong, and what would be accepted.
        problem: String,
    },
    /// The call's time ended before the answer came. The server may have acted on the call.
    #[error("{endpoint} did not answer within {after:?}")]
    Timeout {
        /// Where the server was called.
        endpoint: String,
        /// The time that the call was given.
        after: Duration,
    },
    /// The server understood the call and refuses it.
    #[error("refused ({status}): {message}")]
    Refused {
        /// HTTP status, 300 or more.
        status: u16,
        /// The server's message.
        message: String,
    },
    /// What came back is not an answer to the call: it is not HTTP, not JSON, too large, or not of
    /// the expected type.
    #[error("{endpoint} gave an unexpected answer: {what}")]
    Protocol {
        /// Where the server was called.
        endpoint: String,
        /// What was unexpected.
        what: String,
    },
}

impl ClientError {
    /// Whether trying again is of no use: the server refuses what is sent, with a status from 400
    /// to 499 other than 408 and 429.
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

//! The client side, made for a library inside another program's process.
//!
//! It starts no thread, installs no signal handler, cannot raise SIGPIPE, writes nothing to stdout or stderr, and
//! ignores proxy variables. Its sockets close on exec. A signal neither shortens nor prolongs a wait.

mod error;
mod socket;
#[cfg(feature = "client-tls")]
mod tls;
mod transport;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::typestate::WithBody;
use ureq::unversioned::transport::Connector;
use ureq::{Agent, Body, RequestBuilder, http};

pub use error::ClientError;
pub use socket::{Endpoint, Stranger};
#[cfg(feature = "client-tls")]
pub use tls::{ClientTlsError, TrustedRoots};

use crate::{BODY_LIMIT, ErrorBody, STATE_LIMIT};
use transport::{AnyAddress, SocketConnector};

type Response = http::Response<Body>;

/// Connections kept open between calls. More concurrent calls work, but their extra connections are closed afterwards.
const IDLE_CONNECTIONS: usize = 8;
const IDLE_AGE: Duration = Duration::from_secs(300);

/// Calls one server and waits for the answers. Connections are made on demand and kept alive.
///
/// Threads may share a client: concurrent calls use separate connections. After a fork the child must create its own
/// client, because a lock may have been held during the fork.
pub struct BlockingHttpClient {
    agent: Agent,
    endpoint: Arc<Endpoint>,
    base: String,
    authorization: Option<String>,
}

// A derived implementation would show the token.
impl fmt::Debug for BlockingHttpClient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("BlockingHttpClient")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl BlockingHttpClient {
    /// A client of the server at `endpoint`. It connects at the first call.
    pub fn new(endpoint: Endpoint) -> Self {
        let connector = SocketConnector::new(Arc::new(endpoint.clone()));
        Self::by(endpoint, "http", connector)
    }

    /// A client that speaks TLS with `host:port` and accepts a certificate for `host` that one of `roots` has signed.
    /// It connects at the first call.
    ///
    /// # Errors
    /// [`ClientTlsError`]
    #[cfg(feature = "client-tls")]
    pub fn over_tls(
        host: String,
        port: u16,
        token: Option<String>,
        roots: TrustedRoots,
    ) -> Result<Self, ClientTlsError> {
        let endpoint = Endpoint::Tcp { host: host.clone(), port, token };
        let sockets = SocketConnector::new(Arc::new(endpoint.clone()));
        Ok(Self::by(endpoint, "https", tls::TlsConnector::new(sockets, roots, &host)?))
    }

    fn by(endpoint: Endpoint, scheme: &str, connector: impl Connector) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections(IDLE_CONNECTIONS)
            .max_idle_connections_per_host(IDLE_CONNECTIONS)
            .max_idle_age(IDLE_AGE)
            .max_response_header_size(16 * 1024)
            .input_buffer_size(16 * 1024)
            .output_buffer_size(16 * 1024)
            .build();
        let (base, authorization) = match &endpoint {
            Endpoint::Unix(_) => (format!("{scheme}://localhost"), None),
            Endpoint::Tcp { host, port, token } => (
                authority(scheme, host, *port),
                token.as_ref().map(|token| format!("Bearer {token}")),
            ),
        };
        let agent = Agent::with_parts(config, connector, AnyAddress);
        Self { agent, endpoint: Arc::new(endpoint), base, authorization }
    }

    /// The server's address.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Posts `request` to `path` (`/v1/...`) and waits for the answer, for at most `timeout` in total.
    ///
    /// If a kept connection turns out to be closed because the server was restarted, the call is repeated once on a new
    /// connection. The old server is gone, and with it any effect of the first attempt.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn post<Req, Res>(
        &self,
        path: &str,
        request: &Req,
        timeout: Duration,
    ) -> Result<Res, ClientError>
    where
        Req: Serialize + ?Sized,
        Res: DeserializeOwned,
    {
        self.send(|url| self.agent.post(url), path, request, timeout)
    }

    /// Like [`Self::post`], with the method `PUT`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn put<Req, Res>(
        &self,
        path: &str,
        request: &Req,
        timeout: Duration,
    ) -> Result<Res, ClientError>
    where
        Req: Serialize + ?Sized,
        Res: DeserializeOwned,
    {
        self.send(|url| self.agent.put(url), path, request, timeout)
    }

    fn send<Req, Res>(
        &self,
        method: impl Fn(String) -> RequestBuilder<WithBody>,
        path: &str,
        request: &Req,
        timeout: Duration,
    ) -> Result<Res, ClientError>
    where
        Req: Serialize + ?Sized,
        Res: DeserializeOwned,
    {
        let body = serde_json::to_vec(request)
            .map_err(|error| self.protocol(format!("cannot encode the request: {error}")))?;
        let attempt = |left| {
            let call = method(self.url(path)).header("content-type", "application/json");
            let call = self.authorized(call).config().timeout_global(Some(left)).build();
            read(call.send(&body)?, BODY_LIMIT)
        };
        self.understood(path, self.twice(timeout, attempt)?)
    }

    /// Gets `path` (`/v1/...`), for at most `timeout` in total. Reads up to [`STATE_LIMIT`] bytes.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get<Res: DeserializeOwned>(
        &self,
        path: &str,
        timeout: Duration,
    ) -> Result<Res, ClientError> {
        self.get_also(path, 200, timeout)
    }

    /// Like [`Self::get`], but also accepts the status `also` with a body of the same type: a server that is not ready
    /// gives its reasons with status 503.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get_also<Res: DeserializeOwned>(
        &self,
        path: &str,
        also: u16,
        timeout: Duration,
    ) -> Result<Res, ClientError> {
        let (status, bytes) =
            self.twice(timeout, |left| read(self.send_get(path, left)?, STATE_LIMIT))?;
        self.understood(path, (if status == also { 200 } else { status }, bytes))
    }

    /// Gets `path` and returns the HTTP status, whatever it is: shows whether a server answers at all.
    ///
    /// # Errors
    /// See [`ClientError`]; never [`ClientError::Refused`].
    pub fn reach(&self, path: &str, timeout: Duration) -> Result<u16, ClientError> {
        self.twice(timeout, |left| Ok(self.send_get(path, left)?.status().as_u16()))
    }

    fn send_get(&self, path: &str, timeout: Duration) -> Result<Response, ureq::Error> {
        let get = self.authorized(self.agent.get(self.url(path)));
        get.config().timeout_global(Some(timeout)).build().call()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn authorized<Any>(&self, request: RequestBuilder<Any>) -> RequestBuilder<Any> {
        match &self.authorization {
            Some(authorization) => request.header("authorization", authorization),
            None => request,
        }
    }

    /// Repeats the attempt once, with the remaining time, if the kept connection turns out to be closed.
    fn twice<T>(
        &self,
        timeout: Duration,
        attempt: impl Fn(Duration) -> Result<T, ureq::Error>,
    ) -> Result<T, ClientError> {
        let started = Instant::now();
        let answer = match attempt(timeout) {
            Err(error) if transport::is_stale(&error) => {
                attempt(timeout.saturating_sub(started.elapsed()))
            }
            other => other,
        };
        answer.map_err(|error| error::classify(error, &self.endpoint, timeout))
    }

    /// Parses the answer of a successful call.
    fn understood<Res: DeserializeOwned>(
        &self,
        path: &str,
        (status, bytes): (u16, Vec<u8>),
    ) -> Result<Res, ClientError> {
        if !(200..300).contains(&status) {
            return Err(ClientError::Refused { status, message: refusal_text(&bytes) });
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| self.protocol(format!("cannot parse the answer to {path}: {error}")))
    }

    fn protocol(&self, what: String) -> ClientError {
        ClientError::Protocol { endpoint: self.endpoint.to_string(), what }
    }
}

/// Status and body of an answer; a body of more than `most` bytes is an error.
fn read(mut answer: Response, most: usize) -> Result<(u16, Vec<u8>), ureq::Error> {
    let bytes = answer.body_mut().with_config().limit(most as u64).read_to_vec()?;
    Ok((answer.status().as_u16(), bytes))
}

/// `scheme://host:port`, with brackets around an IPv6 address.
fn authority(scheme: &str, host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("{scheme}://[{host}]:{port}")
    } else {
        format!("{scheme}://{host}:{port}")
    }
}

/// The server's message, or the beginning of an answer that is not JSON. The text is shown to people: it is cut, and
/// control characters are replaced so that it cannot move a terminal's cursor.
fn refusal_text(bytes: &[u8]) -> String {
    let (text, most) = match serde_json::from_slice::<ErrorBody>(bytes) {
        Ok(refusal) => (refusal.error, 1000),
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), 200),
    };
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |c: char| if c.is_control() || turns(c) { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().take(most).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_become_authorities() {
        assert_eq!(authority("http", "10.0.0.1", 80), "http://10.0.0.1:80");
        assert_eq!(authority("http", "::1", 80), "http://[::1]:80");
        assert_eq!(authority("http", "[::1]", 80), "http://[::1]:80");
    }

    #[test]
    fn a_refusal_that_is_not_json_is_shown_as_it_is() {
        assert_eq!(refusal_text(br#"{"error":"no"}"#), "no");
        assert_eq!(refusal_text(b"not found"), "not found");
        assert_eq!(refusal_text(&[b'x'; 5000]).len(), 200);
        let long = format!(r#"{{"error":"{}"}}"#, "x".repeat(5000));
        assert_eq!(refusal_text(long.as_bytes()).len(), 1000);
        let moves = "no\u{1b}[2J\n\u{202e}".to_owned();
        let moves = serde_json::to_vec(&ErrorBody { error: moves }).unwrap();
        assert_eq!(refusal_text(&moves), "no\u{fffd}[2J\u{fffd}\u{fffd}");
    }
}

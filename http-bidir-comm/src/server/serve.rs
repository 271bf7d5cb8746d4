//! Serves HTTP/1 on each connection, within bounds of memory and time.
//!
//! Poem's own server also speaks HTTP/2, where one connection carries hundreds of calls, and lets
//! an unfinished request take 400 KB for as long as it likes. Here a connection carries one call at
//! a time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use poem::Endpoint;
use poem::http::uri::Scheme;
use poem::web::{LocalAddr, RemoteAddr};
use tokio::io::{AsyncRead, AsyncWrite};

use super::line::pause;
use super::listener::Listener;
use super::prompt_reader::PromptReader;

/// The head of a call may take this long. A kept connection without a call is closed after it, too.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// A connection's buffer: a call's head has to fit. The least that hyper accepts.
const BUFFER: usize = 8 * 1024;

/// Serves `endpoint` to all connections of `listener`. Never returns.
pub async fn serve<L, E>(mut listener: L, endpoint: E) -> Infallible
where
    L: Listener,
    E: Endpoint + 'static,
{
    let endpoint = Arc::new(endpoint);
    loop {
        let (stream, caller, permit) = listener.accept().await;
        let endpoint = Arc::clone(&endpoint);
        tokio::spawn(async move {
            pause(L::wait(&permit)).await;
            let connection = Arc::new(L::begin(permit, &stream));
            serve_one(stream, caller, &connection, endpoint).await;
            // Only now is the connection's descriptor closed.
            drop(connection);
        });
    }
}

/// Serves a connection. A handler is dropped when its caller goes away.
async fn serve_one<S, C, E>(stream: S, caller: RemoteAddr, connection: &Arc<C>, endpoint: Arc<E>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    C: Send + Sync + 'static,
    E: Endpoint,
{
    let service = service_fn(move |request: poem::http::Request<Incoming>| {
        let (endpoint, connection) = (Arc::clone(&endpoint), Arc::clone(connection));
        let origin = (LocalAddr::default(), caller.clone(), Scheme::HTTP);
        async move {
            let (local, remote, scheme) = origin;
            let mut request = poem::Request::from((request, local, remote, scheme));
            request.extensions_mut().insert(connection);
            let answer = endpoint.get_response(request).await;
            Ok::<hyper::Response<_>, Infallible>(answer.into())
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(PromptReader::new(stream)), service);
    // A connection that fails is its caller's matter.
    let _ = connection.await;
}

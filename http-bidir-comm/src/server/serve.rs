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
use poem::web::LocalAddr;
use tokio::net::UnixStream;

use super::connection_filter::ConnectionFilter;
use super::listener::PeerListener;
use super::peer::Peer;
use super::prompt_reader::PromptReader;

/// The head of a call may take this long. A kept connection without a call is closed after it, too.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// A connection's buffer: a call's head has to fit. The least that hyper accepts.
const BUFFER: usize = 8 * 1024;

/// Serves `endpoint` to all connections of `listener`. Never returns.
pub async fn serve<F, E>(mut listener: PeerListener<F>, endpoint: E) -> Infallible
where
    F: ConnectionFilter,
    E: Endpoint + 'static,
{
    let endpoint = Arc::new(endpoint);
    loop {
        let (stream, peer, permit) = listener.accept().await;
        let endpoint = Arc::clone(&endpoint);
        tokio::spawn(async move {
            serve_one(stream, peer, endpoint).await;
            // Only now is the connection's descriptor closed.
            drop(permit);
        });
    }
}

/// Serves a connection. A handler is dropped when its caller goes away.
async fn serve_one<E: Endpoint>(stream: UnixStream, peer: Peer, endpoint: Arc<E>) {
    let service = service_fn(move |request: poem::http::Request<Incoming>| {
        let endpoint = Arc::clone(&endpoint);
        let origin = (LocalAddr::default(), peer.to_address(), Scheme::HTTP);
        async move {
            let (local, remote, scheme) = origin;
            let answer = endpoint.get_response((request, local, remote, scheme).into()).await;
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

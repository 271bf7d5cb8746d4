//! Serves HTTP/1 on each connection, with bounds on memory and time.
//!
//! Poem's own server also speaks HTTP/2, where one connection carries hundreds of calls, and lets an unfinished request
//! hold 400 KB indefinitely. Here a connection carries one call at a time.

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

/// Longest time to receive the head of a call, and to keep an idle connection.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// Buffer of a connection, which must hold a call's head. The smallest that hyper accepts.
const BUFFER: usize = 8 * 1024;

/// Serves `endpoint` on all connections of `listener`. Never returns.
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
            // `serve_one` has closed the connection's descriptor.
            drop(connection);
        });
    }
}

/// Serves a connection until it ends. A handler is dropped when its caller disconnects.
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
    // A failed connection concerns only its caller.
    let _ = connection.await;
}

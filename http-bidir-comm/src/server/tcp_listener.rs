//! A TCP port with a bound on its connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use poem::Addr;
use poem::http::StatusCode;
use poem::web::RemoteAddr;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::json::ApiError;
use super::line::{Line, Pace};
use super::listener::{Listener, PAUSE_AFTER_ERROR};

/// A bound TCP port without encryption; see `with_tls`. Callers are known by address only, so the routes have to
/// authenticate them, for example by a [`BearerToken`](super::BearerToken).
#[derive(Debug)]
pub struct BoundedTcpListener {
    listener: TcpListener,
    places: Arc<Semaphore>,
    most: usize,
    opened: Option<Arc<Line>>,
}

/// One of the port's connection slots, and the delay before the connection begins.
#[derive(Debug)]
pub struct Place {
    wait: Duration,
    pub(super) permit: OwnedSemaphorePermit,
}

impl BoundedTcpListener {
    /// Binds `address`. At most `most` connections are served at once; further ones are refused with status 503. Must
    /// be called inside a Tokio runtime.
    ///
    /// # Errors
    /// The system's reason.
    pub fn bind(address: SocketAddr, most: usize) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let most = most.min(Semaphore::MAX_PERMITS);
        let places = Arc::new(Semaphore::new(most));
        Ok(Self { listener: TcpListener::from_std(listener)?, places, most, opened: None })
    }

    /// Limits the rate of new connections. Delayed connections occupy slots.
    #[must_use]
    pub fn with_pace(self, pace: Pace) -> Self {
        Self { opened: Some(Line::new(pace)), ..self }
    }

    /// The bound address, with the chosen port if port 0 was requested.
    ///
    /// # Errors
    /// The system's reason.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl BoundedTcpListener {
    /// The next connection for which a slot is free. `refuse` answers the others.
    pub(super) async fn next(
        &mut self,
        refuse: impl Fn(&TcpStream, ApiError),
    ) -> (TcpStream, RemoteAddr, Place) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else {
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                continue;
            };
            // Answers are small and each is waited for, so Nagle's algorithm would only delay them.
            let _ = stream.set_nodelay(true);
            match Arc::clone(&self.places).try_acquire_owned() {
                Ok(permit) => {
                    let wait = self.opened.as_ref().map_or(Duration::ZERO, |line| line.spend());
                    let address = RemoteAddr(Addr::SocketAddr(address));
                    return (stream, address, Place { wait, permit });
                }
                Err(_) => {
                    let problem = format!("too many connections; expected at most {}", self.most);
                    refuse(&stream, ApiError::new(StatusCode::SERVICE_UNAVAILABLE, problem));
                }
            }
        }
    }
}

impl Listener for BoundedTcpListener {
    type Stream = TcpStream;
    type Permit = Place;
    type Connection = OwnedSemaphorePermit;

    async fn accept(&mut self) -> (TcpStream, RemoteAddr, Place) {
        let tell = |stream: &TcpStream, refusal: ApiError| {
            let _ = stream.try_write(&refusal.last_words());
        };
        self.next(tell).await
    }

    fn wait(place: &Place) -> Duration {
        place.wait
    }

    fn begin(place: Place, _: &TcpStream) -> OwnedSemaphorePermit {
        place.permit
    }
}

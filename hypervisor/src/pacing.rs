//! How fast each party may call. Beyond that its calls wait, and others find the daemon idle.
//!
//! Programs that ask for leases, people and tools that ask what goes on, and calls that are refused have a line each:
//! none of them keeps the others of its own party waiting.

use std::sync::Arc;

use http_bidir_comm::server::{Line, Lines, Pace};
use poem::http::StatusCode;
use poem::{Endpoint, IntoResponse, Request, Response};

use super::connection::Connection;
use super::identity::Party;

/// Calls of programs. All leases that a node is made for need half of it.
const PROGRAMS: Pace = Pace { each_second: 8_000, at_once: 2_000 };
/// Calls of the API.
const API: Pace = Pace { each_second: 1_000, at_once: 500 };
/// Refusals, but for those of programs that the daemon does not know any more: after its restart all of them come.
const REFUSED: Pace = Pace { each_second: 1_000, at_once: 100 };

/// The lines in which one party's calls wait.
#[derive(Clone, Debug)]
pub(super) struct Pacing {
    programs: Arc<Line>,
    api: Arc<Line>,
    refused: Arc<Line>,
}

impl Pacing {
    /// For callers who share no line with a party.
    pub(super) fn new() -> Self {
        Self { programs: Line::new(PROGRAMS), api: Line::new(API), refused: Line::new(REFUSED) }
    }

    fn of(request: &Request) -> Option<Self> {
        let connection = request.extensions().get::<Arc<Connection>>();
        connection.map(|connection| connection.pacing.clone())
    }
}

/// The lines of all parties.
#[derive(Debug)]
pub(super) struct Pacings {
    programs: Lines<Party>,
    api: Lines<Party>,
    refused: Lines<Party>,
}

impl Default for Pacings {
    fn default() -> Self {
        Self { programs: Lines::new(PROGRAMS), api: Lines::new(API), refused: Lines::new(REFUSED) }
    }
}

impl Pacings {
    pub(super) fn of(&self, party: Party) -> Pacing {
        Pacing {
            programs: self.programs.of(party),
            api: self.api.of(party),
            refused: self.refused.of(party),
        }
    }
}

/// Routes whose calls wait in their lines.
pub(super) struct Paced<E> {
    endpoint: E,
    /// For callers without a line of their party.
    others: Pacing,
}

impl<E> Paced<E> {
    pub(super) fn new(endpoint: E) -> Self {
        Self { endpoint, others: Pacing::new() }
    }
}

impl<E: Endpoint> Endpoint for Paced<E> {
    type Output = Response;

    async fn call(&self, request: Request) -> poem::Result<Response> {
        let pacing = Pacing::of(&request).unwrap_or_else(|| self.others.clone());
        let of_a_program = request.uri().path().starts_with(protocol::path::ROOT);
        if of_a_program { &pacing.programs } else { &pacing.api }.pass().await;
        let answer = self.endpoint.call(request).await?.into_response();
        let is_forgotten = of_a_program && answer.status() == StatusCode::NOT_FOUND;
        if answer.status().is_client_error() && !is_forgotten {
            pacing.refused.pass().await;
        }
        Ok(answer)
    }
}

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
/// Those of one process: turns of 5 ms, every other one on eight devices, need 800.
const PROCESS: Pace = Pace { each_second: 1_000, at_once: 500 };
/// Calls of the API.
const API: Pace = Pace { each_second: 500, at_once: 500 };
/// Refusals, but for those of programs that the daemon does not know any more: after its restart all of them come.
const REFUSED: Pace = Pace { each_second: 100, at_once: 100 };

/// The lines in which a process's calls wait: its own, and those of its party.
#[derive(Clone, Debug)]
pub(super) struct Pacing {
    process: Arc<Line>,
    programs: Arc<Line>,
    api: Arc<Line>,
    refused: Arc<Line>,
}

impl Pacing {
    /// For callers who share no line with a party.
    pub(super) fn new() -> Self {
        Self {
            // Nobody says which process it is.
            process: Line::new(PROGRAMS),
            programs: Line::new(PROGRAMS),
            api: Line::new(API),
            refused: Line::new(REFUSED),
        }
    }

    fn of(request: &Request) -> Option<Self> {
        let connection = request.extensions().get::<Arc<Connection>>();
        connection.map(|connection| connection.pacing.clone())
    }
}

/// The lines of all parties.
#[derive(Debug)]
pub(super) struct Pacings {
    /// By their ids in the daemon's pid namespace. One that is used again has to earn what the process before it spent.
    processes: Lines<i32>,
    programs: Lines<Party>,
    api: Lines<Party>,
    refused: Lines<Party>,
}

impl Default for Pacings {
    fn default() -> Self {
        Self {
            processes: Lines::new(PROCESS),
            programs: Lines::new(PROGRAMS),
            api: Lines::new(API),
            refused: Lines::new(REFUSED),
        }
    }
}

impl Pacings {
    pub(super) fn of(&self, party: Party, pid: i32) -> Pacing {
        Pacing {
            process: self.processes.of(pid),
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
        if of_a_program {
            pacing.process.pass().await;
            pacing.programs.pass().await;
        } else {
            pacing.api.pass().await;
        }
        let answer = self.endpoint.call(request).await?.into_response();
        let is_forgotten = of_a_program && answer.status() == StatusCode::NOT_FOUND;
        if answer.status().is_client_error() && !is_forgotten {
            pacing.refused.pass().await;
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Owner;
    use std::time::Duration;

    #[test]
    fn a_process_that_asks_without_end_waits_and_another_one_of_its_user_does_not() {
        let pacings = Pacings::default();
        let party = Owner::user(1000).party();
        let [busy, other] = [1, 2].map(|pid| pacings.of(party, pid));
        (0..PROCESS.at_once).for_each(|_| assert!(busy.process.spend().is_zero()));
        let longest = (0..PROCESS.each_second).map(|_| busy.process.spend()).max();
        assert!(longest > Some(Duration::from_millis(500)), "{longest:?}");
        assert!(other.process.spend().is_zero() && other.programs.spend().is_zero());
        // On another connection, too.
        assert!(!pacings.of(party, 1).process.spend().is_zero());
    }
}

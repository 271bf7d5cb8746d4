//! Rate limits of calls per party. Calls over the rate are delayed, so that other parties find the daemon idle.
//!
//! Programs' calls, API calls and refused calls have separate limits, so that they do not delay each other.

use std::sync::Arc;

use http_bidir_comm::server::{Line, Lines, Pace};
use poem::http::StatusCode;
use poem::{Endpoint, IntoResponse, Request, Response};

use super::connection::Connection;
use super::identity::Party;

/// Calls of programs. Twice the rate that the leases of a full node need.
const PROGRAMS: Pace = Pace { each_second: 8_000, at_once: 2_000 };
/// Calls of one process: 800 per second are needed for turns of 5 ms, every other one, on eight devices.
const PROCESS: Pace = Pace { each_second: 1_000, at_once: 500 };
/// Calls of the API.
const API: Pace = Pace { each_second: 500, at_once: 500 };
/// Refused calls, except those of workers that the daemon does not know: after its restart all workers make one.
const REFUSED: Pace = Pace { each_second: 100, at_once: 100 };

/// The rate limits of a process's calls: its own, and its party's.
#[derive(Clone, Debug)]
pub(super) struct Pacing {
    process: Arc<Line>,
    programs: Arc<Line>,
    api: Arc<Line>,
    refused: Arc<Line>,
}

impl Pacing {
    /// For callers that share no limit with a party.
    pub(super) fn new() -> Self {
        Self {
            // The process is unknown.
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

/// The rate limits of all parties.
#[derive(Debug)]
pub(super) struct Pacings {
    /// By pid in the daemon's pid namespace. A reused pid continues with its predecessor's limit.
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

/// Routes with rate-limited calls.
pub(super) struct Paced<E> {
    endpoint: E,
    /// For callers without a party's limit.
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
        // Also on another connection.
        assert!(!pacings.of(party, 1).process.spend().is_zero());
    }
}

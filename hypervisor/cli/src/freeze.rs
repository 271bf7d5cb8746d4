//! `sluice freeze` and `sluice thaw`: the daemon grants a session nothing until it is thawed.

use std::io::{self, Write};

use api::{Session, SessionAction, SessionState};
use http_bidir_comm::client::{BlockingHttpClient, ClientError};

use super::cli::FreezeArguments;
use super::node::Node;
use super::{Error, choice, daemon_link, say};

/// Freezes a session, or thaws it.
///
/// # Errors
/// [`Error::Usage`] for an unknown session, and where the daemon refuses; [`Error::Daemon`] without one.
pub fn run(arguments: &FreezeArguments, frozen: bool) -> Result<u8, Error> {
    let text = act(arguments, frozen, say)?;
    let _ = io::stdout().lock().write_all(text.as_bytes());
    Ok(0)
}

/// Freezes a session, or thaws it, and returns what came of it.
pub(crate) fn act(
    arguments: &FreezeArguments,
    frozen: bool,
    mut notice: impl FnMut(&str),
) -> Result<String, Error> {
    let daemon = daemon_link::connect(arguments.daemon.as_deref())?;
    let node = Node::read(arguments.daemon.as_deref())?;
    node.notices.iter().for_each(|text| notice(text));
    let session = choice::known(&node, &arguments.session)?;
    let action = if frozen { "/freeze" } else { "/thaw" };
    let path = api::path::session(session.id, action);
    let done: SessionAction = call(post(&daemon, &path))?;
    Ok(told(session, choice::called(&node, session).as_deref(), &done))
}

fn post(daemon: &BlockingHttpClient, path: &str) -> Result<SessionAction, ClientError> {
    daemon.post(path, &(), daemon_link::PATIENCE)
}

fn call<T>(answer: Result<T, ClientError>) -> Result<T, Error> {
    answer.map_err(|error| match error {
        ClientError::Refused { message, .. } => Error::Usage(message),
        other => Error::Daemon(other.to_string()),
    })
}

fn told(session: &Session, called: Option<&str>, done: &SessionAction) -> String {
    let state = match done.state {
        SessionState::Frozen => "frozen",
        SessionState::Running => "running",
    };
    let word = if done.changed { "is now" } else { "is already" };
    let title = choice::title(&session.name, session.uid, called);
    let comma = if called.is_some() { "," } else { "" };
    let mut text = format!("{title}{comma} {word} {state}");
    if done.state == SessionState::Frozen && done.leases > 0 {
        text += &format!("; work in flight may run for another 50 ms (leases: {})", done.leases);
    }
    text + "\n"
}

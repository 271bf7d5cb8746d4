//! `sluice prune`: removes what sessions without a process have left behind.

use std::io::{self, Write};

use ::limits::Shown;
use api::Presence;
use session::directory::{self, Pruned};

use super::cli::PruneArgs;
use super::node::{Node, last_part};
use super::{Error, say};

/// Prunes, and says what.
///
/// # Errors
/// [`Error::Directory`] if some of this user's sessions cannot be read; the others are pruned, and each problem is said.
pub(crate) fn run(arguments: &PruneArgs) -> Result<u8, Error> {
    let node = Node::here(None)?;
    node.notices.iter().for_each(|notice| say(notice));
    let own = rustix::process::geteuid().as_raw();
    // A process in another pid namespace may have no lock that can be seen from here.
    let serves = |name: &str| {
        let known = node.daemon.iter().flat_map(|daemon| &daemon.sessions);
        let mut active = known.filter(|session| session.presence == Presence::Active);
        active.any(|session| session.uid == own && session.name == last_part(name))
    };
    let Pruned { names, problems } =
        directory::prune(arguments.older_than, serves, arguments.dry_run);
    let word = if arguments.dry_run { "would be removed" } else { "removed" };
    let mut text: String = names.iter().map(|name| format!("{word}: {}\n", Shown(name))).collect();
    text += &format!("{} leftover sessions {word}\n", names.len());
    let _ = io::stdout().lock().write_all(text.as_bytes());
    let mut problems = problems.into_iter().map(Error::from);
    let Some(first) = problems.next() else { return Ok(0) };
    problems.for_each(|problem| say(&problem.to_string()));
    Err(first)
}

//! Shell completion. The shell runs `sluice` itself for each TAB, so that names of sessions are those of this moment.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use clap::CommandFactory;
use clap_complete::env::{CompleteEnv, Shells};
use clap_complete::{ArgValueCompleter, CompletionCandidate};
use session::directory::Found;

use super::cli::{Cli, CompletionsArgs};
use super::node::{Node, last_part};
use super::{Error, choice, print, profiles};

/// Set by the shell's script when it asks for candidates.
const VARIABLE: &str = "_SLUICE_COMPLETE";

/// Answers a shell that asks for candidates, and ends the process then. Call it before threads are started.
pub fn answer_shell() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// `sluice completions`: prints the script that a shell loads.
///
/// # Errors
/// [`Error::System`] if it cannot be printed.
pub(crate) fn script(arguments: &CompletionsArgs) -> Result<u8, Error> {
    let failed = |error| Error::system("cannot write the completions", error);
    let shell = arguments.shell.to_string();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell);
    let completer = completer.ok_or_else(|| failed(std::io::Error::other(shell.clone())))?;
    let mut text = Vec::new();
    let written = completer.write_registration(VARIABLE, "sluice", "sluice", "sluice", &mut text);
    written.map_err(failed)?;
    print(&String::from_utf8_lossy(&text)).map(|_| 0)
}

/// Completes the argument that names a session.
pub(crate) fn sessions() -> ArgValueCompleter {
    // An error message would appear in the middle of the line that is typed.
    one_of(|| Node::read(None).map_or_else(|_| BTreeSet::new(), |node| names(&node)))
}

/// Completes the argument that names a profile.
pub(crate) fn profiles() -> ArgValueCompleter {
    one_of(|| profiles::names().into_iter().collect())
}

fn one_of(words: impl Fn() -> BTreeSet<String> + Send + Sync + 'static) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let begun = current.to_string_lossy();
        let words = words().into_iter().filter(|word| word.starts_with(&*begun));
        words.map(CompletionCandidate::new).collect()
    })
}

/// The words that the sessions of running programs are known by.
fn names(node: &Node) -> BTreeSet<String> {
    let given = |found: &Found| found.settings().and_then(|settings| settings.name);
    let seen = node.sessions.iter().filter(|found| choice::is_running(found));
    let seen = seen.map(|found| given(found).unwrap_or_else(|| found.name.clone()));
    let elsewhere = node.elsewhere(false).map(|session| {
        choice::called(node, session).unwrap_or_else(|| last_part(&session.name).to_owned())
    });
    seen.chain(elsewhere).collect()
}

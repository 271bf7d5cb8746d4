//! Finds the session that a command-line argument names.

use std::path::Path;

use ::limits::Shown;
use ::limits::units::parse_whole;
use api::Session;
use session::SessionSummary;
use session::directory::{self, Found};
use session::process::{may_be_of, start_time};

use super::Error;
use super::node::{Node, containers, last_part};

/// Accessors for the ways to name a session.
struct Ways<N, G, C, U, P> {
    /// Its generated name. A prefix is enough.
    name: N,
    /// Its given name, which must match completely: 'train' must not select 'train2' after 'train' has ended.
    given: G,
    /// Its container's name and id. A prefix is enough, as in container runtimes.
    container: C,
    /// Its user.
    uid: U,
    /// Whether a process belongs to it.
    has_process: P,
}

/// The session with pages that is named by its name or a prefix of it, a container or a process id.
///
/// # Errors
/// [`Error::Usage`]: none or several match.
pub(crate) fn session<'a>(node: &'a Node, wanted: &str) -> Result<&'a Found, Error> {
    let ways = Ways {
        name: |found: &Found| found.name.clone(),
        given: given_name,
        container: |found: &Found| {
            let known = node.known(found).and_then(|known| known.container.as_ref());
            known.map_or_else(Vec::new, words)
        },
        uid: |found: &Found| found.uid,
        has_process,
    };
    choose(&node.sessions, wanted, &ways).map_err(|error| match known(node, wanted) {
        // Only the daemon knows this session.
        Ok(known) => out_of_reach(known),
        Err(_) => error,
    })
}

/// How a session's limits can be changed.
pub(crate) enum Reached<'a> {
    /// In its pages.
    Pages(&'a Found),
    /// Through the daemon, because its pages are not visible here.
    Daemon(&'a Session),
}

/// Finds a session, wherever its pages are.
///
/// # Errors
/// [`Error::Usage`]: none or several match.
pub(crate) fn anywhere<'a>(node: &'a Node, wanted: &str) -> Result<Reached<'a>, Error> {
    match (session(node, wanted), known(node, wanted)) {
        (Ok(found), _) => Ok(Reached::Pages(found)),
        (Err(_), Ok(known)) => Ok(Reached::Daemon(known)),
        (Err(error), Err(_)) => Err(error),
    }
}

/// Finds a session among those that the daemon knows.
///
/// # Errors
/// [`Error::Usage`]: none or several match.
pub(crate) fn known<'a>(node: &'a Node, wanted: &str) -> Result<&'a Session, Error> {
    let sessions = node.daemon.as_ref().map_or(&[][..], |daemon| &daemon.sessions);
    let ways = Ways {
        name: |session: &Session| session.name.clone(),
        given: |session: &Session| with_pages(node, session).find_map(given_name),
        container: |session: &Session| session.container.as_ref().map_or_else(Vec::new, words),
        uid: |session: &Session| session.uid,
        has_process: |session: &Session, pid: u32| {
            i32::try_from(pid).is_ok_and(|pid| session.pids.contains(&pid))
        },
    };
    choose(sessions, wanted, &ways)
}

/// The given name of a session. `None` for a session that has ended.
pub(crate) fn given_name(found: &Found) -> Option<String> {
    let name = found.settings()?.name?;
    is_running(found).then_some(name)
}

/// Whether the command that created the session, or a process in it, still runs. Reads its pages.
pub(crate) fn is_running(found: &Found) -> bool {
    found.owned || SessionSummary::of(found).is_in_use()
}

/// The given name of a session that the daemon knows. Without visible pages: the name of its container.
pub(crate) fn called(node: &Node, session: &Session) -> Option<String> {
    with_pages(node, session).find_map(given_name).or_else(|| {
        let container = session.container.as_ref()?;
        containers::name(&container.runtime, &container.id, container.user)
    })
}

/// The visible pages of a session that the daemon knows.
fn with_pages<'a>(node: &'a Node, session: &'a Session) -> impl Iterator<Item = &'a Found> {
    let is_it = |found: &&Found| found.uid == session.uid && last_part(&found.name) == session.name;
    node.sessions.iter().filter(is_it)
}

/// A session's title for people: generated name, user and given name.
pub(crate) fn title(name: &str, uid: u32, called: Option<&str>) -> String {
    let called = called.map_or_else(String::new, |called| format!(", called {}", Shown(called)));
    format!("{} of user {uid}{called}", Shown(name))
}

/// The names of a container: its id, and its name if known.
fn words(container: &api::Container) -> Vec<String> {
    let name = containers::name(&container.runtime, &container.id, container.user);
    [Some(container.id.clone()), name].into_iter().flatten().collect()
}

fn out_of_reach(known: &Session) -> Error {
    let place = match &known.container {
        Some(container) => format!("container {}", container.id),
        None => "another mount namespace".to_owned(),
    };
    Error::Usage(format!(
        "session {} of user {} is in {place}, where its pages are out of reach: run this command there",
        known.name, known.uid
    ))
}

/// Whether this id belongs to a living process of the session, here or in its own namespace, or to
/// the process that made the session. The session's user must run a process of that id here.
fn has_process(found: &Found, pid: u32) -> bool {
    if !may_be_of(pid, found.uid) {
        return false;
    }
    let sits = |page: &std::path::PathBuf| {
        let summary = found.open(page).and_then(|page| page.summary());
        let is =
            |process: &session::ProcessSummary| process.host_pid == Some(pid) || process.pid == pid;
        summary.is_ok_and(|summary| summary.processes.iter().any(is))
    };
    (found.owned && found.owner() == Some(pid)) || found.pages.iter().any(sits)
}

fn choose<'a, S>(
    sessions: &'a [S],
    wanted: &str,
    ways: &Ways<
        impl Fn(&S) -> String,
        impl Fn(&S) -> Option<String>,
        impl Fn(&S) -> Vec<String>,
        impl Fn(&S) -> u32,
        impl Fn(&S, u32) -> bool,
    >,
) -> Result<&'a S, Error> {
    // A path to a session's directory is accepted as its name.
    let name = directory::shown_name(Path::new(wanted));
    let wanted = if wanted.is_empty() { wanted } else { name.as_str() };
    let named = |session: &&S| {
        (ways.name)(session) == wanted
            || (ways.given)(session).is_some_and(|name| name == wanted)
            || (ways.container)(session).iter().any(|word| word == wanted)
    };
    let begins = |session: &&S| {
        (ways.name)(session).starts_with(wanted)
            || (ways.container)(session).iter().any(|word| word.starts_with(wanted))
    };
    let mut matching: Vec<&S> = Vec::new();
    // First, because any user can give a session the number of a process as its name.
    if let Some(pid) = parse_whole(wanted) {
        matching = sessions.iter().filter(|session| (ways.has_process)(session, pid)).collect();
    }
    if matching.is_empty() && !wanted.is_empty() {
        matching = sessions.iter().filter(named).collect();
    }
    if matching.is_empty() && !wanted.is_empty() {
        matching = sessions.iter().filter(begins).collect();
    }
    match matching.as_slice() {
        [session] => Ok(session),
        [] if parse_whole(wanted).is_some_and(|pid| start_time(pid).is_some()) => {
            Err(Error::Usage(format!(
                "process {wanted} is in no session that this user can change; start it with 'sluice run', or with the \
                 limiter preloaded and a limit in its environment (such a process has a session once it has used a \
                 device)"
            )))
        }
        [] => {
            let whose = if rustix::process::getuid().is_root() {
                "no such session; it may have ended"
            } else {
                "this user has no such session; it may have ended, or be another user's"
            };
            let longer = sessions.iter().filter_map(&ways.given);
            let longer = longer.filter(|name| !wanted.is_empty() && name.starts_with(wanted)).min();
            let hint = longer.map_or_else(
                || "'sluice status' lists them".to_owned(),
                |longer| format!("do you mean {longer}?"),
            );
            Err(Error::Usage(format!("'{wanted}': {whose}; {hint}")))
        }
        many => {
            let names: Vec<_> = many
                .iter()
                .map(|session| format!("{} of user {}", (ways.name)(session), (ways.uid)(session)))
                .collect();
            Err(Error::Usage(format!("'{wanted}' matches several sessions: {}", names.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use http_bidir_comm::client::{BlockingHttpClient, Endpoint};

    use super::*;
    use crate::node::Daemon;

    fn found(name: &str, uid: u32) -> Found {
        let path = Path::new("/nowhere").join(name);
        Found { uid, name: name.to_owned(), path, pages: Vec::new(), owned: true }
    }

    #[test]
    fn a_session_by_name_by_its_start_and_by_its_owner() {
        let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
        let [own, longer] = [pid, pid * 10].map(|pid| format!("{pid}-1-0123456789abcdef"));
        let sessions = vec![
            found(&own, uid),
            found(&longer, uid),
            // A name is no proof of a process.
            found(&pid.to_string(), uid + 1),
            found(&own, uid + 1),
            found("env-ab12", 7),
            found("env-ab34", 7),
            found("env-ab34", 8),
        ];
        let node = Node { sessions, daemon: None, notices: Vec::new() };
        let chosen = |wanted: &str| {
            session(&node, wanted).map(|session| (session.name.as_str(), session.uid))
        };
        assert_eq!(chosen("env-ab12").unwrap(), ("env-ab12", 7));
        assert_eq!(chosen("env-ab1").unwrap(), ("env-ab12", 7));
        assert_eq!(chosen(&pid.to_string()).unwrap(), (own.as_str(), uid));
        assert_eq!(chosen(&format!("{pid}0-")).unwrap(), (longer.as_str(), uid));
        for several in ["env", "env-ab34"] {
            let message = chosen(several).unwrap_err().to_string();
            assert!(message.contains("env-ab34 of user 8"), "{message}");
        }
        // On no machine has a process the highest number.
        let nobody = u32::MAX.to_string();
        for none in ["", "env-x", nobody.as_str()] {
            assert!(chosen(none).unwrap_err().to_string().contains("no such session"), "{none}");
        }
    }

    #[test]
    fn a_session_by_its_container() {
        let in_container = |id: u64, name: &str, container: &str| Session {
            id,
            uid: 7,
            container: Some(api::Container {
                runtime: "containerd".to_owned(),
                id: container.to_owned(),
                user: None,
            }),
            pod: None,
            name: name.to_owned(),
            called: None,
            presence: api::Presence::Active,
            state: api::SessionState::Running,
            pids: vec![4_000_000],
            devices: Vec::new(),
            memory: Vec::new(),
        };
        let sessions = vec![in_container(1, "env-1", "ab12cd"), in_container(2, "env-2", "cd34")];
        let client = BlockingHttpClient::new(Endpoint::Unix("/d".into()));
        let daemon = Some(Daemon { client, sessions, others: 0 });
        let node = Node { sessions: vec![found("env-1", 7)], daemon, notices: Vec::new() };
        // With pages here, and without.
        assert_eq!(session(&node, "ab12").unwrap().name, "env-1");
        let error = session(&node, "cd34").unwrap_err().to_string();
        assert!(error.contains("container cd34"), "{error}");
        assert!(error.ends_with("run this command there"), "{error}");
        assert_eq!(known(&node, "cd34").unwrap().id, 2);
    }
}

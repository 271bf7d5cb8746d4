//! What can be seen of the node's sessions from here: their pages, and what the daemon tells of them.

pub(crate) mod containers;
pub(crate) mod gpus;

use std::ffi::OsStr;

use api::{DeviceList, Presence, Session, SessionList};
use http_bidir_comm::client::{BlockingHttpClient, Endpoint};
use session::directory::{self, Found, Listing};

use super::daemon_link::{self, PATIENCE};
use super::{Error, remote, say};

/// What was found.
#[derive(Debug)]
pub(crate) struct Node {
    /// The sessions whose pages can be seen.
    pub(crate) sessions: Vec<Found>,
    /// What the daemon tells; `None`: there is none.
    pub(crate) daemon: Option<Daemon>,
    /// What could not be looked at, and why.
    pub(crate) notices: Vec<String>,
}

/// A daemon that has answered.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) client: BlockingHttpClient,
    pub(crate) sessions: Vec<Session>,
    /// How many sessions it knows that this user may not see.
    pub(crate) others: u64,
}

impl Daemon {
    /// What it says of the devices, if it does.
    pub(crate) fn devices(&self) -> Option<DeviceList> {
        self.client.get(api::path::DEVICES, PATIENCE).ok()
    }
}

impl Node {
    /// Looks at the pages, and asks the daemon that the option or the variable names, or the first default one that
    /// answers. What cannot be looked at is said.
    pub(crate) fn look(option: Option<&OsStr>) -> Result<Self, Error> {
        let mut node = Self::read(option)?;
        node.notices.drain(..).for_each(|notice| say(&notice));
        Ok(node)
    }

    /// The same, without a word. Where variables name a daemon by TCP, it is that daemon's node.
    pub(crate) fn read(option: Option<&OsStr>) -> Result<Self, Error> {
        match remote::client(option)? {
            Some(client) => Self::elsewhere_by(client),
            None => Self::here(option),
        }
    }

    /// This machine's.
    pub(crate) fn here(option: Option<&OsStr>) -> Result<Self, Error> {
        let Listing { sessions, left_out: mut notices } = directory::list()?;
        let daemon = ask(option, &mut notices)?;
        Ok(Self { sessions, daemon, notices })
    }

    /// What a daemon tells that is reached by TCP. It may be another machine's: no page here counts.
    fn elsewhere_by(client: BlockingHttpClient) -> Result<Self, Error> {
        let list = client.get::<SessionList>(api::path::SESSIONS, PATIENCE);
        let list = list.map_err(|error| Error::Daemon(remote::told(&error)))?;
        let daemon = Daemon { client, sessions: list.sessions, others: list.others };
        Ok(Self { sessions: Vec::new(), daemon: Some(daemon), notices: Vec::new() })
    }

    /// Whether it is this machine for certain.
    pub(crate) fn is_here(&self) -> bool {
        let by_socket = |daemon: &Daemon| matches!(daemon.client.endpoint(), Endpoint::Unix(_));
        self.daemon.as_ref().is_none_or(by_socket)
    }

    /// What the daemon knows of a session whose pages can be seen. The session's processes tell the daemon the last
    /// part of its name. One in a container may have given itself the same name.
    pub(crate) fn known(&self, found: &Found) -> Option<&Session> {
        let name = last_part(&found.name);
        let known = self.daemon.iter().flat_map(|daemon| &daemon.sessions);
        let mut same = known.filter(|session| session.uid == found.uid && session.name == name);
        let first = same.next()?;
        if first.container.is_none() {
            return Some(first);
        }
        same.find(|session| session.container.is_none()).or(Some(first))
    }

    /// The sessions that only the daemon knows; without those that have no process unless `all`.
    pub(crate) fn elsewhere(&self, all: bool) -> impl Iterator<Item = &Session> {
        let seen: Vec<u64> =
            self.sessions.iter().filter_map(|found| Some(self.known(found)?.id)).collect();
        let known = self.daemon.iter().flat_map(|daemon| &daemon.sessions);
        known.filter(move |session| {
            !seen.contains(&session.id) && (all || session.presence == Presence::Active)
        })
    }
}

/// The name by which a session's processes register.
pub(crate) fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn ask(option: Option<&OsStr>, notices: &mut Vec<String>) -> Result<Option<Daemon>, Error> {
    let variable = std::env::var_os(limits::env::DAEMON_SOCKET);
    let defaults = protocol::socket::default_sockets();
    let choice = daemon_link::choose(option, variable.as_deref(), &defaults)?;
    let pages_only = choice.notice.map(|notice| {
        let told = notice.replace(daemon_link::OWN_ACCOUNT, "");
        // The one that was asked for, and no other source.
        match choice.socket.is_none() && option.is_some() {
            true => {
                Err(Error::Daemon(told + "; expected the socket of a running daemon, or 'none'"))
            }
            false => Ok(told + ": showing the pages only"),
        }
    });
    notices.extend(pages_only.transpose()?);
    let Some(socket) = choice.socket else { return Ok(None) };
    let client = BlockingHttpClient::new(Endpoint::Unix(socket.clone()));
    match client.get::<SessionList>(api::path::SESSIONS, PATIENCE) {
        Ok(SessionList { sessions, others }) => Ok(Some(Daemon { client, sessions, others })),
        Err(error) => {
            notices.push(format!(
                "the daemon at {} cannot list sessions: {error}; showing the pages only",
                socket.display()
            ));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_session_is_known_by_user_and_name_and_one_outside_of_containers_comes_first() {
        let session = |id, uid, name: &str, container: Option<&str>| Session {
            id,
            uid,
            container: container.map(|id| api::Container {
                runtime: "docker".to_owned(),
                id: id.to_owned(),
                user: None,
            }),
            pod: None,
            name: name.to_owned(),
            called: None,
            presence: if id == 5 { Presence::Left } else { Presence::Active },
            state: api::SessionState::Running,
            pids: Vec::new(),
            devices: Vec::new(),
            memory: Vec::new(),
        };
        let found = |name: &str| Found {
            uid: 7,
            name: name.to_owned(),
            path: PathBuf::from("/nowhere"),
            pages: Vec::new(),
            owned: false,
        };
        let sessions = vec![
            session(1, 7, "a", Some("c1")),
            session(2, 7, "a", None),
            session(3, 8, "b", None),
            session(4, 7, "c", Some("c1")),
            session(5, 7, "d", None),
        ];
        let daemon = Daemon {
            client: BlockingHttpClient::new(Endpoint::Unix("/nowhere".into())),
            sessions,
            others: 0,
        };
        let node =
            Node { sessions: vec![found("demo/a")], daemon: Some(daemon), notices: Vec::new() };
        let known = |name: &str| node.known(&found(name)).map(|session| session.id);
        assert_eq!((known("demo/a"), known("b"), known("c")), (Some(2), None, Some(4)));
        let elsewhere = |all| node.elsewhere(all).map(|session| session.id).collect::<Vec<_>>();
        assert_eq!((elsewhere(false), elsewhere(true)), (vec![1, 3, 4], vec![1, 3, 4, 5]));
    }
}

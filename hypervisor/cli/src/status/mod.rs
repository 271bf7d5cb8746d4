//! `sluice status`

mod detail;
mod devices;
mod fit;
mod report;
mod table;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::thread::sleep;

use ::limits::Shown;
use protocol::sessions::StatusReport;
use session::{Names, Page, ProcessSummary, Summary, clock};

use super::choice::{self, Reached};
use super::cli::StatusArgs;
use super::node::Node;
use super::node::gpus::Gpus;
use super::shares::Shares;
use super::{Error, print};
use detail::Detail;

pub(crate) use detail::{compute_limit, named, sharing_words};
pub(crate) use devices::{blind, trouble};
pub(crate) use report::report;
pub(crate) use report::{device as page_device, known_compute_on};
pub(crate) use table::{Bytes, Limit, Percent, Seconds, limit};

/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Lists the sessions, once or again and again.
///
/// # Errors
/// [`Error::Directory`] if this user's sessions cannot be read.
pub fn run(arguments: &StatusArgs) -> Result<u8, Error> {
    let gpus = Gpus::default();
    let clear = arguments.watch.is_some() && !arguments.json && io::stdout().is_terminal();
    loop {
        let text = match &arguments.page {
            Some(path) => page(path, arguments.json)?,
            None => list(arguments, &gpus)?,
        };
        let shown = if clear { format!("{CLEAR}{text}") } else { text };
        match arguments.watch {
            Some(pause) if print(&shown)? => sleep(pause),
            Some(_) => return Ok(0),
            None => return print(&shown).map(|_| 0),
        }
    }
}

fn list(arguments: &StatusArgs, gpus: &Gpus) -> Result<String, Error> {
    let mut node = Node::look(arguments.daemon.as_deref())?;
    let shares = Shares::of(&node, gpus);
    if let Some(wanted) = &arguments.session {
        let (sessions, known) = match choice::anywhere(&node, wanted)? {
            Reached::Pages(found) => (vec![found.clone()], node.known(found).cloned()),
            Reached::Daemon(known) => (Vec::new(), Some(known.clone())),
        };
        node.sessions = sessions;
        if let Some(daemon) = &mut node.daemon {
            daemon.sessions = known.into_iter().collect();
        }
    }
    let all = arguments.all || arguments.session.is_some();
    let mut report = report(&node, gpus, all, arguments.json);
    if arguments.json {
        report.gpus = devices::gpus(&node);
        report.overcommitted = shares.all_overcommitted();
        return json(&report);
    }
    let shares: String = shares.lines().map(|line| line + "\n").collect();
    let text = match &arguments.session {
        Some(_) if !report.sessions.is_empty() => Detail(&report).to_string(),
        _ => {
            let troubles = devices::troubles(&node);
            let troubles: String = troubles.into_iter().map(|line| line + "\n").collect();
            table(&report, &node) + &troubles
        }
    };
    Ok(text + &shares)
}

fn table(report: &StatusReport, node: &Node) -> String {
    let mut text = table::table(report, terminal_width());
    for damaged in &report.damaged {
        text += &format!("DAMAGED {}: {}\n", Shown(&damaged.session), Shown(&damaged.problem));
    }
    let others = node.daemon.as_ref().map_or(0, |daemon| daemon.others);
    if others > 0 {
        text += &format!("and {others} of other users\n");
    }
    text
}

/// How wide a line on stdout may be. `None`: it is no terminal, or does not say.
fn terminal_width() -> Option<usize> {
    let stdout = io::stdout();
    let size = stdout.is_terminal().then(|| rustix::termios::tcgetwinsize(&stdout).ok())??;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// One page, whatever session it belongs to, with all processes that it names. In a copy none of them is seen.
fn page(path: &Path, as_json: bool) -> Result<String, Error> {
    let page = Page::open_any(path)?;
    let living = page.summary()?;
    let written = Summary::of(page.look()?);
    let is_seen = |process: &ProcessSummary| {
        living.processes.iter().any(|seen| (seen.slot, seen.pid) == (process.slot, process.pid))
    };
    let unseen: Vec<u32> = written
        .processes
        .iter()
        .filter(|process| !is_seen(process))
        .map(|process| process.pid)
        .collect();
    let uid = report::owner(path);
    let found = (page.device(), written);
    let mut device = report::device(&found, &mut Names::default(), uid, None, clock::now_ns());
    device.unknown = living.unknown;
    if as_json {
        device.unknown += unseen.len();
        return json(&device);
    }
    let mut text = format!("{} of user {uid}\n", Shown(&page.path().display().to_string()));
    text += &Detail(&device).to_string();
    if !unseen.is_empty() {
        let pids: Vec<_> = unseen.iter().map(ToString::to_string).collect();
        text += &format!(
            "    listed by the page, but not alive on this node (or the page is a copy): {}\n",
            pids.join(", ")
        );
    }
    Ok(text)
}

/// One document, in one line.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<String, Error> {
    let text = serde_json::to_string(value);
    Ok(text.map_err(|e| Error::system("cannot write JSON", io::Error::other(e)))? + "\n")
}

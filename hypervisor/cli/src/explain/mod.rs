//! `sluice explain`: why a session or a process waits or was refused, and what would change it.

mod process;
mod reasons;

use std::fmt::Write as _;
use std::io::{self, Write};

use ::limits::Shown;
use ::limits::units::parse_whole;
use api::{Device, Session, SessionState};
use protocol::reports::{ExplainReport, ExplainedDevice, ExplainedProcess, ReasonWord};
use session::directory::Found;
use session::process::start_time;
use session::{Names, SessionSummary, clock};

use super::cli::ExplainArgs;
use super::node::Node;
use super::node::gpus::Gpus;
use super::shares::Shares;
use super::status::{json, known_compute_on, page_device};
use super::{Error, ExitStatus, choice};
use reasons::{Known, reasons};

/// Explains.
///
/// # Errors
/// [`Error::Usage`] for what is no session and no process.
pub(crate) fn run(arguments: &ExplainArgs) -> Result<u8, Error> {
    let node = Node::look(arguments.daemon.as_deref())?;
    let is_process = |&pid: &u32| node.is_here() && start_time(pid).is_some();
    let pid = parse_whole(&arguments.session).filter(is_process);
    let process = pid.map(process::look);
    let found = choice::session(&node, &arguments.session);
    let called = match (&found, choice::known(&node, &arguments.session)) {
        (Ok(found), _) => choice::given_name(found),
        (Err(_), Ok(known)) => choice::called(&node, known),
        (Err(_), Err(_)) => None,
    };
    let shares = Shares::of(&node, &Gpus::default());
    let report = match (found, choice::known(&node, &arguments.session), process) {
        (Ok(found), _, process) => of_session(&node, found, process, &shares),
        (Err(_), Ok(known), process) => elsewhere(&node, known, process, &shares),
        (Err(_), Err(_), Some(process)) => ExplainReport {
            reasons: process::outside_of_sessions(&process),
            process: Some(process),
            session: None,
            uid: None,
            devices: Vec::new(),
        },
        (Err(error), Err(_), None) => return Err(error),
    };
    let text = if arguments.json { json(&report)? } else { told(&report, called.as_deref()) };
    let _ = io::stdout().lock().write_all(text.as_bytes());
    let is_free = |code| matches!(code, ReasonWord::Free | ReasonWord::NotUsedYet);
    let is_free = report.reasons.iter().all(|reason| is_free(reason.code));
    Ok(if is_free { 0 } else { ExitStatus::CheckFailed as u8 })
}

fn of_session(
    node: &Node,
    found: &Found,
    process: Option<ExplainedProcess>,
    shares: &Shares,
) -> ExplainReport {
    let known = node.known(found);
    let (asking, mut names, now) = (asking(node), Names::default(), clock::now_ns());
    let device = |one: &(limits::GpuId, session::Summary)| {
        let (uuid, summary) = one;
        let report = page_device(one, &mut names, found.uid, None, now);
        let accounts = known.iter().flat_map(|known| &known.devices);
        let account = accounts.into_iter().find(|account| account.uuid.parse() == Ok(*uuid));
        let asks = account.is_some_and(|account| account.asks);
        let in_page = report.processes.iter().filter(|process| process.waiting).count();
        ExplainedDevice {
            uuid: *uuid,
            used: report.memory.used,
            limit: report.memory.limit,
            refusals: summary.refused.map_or(0, |refused| refused.count),
            refused_bytes: summary.refused.map(|refused| refused.bytes),
            refused_ago_us: summary.refused.map(|refused| now.saturating_sub(refused.at_ns) / 1000),
            waiting: in_page.max(usize::from(asks)),
            holding: report.processes.iter().filter(|process| process.holding).count(),
            compute: report.compute,
            balance_us: account.map(|account| account.balance_us),
            others_asking: others(&asking, *uuid, asks),
        }
    };
    let summary = SessionSummary::of(found);
    let used = summary.devices.iter().filter(|(_, device)| device.was_used);
    let devices: Vec<ExplainedDevice> = used.map(device).collect();
    let label = found.settings().and_then(|settings| settings.name);
    let known = Known {
        name: label.as_deref().unwrap_or(&found.name),
        process: process.as_ref(),
        frozen: known.is_some_and(|known| known.state == SessionState::Frozen),
        has_daemon: node.daemon.is_some(),
        devices: &devices,
        shares,
    };
    ExplainReport {
        reasons: reasons(&known),
        process,
        session: Some(found.name.clone()),
        uid: Some(found.uid),
        devices,
    }
}

/// A session whose pages cannot be seen: as the daemon knows it.
fn elsewhere(
    node: &Node,
    known: &Session,
    process: Option<ExplainedProcess>,
    shares: &Shares,
) -> ExplainReport {
    let asking = asking(node);
    let device = |name: &str| {
        let uuid = name.parse().ok()?;
        let account = known.devices.iter().find(|account| account.uuid == name);
        let memory = known.memory_on(name);
        let asks = account.is_some_and(|account| account.asks);
        Some(ExplainedDevice {
            uuid,
            used: memory.map_or(0, |memory| memory.used_bytes),
            limit: memory.and_then(|memory| memory.limit_bytes),
            refusals: memory.map_or(0, |memory| memory.refusals),
            refused_bytes: None,
            refused_ago_us: None,
            waiting: usize::from(asks),
            holding: 0,
            compute: known_compute_on(known, name),
            balance_us: account.map(|account| account.balance_us),
            others_asking: others(&asking, uuid, asks),
        })
    };
    let devices: Vec<ExplainedDevice> = known.uuids().into_iter().filter_map(device).collect();
    let called = choice::called(node, known);
    let reasons = reasons(&Known {
        name: called.as_deref().unwrap_or(&known.name),
        process: process.as_ref(),
        frozen: known.state == SessionState::Frozen,
        has_daemon: true,
        devices: &devices,
        shares,
    });
    let (session, uid) = (Some(known.name.clone()), Some(known.uid));
    ExplainReport { reasons, process, session, uid, devices }
}

/// The devices, with how many sessions ask for each.
fn asking(node: &Node) -> Vec<Device> {
    let Some(daemon) = &node.daemon else { return Vec::new() };
    daemon.devices().map_or_else(Vec::new, |list| list.devices)
}

/// The sessions that ask for a device beside one that does or does not.
fn others(asking: &[Device], uuid: limits::GpuId, asks: bool) -> Option<u64> {
    let device = asking.iter().find(|device| device.uuid.parse() == Ok(uuid))?;
    Some((device.own.asking + device.others.asking).saturating_sub(u64::from(asks)))
}

fn told(report: &ExplainReport, called: Option<&str>) -> String {
    let mut text = String::new();
    if let (Some(session), Some(uid)) = (&report.session, report.uid) {
        let _ = writeln!(text, "session {}", choice::title(session, uid, called));
    }
    if let Some(process) = &report.process {
        let name = process.name.as_deref().unwrap_or("?");
        let _ = writeln!(text, "process {} ({})", process.pid, Shown(name));
    }
    for reason in &report.reasons {
        let _ = writeln!(text, "* {}", Shown(&reason.text));
        if let Some(remedy) = &reason.remedy {
            let _ = writeln!(text, "  -> {}", Shown(remedy));
        }
    }
    text
}

//! `sluice limit`

mod by_daemon;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ::limits::gpu::GpuChoice;
use ::limits::{GpuId, Limits, Request, RequestError};
use protocol::reports::{ChangedDevice, LimitReport, TookChange};
use session::Page;
use session::directory::Found;
use session::taken::{Changed, Took, wait_until_taken};

use super::choice::Reached;
use super::cli::LimitArguments;
use super::devices::{self, VisibleGpu};
use super::node::Node;
use super::node::gpus::Gpus;
use super::shares::Shares;
use super::status::{Bytes, Limit, json};
use super::{Error, choice, limits, remote, say};

/// How long other changes of the same limits are waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait until the session's processes have taken a change. They do so within a few milliseconds.
const TAKEN_WITHIN: Duration = Duration::from_millis(500);

/// Changes the limits of a session on all of its devices. If one of them cannot be changed, none
/// is.
///
/// # Errors
/// [`Error::Usage`] for an unknown session or impossible limits; [`Error::Page`] for a damaged
/// page; others from the system.
pub fn run(arguments: &LimitArguments) -> Result<u8, Error> {
    let tell = |text: &str| {
        // The change is made, even if it cannot be printed.
        if !arguments.json {
            let _ = io::stdout().lock().write_all(text.as_bytes());
        }
    };
    remote::check_may_change(arguments.daemon.as_deref())?;
    let node = Node::read(arguments.daemon.as_deref())?;
    if let Ok(Reached::Daemon(known)) = choice::anywhere(&node, &arguments.session) {
        request_of(arguments)?;
        node.notices.iter().for_each(|line| say(line));
        let code = by_daemon::change(&node, known, arguments, &Gpus::default())?;
        tell_of_shares(arguments);
        return Ok(code);
    }
    let (report, took) = change(arguments, tell, say)?;
    if arguments.json {
        let _ = io::stdout().lock().write_all(json(&report)?.as_bytes());
    } else {
        who_has_not(&took).iter().for_each(|line| say(line));
    }
    tell_of_shares(arguments);
    Ok(0)
}

/// Says where the shares are more than a GPU has, if a share was changed.
fn tell_of_shares(arguments: &LimitArguments) {
    if arguments.limits.compute.is_some() {
        Shares::now(Node::read(arguments.daemon.as_deref())).lines().for_each(|line| say(&line));
    }
}

/// Changes the limits. Gives the change to `tell` as soon as it is made, what else people should know to `notice`,
/// and returns who has taken it.
pub(crate) fn change(
    arguments: &LimitArguments,
    tell: impl FnOnce(&str),
    mut notice: impl FnMut(&str),
) -> Result<(LimitReport, Vec<Vec<Took>>), Error> {
    let request = request_of(arguments)?;
    remote::check_may_change(arguments.daemon.as_deref())?;
    let (node, gpus) = (Node::read(arguments.daemon.as_deref())?, Gpus::default());
    node.notices.iter().for_each(|text| notice(text));
    let session = choice::session(&node, &arguments.session)?;
    let devices = gpus.of(session);
    let (mut changes, mut locks) = (Vec::new(), Vec::new());
    let until = Instant::now() + PATIENCE;
    for page in chosen_pages(session, arguments.device.as_deref(), devices)? {
        // Until all pages are changed.
        let lock = page.lock_limits(until);
        if lock.is_none() {
            notice(&format!(
                "{}: another process has held the lock on the limits for {} s; changing them without it",
                page.device(),
                PATIENCE.as_secs()
            ));
        }
        let (before, uuid) = (page.look()?.limits(), page.device());
        let device = devices.iter().find(|device| device.uuid == uuid);
        let name = device.map_or_else(|| uuid.to_string(), VisibleGpu::title);
        let after = limits::change(&request, &before, device, &name)
            .map_err(|error| refused(uuid, error))?;
        changes.push((page, before, after));
        locks.push(lock);
    }
    let called = choice::given_name(session);
    let mut text = choice::title(&session.name, session.uid, called.as_deref()) + "\n";
    let mut report = LimitReport {
        session: session.name.clone(),
        uid: session.uid,
        taken_by_all: false,
        devices: Vec::new(),
    };
    for (page, before, after) in &changes {
        let used = page.summary()?.total();
        text += &told(page.device(), before, after, used);
        report.devices.push(changed_device(page.device(), before, after, used));
    }
    let change =
        |(page, _, after): (Page, Limits, Limits)| Changed::make(page, &after).map_err(Error::from);
    let changed: Result<Vec<Changed>, _> = changes.into_iter().map(change).collect();
    tell(&text);
    let took = wait_until_taken(&changed?, Instant::now() + TAKEN_WITHIN)?;
    note(&mut report, &took);
    Ok((report, took))
}

/// What is to be changed.
fn request_of(arguments: &LimitArguments) -> Result<Request, Error> {
    let request = arguments.request();
    if request.is_empty() {
        return Err(Error::Usage(
            "nothing to change; expected at least one of --mem, --mem-real, --no-mem, --compute, --policy, --burst, \
             --weight and --priority"
                .to_owned(),
        ));
    }
    Ok(request)
}

fn changed_device(uuid: GpuId, before: &Limits, after: &Limits, used: u64) -> ChangedDevice {
    ChangedDevice { uuid, before: before.into(), after: after.into(), used, processes: Vec::new() }
}

/// Notes who has taken the change of each device.
fn note(report: &mut LimitReport, took: &[Vec<Took>]) {
    for (device, took) in report.devices.iter_mut().zip(took) {
        let process = |took: &Took| TookChange {
            pid: took.process.pid,
            host_pid: took.process.host_pid,
            taken: took.taken,
        };
        device.processes = took.iter().map(process).collect();
    }
    report.taken_by_all = took.iter().flatten().all(|took| took.taken);
}

/// Names the processes that have not taken a change. They are stopped, or use an earlier library, which does not say
/// that it has.
pub(crate) fn who_has_not(took: &[Vec<Took>]) -> Option<String> {
    let late = took.iter().flatten().filter(|took| !took.taken);
    let late: BTreeSet<u32> = late.map(|took| took.process.pid).collect();
    say_late(&late)
}

fn say_late(late: &BTreeSet<u32>) -> Option<String> {
    let pids: Vec<_> = late.iter().map(u32::to_string).collect();
    (!pids.is_empty()).then(|| {
        format!(
            "the limits are changed, but after {} ms these processes have not confirmed them: {}",
            TAKEN_WITHIN.as_millis(),
            pids.join(", ")
        )
    })
}

/// The pages to change. A session that was started without a limit and has used no device gets its pages now.
fn chosen_pages(
    session: &Found,
    device: Option<&str>,
    known: &[VisibleGpu],
) -> Result<Vec<Page>, Error> {
    let open = |path: &PathBuf| session.open(path).map_err(Error::from);
    if session.pages.is_empty() {
        let own = session.uid == rustix::process::geteuid().as_raw();
        let allowed = session.settings().and_then(|settings| settings.devices);
        let allows = |uuid: GpuId| allowed.as_ref().is_none_or(|allowed| allowed.contains(&uuid));
        let all: Vec<VisibleGpu> =
            known.iter().filter(|device| own && allows(device.uuid)).cloned().collect();
        if all.is_empty() {
            return Err(Error::Usage(format!(
                "session {} has used no device yet, so there is nothing to change; only its own user can limit it, on \
                 the devices that NVML lists",
                session.name
            )));
        }
        let wanted: Vec<String> = device.into_iter().map(ToOwned::to_owned).collect();
        let make = |device: &VisibleGpu| Page::open(&session.path, device.uuid, &Limits::NONE);
        let chosen = devices::select(&all, &wanted, devices::OPTION)?;
        return chosen.iter().map(|device| make(device).map_err(Error::from)).collect();
    }
    let Some(wanted) = device else { return session.pages.iter().map(open).collect() };
    // Found by their names, so that a damaged page does not stop the change of another.
    let used: Vec<(&PathBuf, GpuId)> = session
        .pages
        .iter()
        .filter_map(|path| Some((path, path.file_stem()?.to_str()?.parse().ok()?)))
        .collect();
    let choice = match wanted.parse() {
        Ok(GpuChoice::Index(_)) => {
            if known.is_empty() {
                return Err(Error::NoDevice);
            }
            let selected = devices::select(known, &[wanted.to_owned()], devices::OPTION)?;
            selected.first().map(|device| GpuChoice::from(device.uuid))
        }
        other => other.ok(),
    };
    let mut meant =
        used.iter().filter(|(_, id)| choice.as_ref().is_some_and(|choice| choice.fits(None, id)));
    if let (Some((page, _)), None) = (meant.next(), meant.next()) {
        return Ok(vec![open(page)?]);
    }
    let used: Vec<_> = used.iter().map(|(_, id)| id.to_string()).collect();
    Err(Error::Usage(format!(
        "--device '{wanted}' does not name exactly one device that session {} has used; expected one of {}",
        session.name,
        used.join(", ")
    )))
}

/// The error for limits that cannot be changed in this way.
fn refused(device: GpuId, error: RequestError) -> Error {
    match error {
        RequestError::NeedsShare { .. } => {
            Error::Usage(format!("{device}: the session has no compute limit: {error}"))
        }
        RequestError::RealWithoutLimit { .. } => Error::Usage(format!("{device}: {error}")),
        other => other.into(),
    }
}

/// The limits before and after the change, and what it means for what is in use.
fn told(device: GpuId, before: &Limits, after: &Limits, used: u64) -> String {
    let mut lines = String::new();
    let mut line = |text: String| lines += &format!("{device}: {text}\n");
    let no_limit = || "no limit".to_owned();
    let memory =
        [before, after].map(|limits| limits.memory.map_or_else(no_limit, |l| Limit(l).to_string()));
    let compute = [before, after].map(|limits| limits.compute.to_string());
    for (what, [was, is]) in [("memory", memory), ("compute", compute)] {
        if was != is {
            line(format!("{what} was {was}, is now {is}"));
        }
    }
    if before == after {
        line("unchanged".to_owned());
    }
    if let Some(memory) = after.memory
        && used > memory.limit
    {
        line(format!(
            "{} is in use: allocations fail until {} is freed",
            Bytes(used),
            Bytes(used - memory.limit)
        ));
    }
    lines
}

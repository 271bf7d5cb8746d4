//! `sluice limit`

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::limits::gpu::GpuChoice;
use ::limits::units::{Size, parse_whole};
use ::limits::{GpuId, Limits, RequestError, Shown};
use session::Page;
use session::directory::{self, Found};
use session::process::{may_be_of, start_time};

use super::cli::LimitArguments;
use super::devices::{self, VisibleGpu};
use super::parts::{self, Parts};
use super::{Error, limits, say};

/// How long other changes of the same limits are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Changes the limits of a session on all of its devices. If one of them cannot be changed, none
/// is.
///
/// # Errors
/// [`Error::Usage`] for an unknown session or impossible limits; [`Error::Page`] for a damaged
/// page; others from the system.
pub fn run(arguments: &LimitArguments) -> Result<u8, Error> {
    let request = arguments.request();
    if request.is_empty() {
        return Err(Error::Usage(
            "nothing to change: name at least one of --mem, --mem-real, --no-mem, --compute, \
             --policy, --soft, --weight and --priority"
                .to_owned(),
        ));
    }
    let listing = directory::list()?;
    listing.left_out.iter().for_each(|left_out| say(left_out));
    let session = choose(&listing.sessions, &arguments.session)?;
    let devices = known_devices(session);
    let mut changes = Vec::new();
    let until = Instant::now() + PATIENCE;
    for page in chosen_pages(session, arguments.device.as_deref(), devices.as_deref())? {
        // Until all pages are changed.
        if !page.lock_limits(until) {
            say(&format!(
                "{}: another process has been changing the limits for {} s; not waiting for it",
                page.device(),
                PATIENCE.as_secs()
            ));
        }
        let (before, uuid) = (page.look()?.limits(), page.device());
        let device = devices.iter().flatten().find(|device| device.uuid == uuid);
        let name = device.map_or_else(|| uuid.to_string(), VisibleGpu::title);
        let after = limits::change(&request, &before, device, &name)
            .map_err(|error| refused(uuid, error))?;
        changes.push((page, before, after));
    }
    let mut text = format!("{} of user {}\n", Shown(&session.name), session.uid);
    for (page, before, after) in &changes {
        page.change_limits(after)?;
        text += &told(page.device(), before, after, page.summary()?.total());
    }
    // The change is made, even if it cannot be printed.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    Ok(0)
}

/// The session that is meant by a name, the beginning of a name, or a process id.
fn choose<'a>(sessions: &'a [Found], wanted: &str) -> Result<&'a Found, Error> {
    // The name of its directory is taken for its name.
    let name = directory::shown_name(Path::new(wanted));
    let wanted = if wanted.is_empty() { wanted } else { name.as_str() };
    let named = |session: &&Found| session.name == wanted;
    let begins = |session: &&Found| session.name.starts_with(wanted);
    let mut matching: Vec<&Found> = Vec::new();
    // First, because any user can give a session the number of a process as its name.
    if let Some(pid) = parse_whole(wanted) {
        matching = sessions.iter().filter(|session| has_process(session, pid)).collect();
    }
    if matching.is_empty() {
        matching = sessions.iter().filter(named).collect();
    }
    if matching.is_empty() && !wanted.is_empty() {
        matching = sessions.iter().filter(begins).collect();
    }
    match matching.as_slice() {
        [session] => Ok(session),
        [] if parse_whole(wanted).is_some_and(|pid| start_time(pid).is_some()) => {
            Err(Error::Usage(format!(
                "process {wanted} is in no session that this user can change: what can be limited is \
                 what 'sluice run' starts, and what is started with the limiter preloaded and a \
                 limit in its environment, once it has used a device"
            )))
        }
        [] => {
            let whose = if rustix::process::getuid().is_root() {
                "there is no such session"
            } else {
                "this user has no such session, and only root can change other users'"
            };
            Err(Error::Usage(format!("'{wanted}': {whose}; 'sluice status' lists them")))
        }
        many => {
            let names: Vec<_> = many
                .iter()
                .map(|session| format!("{} of user {}", session.name, session.uid))
                .collect();
            Err(Error::Usage(format!("'{wanted}' fits several sessions: {}", names.join(", "))))
        }
    }
}

/// Whether this id belongs to a living process of the session, here or in its own namespace, or to
/// the process that made the session. The session's user must run a process of that id here.
fn has_process(found: &Found, pid: u32) -> bool {
    if !may_be_of(pid, found.uid) {
        return false;
    }
    let sits = |page: &PathBuf| {
        let summary = found.open(page).and_then(|page| page.summary());
        let is =
            |process: &session::ProcessSummary| process.host_pid == Some(pid) || process.pid == pid;
        summary.is_ok_and(|summary| summary.processes.iter().any(is))
    };
    (found.owned && found.owner() == Some(pid)) || found.pages.iter().any(sits)
}

/// The devices as NVML lists them, if it can. A session on the simulated driver has its own NVML.
/// What a user's directory holds only says so: the library that is loaded is always that of this
/// installation.
fn known_devices(session: &Found) -> Option<Vec<VisibleGpu>> {
    // A session inside another one's directory shares that one's driver.
    let own = |folder: &Path| folder.join("fake-driver").join(parts::FAKE_NVML.1);
    let is_simulated =
        session.path.ancestors().take(2).any(|path| own(path).symlink_metadata().is_ok());
    let simulated = is_simulated
        .then(|| Parts::locate(None).and_then(|parts| parts.find(parts::FAKE_NVML.0)))
        .transpose()
        .ok()?;
    devices::list(simulated.as_deref()).ok()
}

/// The pages to change.
fn chosen_pages(
    session: &Found,
    device: Option<&str>,
    known: Option<&[VisibleGpu]>,
) -> Result<Vec<Page>, Error> {
    if session.pages.is_empty() {
        return Err(Error::Usage(format!(
            "session {} has used no device yet: there is nothing to change; 'sluice run' with \
             --mem or --compute limits a program from its start",
            session.name
        )));
    }
    let open = |path: &PathBuf| session.open(path).map_err(Error::from);
    let Some(wanted) = device else { return session.pages.iter().map(open).collect() };
    // Found by their names, so that a damaged page does not stop the change of another.
    let used: Vec<(&PathBuf, GpuId)> = session
        .pages
        .iter()
        .filter_map(|path| Some((path, path.file_stem()?.to_str()?.parse().ok()?)))
        .collect();
    let choice = match wanted.parse() {
        Ok(GpuChoice::Index(_)) => {
            let known = known.ok_or(Error::NoDevice)?;
            let selected = devices::select(known, &[wanted.to_owned()])?;
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
        "--device '{wanted}' is not one device that session {} has used: these are {}",
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
        [before, after].map(|limits| limits.memory.map_or_else(no_limit, |l| l.to_string()));
    let compute = [before, after].map(|limits| limits.compute.to_string());
    for (what, [was, is]) in [("memory", memory), ("compute", compute)] {
        if was != is {
            line(format!("{what} was {was}, is now {is}"));
        }
    }
    if before == after {
        line("stays as it was".to_owned());
    }
    if let Some(memory) = after.memory
        && used > memory.limit
    {
        line(format!(
            "{} is in use: growth is refused until {} of it is given back",
            Size(used),
            Size(used - memory.limit)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, uid: u32) -> Found {
        let path = Path::new("/nowhere").join(name);
        Found { uid, name: name.to_owned(), path, pages: Vec::new(), owned: true }
    }

    #[test]
    fn a_session_by_name_by_its_start_and_by_its_owner() {
        let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
        let [own, longer] = [pid, pid * 10].map(|pid| format!("{pid}-1-0123456789abcdef"));
        let sessions = [
            found(&own, uid),
            found(&longer, uid),
            // A name is no proof of a process.
            found(&pid.to_string(), uid + 1),
            found(&own, uid + 1),
            found("env-ab12", 7),
            found("env-ab34", 7),
            found("env-ab34", 8),
        ];
        let chosen = |wanted: &str| {
            choose(&sessions, wanted).map(|session| (session.name.as_str(), session.uid))
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
}

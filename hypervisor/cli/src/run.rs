//! `sluice run`

use std::env::{var_os, vars_os};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ::limits::{Request, env};
use protocol::socket::default_sockets;
use session::allocation;
use session::directory::{self, Found, OwnedSession, told};

use super::cli::RunArgs;
use super::environment::MemberEnvironment;
use super::gpus::GpuRequest;
use super::owner::Label;
use super::parts::{self, Parts};
use super::{
    Error, child, choice, daemon_link, devices, environment, limits, links, profiles, reach, say,
    summary,
};
use crate::node::Node;
use crate::shares::Shares;

/// Runs the program and returns its exit status; ends by the signal that killed the program.
///
/// # Errors
/// [`Error`] if the program was not run.
pub fn run(arguments: &RunArgs) -> Result<u8, Error> {
    if allocation::is_here() {
        return Err(Error::Usage(format!(
            "the node has set this container's limits ({}), and they hold for every program in it; start the program \
             without 'sluice run'",
            allocation::FOLDER
        )));
    }
    let mut command = program(arguments)?;
    if let Some(session) = directory::inside()? {
        return Err(within_session(arguments, &session, command));
    }
    let arguments = &profiles::applied(arguments)?;
    let parts = Parts::locate(var_os(parts::LIBRARY).map(PathBuf::from))?;
    let limiter = parts.limiter()?;
    let request = arguments.limits.request();
    let devices = chosen_devices(arguments, &request, &parts)?;
    let daemon = daemon_link::choose(
        arguments.daemon.as_deref(),
        var_os(env::DAEMON_SOCKET).as_deref(),
        &default_sockets(),
    )?;
    if let Some(name) = &arguments.name {
        check_is_free(name)?;
    }
    if let Some(share) = &arguments.limits.compute {
        let socket = daemon.socket.as_deref().map_or(OsStr::new("none"), Path::as_os_str);
        let mut shares = Shares::now(Node::here(Some(socket)));
        devices.iter().for_each(|gpu| shares.add(gpu.uuid, (*share).into(), || Some(gpu.index)));
        devices.iter().filter_map(|gpu| shares.line(gpu.uuid)).for_each(|line| say(&line));
    }
    let session = OwnedSession::create()?;
    if let Some(notice) = session.elsewhere() {
        say(notice);
    }
    let environment = MemberEnvironment {
        session: session.path().to_owned(),
        label: label(arguments),
        limiter: links::preloadable(&session, session.path(), &limiter)?,
        fake_driver: arguments
            .fake_gpu
            .then(|| links::fake_driver(&session, &parts))
            .transpose()?,
        request,
        devices,
        only_these: is_a_choice(arguments),
        daemon: daemon.socket,
        no_other_daemon: arguments.daemon.is_some(),
    };
    if let Some(notice) = daemon.notice {
        say(&notice);
    }
    if environment.request.needs_daemon() && environment.daemon.is_none() {
        say("no daemon is running to give out idle time: this session gets no more than its share");
    }
    environment.decide(vars_os(), || {
        let fake = environment.fake_driver.as_ref().map(|folder| folder.join(parts::FAKE_NVML.1));
        devices::list(fake.as_deref()).unwrap_or_default()
    })?;
    environment.apply(&mut command, |name| var_os(name));
    tell_of_unreached(&command);
    let ended = child::run(command)?;
    if arguments.summary {
        summary::lines(session.path()).iter().for_each(|line| say(line));
    }
    session.end(ended.left);
    Ok(ended.end_alike())
}

/// Says that limits cannot hold for the program, where that is so.
fn tell_of_unreached(command: &Command) {
    if let Some((path, why)) = reach::of_command(command.get_program()) {
        say(&format!("{} {why}: no limit can be enforced on it", told(&path).display()));
    }
}

/// What people know the session by.
fn label(arguments: &RunArgs) -> Label {
    const LONGEST: usize = 500;
    let words: Vec<_> = arguments.command.iter().map(|word| word.to_string_lossy()).collect();
    let command = words.join(" ").chars().take(LONGEST).collect();
    Label { name: arguments.name.clone(), command: Some(command) }
}

/// Two sessions of one name could not be told apart.
fn check_is_free(name: &str) -> Result<(), Error> {
    let own = rustix::process::geteuid().as_raw();
    let listing = directory::list()?;
    let mut present = listing.sessions.iter().filter(|found| found.uid == own);
    let has_it = |found: &&Found| choice::given_name(found).is_some_and(|taken| taken == name);
    match present.find(has_it) {
        Some(found) => Err(Error::Usage(format!(
            "--name {name}: session {} has this name; choose another, or wait until that session has ended",
            found.name
        ))),
        None => Ok(()),
    }
}

/// Whether the program sees only some devices.
fn is_a_choice(arguments: &RunArgs) -> bool {
    !arguments.device.is_empty() || arguments.gpus.as_ref().is_some_and(GpuRequest::is_a_choice)
}

fn program(arguments: &RunArgs) -> Result<Command, Error> {
    let (program, rest) = arguments
        .command
        .split_first()
        .ok_or_else(|| Error::Usage("no program given; expected sluice run … -- CMD".to_owned()))?;
    let mut command = Command::new(program);
    command.args(rest);
    Ok(command)
}

/// Runs a program inside a session. With options, that is an error: limits within limits would need
/// a session within a session. Without options, the program stays in its session, with the limiter.
fn within_session(arguments: &RunArgs, session: &Path, mut command: Command) -> Error {
    if arguments.any_option() {
        return Error::Usage(format!(
            "already inside a session (named by {} or LD_PRELOAD), whose limits hold for every program in it; here \
             'sluice run' takes no options",
            env::SESSION_DIR
        ));
    }
    match links::of_session(session) {
        Ok(names) => environment::preload(&mut command, &names, var_os("LD_PRELOAD")),
        Err(error) => return error,
    }
    tell_of_unreached(&command);
    let program = command.get_program().display().to_string();
    Error::Spawn { program, source: command.exec() }
}

/// Only limits and a choice of devices need the driver. Without them, a program runs without one,
/// too.
fn chosen_devices(
    arguments: &RunArgs,
    request: &Request,
    parts: &Parts,
) -> Result<Vec<devices::VisibleGpu>, Error> {
    // Errors that do not depend on the devices come first.
    limits::check(request, &[])?;
    let listed = arguments.gpus.is_some() || !arguments.device.is_empty();
    if request.memory.is_none() && request.share.is_none() && !listed {
        return Ok(Vec::new());
    }
    let fake = arguments.fake_gpu.then(|| parts.find(parts::FAKE_NVML.0)).transpose()?;
    let all = devices::list(fake.as_deref())?;
    let chosen = match &arguments.gpus {
        Some(gpus) => gpus.select(&all)?,
        None => devices::select(&all, &arguments.device, devices::OPTION)?,
    };
    limits::check(request, &chosen)?;
    Ok(chosen)
}

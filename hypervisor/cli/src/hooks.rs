//! `sluice hooks`: which of the driver's functions are patched.
//!
//! Two programs load the driver's libraries under the limiter, and one of them calls the driver. The
//! limiter writes what became of each function to the file named by [`REPORT`]: not what its hook
//! engine says, but what it verified.

use std::collections::BTreeMap;
use std::env::{var_os, vars_os};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use limits::units::PPM_ONE;
use protocol::reports::{HookWord, HookedFunction, HooksReport};
use session::directory::{self, OwnedSession};

use super::cli::{HooksArgs, LimitArgs};
use super::environment::MemberEnvironment;
use super::owner::Label;
use super::parts::{self, Parts};
use super::status::json;
use super::{Error, ExitStatus, devices, links};

/// Path of the file that the limiter appends its report to. It has one line for each function that
/// Sluice names: `library<TAB>symbol<TAB>state`. The state is `patched`, `absent` or
/// `failed:<reason>`. A line without a symbol names the engine that patched the library: `engine:<name>`.
pub const REPORT: &str = "SLUICE_HOOK_REPORT";

/// The state of one function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum HookState {
    Absent,
    Patched,
    Failed(String),
}

/// What the limiter reported.
#[derive(Debug, Default)]
struct Table {
    /// The engine by library.
    engines: BTreeMap<String, String>,
    /// The states by library and symbol.
    states: BTreeMap<(String, String), HookState>,
}

/// Prints the table and returns the exit status: 0 if every function that exists is patched.
///
/// # Errors
/// [`Error`] if the report could not be made.
pub fn run(arguments: &HooksArgs) -> Result<u8, Error> {
    let report = report(arguments.fake_gpu)?;
    let text = if arguments.json { json(&report)? } else { render(&report) };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|e| Error::system("cannot write the table", e))?;
    Ok(if report.failed > 0 { ExitStatus::CheckFailed as u8 } else { 0 })
}

/// What became of each function, in the driver or in the one simulated in software.
///
/// # Errors
/// As for [`run`].
pub(crate) fn report(fake_gpu: bool) -> Result<HooksReport, Error> {
    if directory::inside()?.is_some() {
        return Err(Error::Usage("already inside a session; run this command outside".to_owned()));
    }
    let parts = Parts::locate(var_os(parts::LIBRARY).map(PathBuf::from))?;
    let limiter = parts.limiter()?;
    let fake = fake_gpu.then(|| parts.find(parts::FAKE_NVML.0)).transpose()?;
    let devices = devices::list(fake.as_deref())?;
    let session = OwnedSession::create()?;
    let environment = MemberEnvironment {
        session: session.path().to_owned(),
        label: Label::default(),
        limiter: links::preloadable(&session, session.path(), &limiter)?,
        fake_driver: fake_gpu.then(|| links::fake_driver(&session, &parts)).transpose()?,
        request: LimitArgs { compute: Some(PPM_ONE), ..LimitArgs::default() }.request(),
        devices,
        only_these: false,
        daemon: None,
        no_other_daemon: true,
    };
    environment.decide(vars_os(), Vec::new)?;
    let mut cuda = Command::new(parts.find(parts::TENANT)?);
    cuda.args(["mem", "--api", "alloc", "--chunk", "1MiB", "--cap", "1MiB"]);
    let mut nvml = Command::new(
        std::env::current_exe()
            .map_err(|e| Error::system("cannot find this executable's own path", e))?,
    );
    nvml.arg("load-nvml");
    let mut table = Table::default();
    for (mut command, library) in [(cuda, parts::FAKE_CUDA.1), (nvml, parts::FAKE_NVML.1)] {
        environment.apply(&mut command, |name| var_os(name));
        let file = session.path().join(format!("{library}.hooks"));
        read_into(&mut table, &reported(command, &file)?)?;
        if !table.states.keys().any(|(named, _)| named == library) {
            let problem = format!("the report on {library} is missing");
            return Err(Error::Helper { name: parts::LIMITER, problem });
        }
    }
    Ok(counted(table))
}

fn counted(table: Table) -> HooksReport {
    let function = |((library, symbol), state)| {
        let (state, reason) = match state {
            HookState::Patched => (HookWord::Patched, None),
            HookState::Absent => (HookWord::Absent, None),
            HookState::Failed(reason) => (HookWord::Failed, Some(reason)),
        };
        HookedFunction { library, symbol, state, reason }
    };
    let functions: Vec<HookedFunction> = table.states.into_iter().map(function).collect();
    let count = |word| functions.iter().filter(|function| function.state == word).count();
    HooksReport {
        engines: table.engines,
        patched: count(HookWord::Patched),
        absent: count(HookWord::Absent),
        failed: count(HookWord::Failed),
        functions,
    }
}

/// What the child process does that loads NVML.
///
/// # Errors
/// As for [`devices::list`].
pub fn load_nvml() -> Result<u8, Error> {
    devices::list(None).map(|_| 0)
}

fn reported(mut command: Command, file: &Path) -> Result<String, Error> {
    let program = command.get_program().display().to_string();
    let output = command
        .env(REPORT, file)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Spawn { program: program.clone(), source })?;
    let report = fs::read_to_string(file);
    // A program that is refused the device because of a failure is no surprise.
    let tells = |report: &String| report.contains("\tfailed:");
    if !output.status.success() && !report.as_ref().is_ok_and(tells) {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(Error::System {
            what: format!("{program} failed with the limiter preloaded: {said}"),
            source: io::Error::other(output.status.to_string()),
        });
    }
    report.map_err(|source| Error::Helper {
        name: parts::LIMITER,
        problem: format!("no report was written: {source}"),
    })
}

/// Adds the lines of a report. If a function has two states, the worse one counts.
fn read_into(table: &mut Table, text: &str) -> Result<(), Error> {
    for line in text.lines() {
        let line = parse(line).ok_or_else(|| Error::Helper {
            name: parts::LIMITER,
            problem: format!("its report has an invalid line: '{line}'"),
        })?;
        match line {
            Line::Engine { library, name } => {
                table.engines.insert(library, name);
            }
            Line::Function { key, state } => {
                let known = table.states.entry(key).or_insert_with(|| state.clone());
                if *known < state {
                    *known = state;
                }
            }
        }
    }
    Ok(())
}

/// A line of the report.
enum Line {
    Engine { library: String, name: String },
    Function { key: (String, String), state: HookState },
}

fn parse(line: &str) -> Option<Line> {
    let mut fields = line.splitn(3, '\t');
    let key = (fields.next()?.to_owned(), fields.next()?.to_owned());
    let state = match fields.next()? {
        "patched" => HookState::Patched,
        "absent" => HookState::Absent,
        other => match other.strip_prefix("engine:").filter(|_| key.1.is_empty()) {
            Some(name) => return Some(Line::Engine { library: key.0, name: name.to_owned() }),
            None => HookState::Failed(other.strip_prefix("failed:")?.to_owned()),
        },
    };
    Some(Line::Function { key, state })
}

fn render(report: &HooksReport) -> String {
    let mut text = String::new();
    for HookedFunction { library, symbol, state, reason } in &report.functions {
        let state = match (state, reason) {
            (HookWord::Patched, _) => "patched",
            (HookWord::Absent, _) => "absent",
            (HookWord::Failed, reason) => {
                &format!("FAILED: {}", reason.as_deref().unwrap_or_default())
            }
        };
        let _ = writeln!(text, "{library:<18}  {symbol:<44}  {state}");
    }
    for (library, engine) in &report.engines {
        let _ = writeln!(text, "engine: {library} is patched by {engine}");
    }
    let HooksReport { patched, absent, failed, functions, .. } = report;
    let _ = writeln!(
        text,
        "total: {} functions, {patched} patched, {absent} absent from this driver, {failed} failed",
        functions.len(),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_merged_and_the_worse_state_counts() {
        let mut table = Table::default();
        read_into(&mut table, "libcuda.so.1\tcuInit\tpatched\nlibcuda.so.1\tcuOld\tabsent\n")
            .unwrap();
        read_into(&mut table, "libcuda.so.1\tcuInit\tfailed:too short: 5 bytes\n").unwrap();
        read_into(&mut table, "libcuda.so.1\tcuInit\tpatched\n").unwrap();
        read_into(&mut table, "libcuda.so.1\t\tengine:detour\n").unwrap();
        let text = render(&counted(table));
        assert!(text.contains("FAILED: too short: 5 bytes"), "{text}");
        assert!(text.contains("engine: libcuda.so.1 is patched by detour\n"), "{text}");
        assert!(text.ends_with("2 functions, 0 patched, 1 absent from this driver, 1 failed\n"));
    }

    #[test]
    fn a_line_that_makes_no_sense_is_an_error() {
        for line in ["cuInit patched", "a\tb", "a\tb\tmaybe", "a\tb\tengine:detour"] {
            assert!(read_into(&mut Table::default(), line).is_err(), "{line}");
        }
    }
}

//! `sluice doctor`: looks at everything that Sluice needs, and proves that limits hold.
//!
//! What a part needs is looked at before it. Where that is broken the part is skipped.

mod canary;
mod installation;
mod node;
mod parts;
mod unlisted;

use std::io::{self, Write};

use protocol::findings::Findings;
use protocol::reports::DoctorReport;

use super::cli::DoctorArgs;
use super::status::json;
use super::{Error, ExitStatus};

/// Looks at all of it.
///
/// # Errors
/// [`Error::System`] if the report cannot be written.
pub(crate) fn run(arguments: &DoctorArgs) -> Result<u8, Error> {
    let report = examine(arguments);
    let text = if arguments.json {
        json(&report)?
    } else {
        report.told("Nothing is broken, and limits hold.", "Limits do not hold here.")
    };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|e| Error::system("cannot write to standard output", e))?;
    Ok(match report.is_unjudged() {
        true => ExitStatus::Busy as u8,
        false if report.healthy => 0,
        false => ExitStatus::CheckFailed as u8,
    })
}

fn examine(arguments: &DoctorArgs) -> DoctorReport {
    let mut findings = Findings::default();
    let fake = arguments.fake_gpu;
    findings.look("session", &[], parts::session);
    findings.look("library", &[], parts::library);
    findings.look("loader", &["library"], parts::loader);
    findings.look("driver", &[], || parts::driver(fake));
    if !fake {
        findings.look("device files", &["driver"], parts::device_files);
    }
    findings.look("shared memory", &[], node::shared_memory);
    findings.look("cgroup", &[], node::cgroup);
    findings.look("daemon", &[], || node::daemon(arguments.daemon.as_deref(), fake));
    findings.look("socket", &[], || node::socket(arguments.daemon.as_deref()));
    let needed = ["session", "library", "loader", "driver", "shared memory"];
    findings.look("functions", &needed, || parts::functions(fake));
    let canary = canary::Canary { fake, daemon: arguments.daemon.as_deref() };
    findings.look("memory limit", &needed, || canary.memory());
    findings.look("compute share", &needed, || canary.time());
    findings.report()
}

//! `sluice doctor`: looks at everything that Sluice needs, and proves that limits hold.
//!
//! What a part needs is looked at before it. Where that is broken the part is skipped.

mod canary;
mod installation;
mod node;
mod parts;

use std::io::{self, Write};

use ::limits::Shown;
use protocol::reports::{DoctorReport, Finding, FindingState};

use super::cli::DoctorArgs;
use super::status::json;
use super::{Error, ExitStatus};

/// What a check says: what was found, or what is wrong and the command that mends it.
type Checked = Result<String, Wrong>;

/// Something that is not as it should be.
struct Wrong {
    state: FindingState,
    found: String,
    mend: Option<String>,
}

impl Wrong {
    fn broken(found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { state: FindingState::Broken, found: found.into(), mend: Some(mend.into()) }
    }

    fn note(found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { state: FindingState::Note, found: found.into(), mend: Some(mend.into()) }
    }
}

/// Looks at all of it.
///
/// # Errors
/// [`Error::System`] if the report cannot be written.
pub(crate) fn run(arguments: &DoctorArgs) -> Result<u8, Error> {
    let report = examine(arguments);
    let text = if arguments.json { json(&report)? } else { told(&report) };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|e| Error::system("cannot write to standard output", e))?;
    Ok(if report.healthy { 0 } else { ExitStatus::CheckFailed as u8 })
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
    findings.look("time limit", &needed, || canary.time());
    let healthy = findings
        .0
        .iter()
        .all(|finding| matches!(finding.state, FindingState::Ok | FindingState::Note));
    DoctorReport { healthy, findings: findings.0 }
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    /// Looks at a part, if what it needs is not broken.
    fn look(&mut self, check: &str, needs: &[&str], look: impl FnOnce() -> Checked) {
        let stands = |finding: &&Finding| {
            needs.contains(&finding.check.as_str())
                && matches!(finding.state, FindingState::Broken | FindingState::Skipped)
        };
        let (state, found, mend) = match self.0.iter().find(stands) {
            Some(broken) => (
                FindingState::Skipped,
                format!("not looked at: mend '{}' first", broken.check),
                None,
            ),
            None => match look() {
                Ok(found) => (FindingState::Ok, found, None),
                Err(Wrong { state, found, mend }) => (state, found, mend),
            },
        };
        self.0.push(Finding { check: check.to_owned(), state, found, mend });
    }
}

fn told(report: &DoctorReport) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let word = match finding.state {
            FindingState::Ok => "ok",
            FindingState::Note => "note",
            FindingState::Broken => "BROKEN",
            FindingState::Skipped => "skipped",
        };
        text += &format!("{word:<8} {:<14} {}\n", finding.check, Shown(&finding.found));
        if let Some(mend) = &finding.mend {
            text += &format!("{:<8} {:<14} -> {}\n", "", "", Shown(mend));
        }
    }
    let end = if report.healthy {
        "Nothing is broken, and limits hold."
    } else {
        "Limits do not hold here."
    };
    text + "\n" + end + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_something_broken_is_skipped() {
        let mut findings = Findings::default();
        findings.look("a", &[], || Err(Wrong::broken("is gone", "fetch a")));
        findings.look("b", &["a"], || Ok("never".to_owned()));
        findings.look("c", &["b"], || Ok("never".to_owned()));
        findings.look("d", &["e"], || Err(Wrong::note("less", "more")));
        let states: Vec<_> = findings.0.iter().map(|finding| finding.state).collect();
        let (skipped, broken) = (FindingState::Skipped, FindingState::Broken);
        assert_eq!(states, [broken, skipped, skipped, FindingState::Note]);
        let text = told(&DoctorReport { healthy: false, findings: findings.0 });
        assert!(text.contains("BROKEN   a              is gone\n"), "{text}");
        assert!(text.contains("-> fetch a\n"), "{text}");
        assert!(text.contains("skipped  b              not looked at: mend 'a' first"), "{text}");
    }
}

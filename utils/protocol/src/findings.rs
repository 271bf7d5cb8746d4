//! Findings of a check, in order, and their text for people. Used by `sluice doctor` and `hypervisor node --check`.

use core::fmt::Write as _;

use limits::Shown;

use crate::reports::{DoctorReport, Finding, FindingState};

/// Result of a check: what was found, or what is wrong and the command that fixes it.
pub type Checked = Result<String, Wrong>;

/// Something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    state: FindingState,
    found: String,
    mend: Option<String>,
}

impl Wrong {
    /// Nothing works without this part.
    pub fn broken(found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { state: FindingState::Broken, found: found.into(), mend: Some(mend.into()) }
    }

    /// Sluice works without this part, possibly with less function.
    pub fn note(found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { state: FindingState::Note, found: found.into(), mend: Some(mend.into()) }
    }

    /// Cannot be judged, because other programs use the GPU.
    pub fn busy(found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { state: FindingState::Busy, found: found.into(), mend: Some(mend.into()) }
    }

    /// The severity.
    #[must_use]
    pub const fn state(&self) -> FindingState {
        self.state
    }
}

/// Findings in order. A check comes after those that it needs, and is skipped if one of them is broken.
#[derive(Debug, Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// Runs a check, unless a check that it needs is broken.
    pub fn look(&mut self, check: &str, needs: &[&str], look: impl FnOnce() -> Checked) {
        let stands = |finding: &&Finding| {
            needs.contains(&finding.check.as_str())
                && matches!(finding.state, FindingState::Broken | FindingState::Skipped)
        };
        let (state, found, mend) = match self.0.iter().find(stands) {
            Some(broken) => {
                (FindingState::Skipped, format!("not checked: fix '{}' first", broken.check), None)
            }
            None => match look() {
                Ok(found) => (FindingState::Ok, found, None),
                Err(Wrong { state, found, mend }) => (state, found, mend),
            },
        };
        self.0.push(Finding { check: check.to_owned(), state, found, mend });
    }

    /// The findings as a report.
    #[must_use]
    pub fn report(self) -> DoctorReport {
        let is_fine =
            |finding: &Finding| matches!(finding.state, FindingState::Ok | FindingState::Note);
        DoctorReport { healthy: self.0.iter().all(is_fine), findings: self.0 }
    }
}

impl DoctorReport {
    /// Whether only other programs' use of the GPU prevents a verdict.
    #[must_use]
    pub fn is_unjudged(&self) -> bool {
        let is_bad = |finding: &Finding| {
            matches!(finding.state, FindingState::Broken | FindingState::Skipped)
        };
        !self.healthy && !self.findings.iter().any(is_bad)
    }

    /// The report as text. `healthy`, `broken`: candidates for the last line.
    #[must_use]
    pub fn told(&self, healthy: &str, broken: &str) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let word = match finding.state {
                FindingState::Ok => "ok",
                FindingState::Note => "note",
                FindingState::Broken => "BROKEN",
                FindingState::Skipped => "skipped",
                FindingState::Busy => "busy",
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{word:<8} {:<14} {}", finding.check, Shown(&finding.found));
            if let Some(mend) = &finding.mend {
                let _ = writeln!(text, "{:<8} {:<14} -> {}", "", "", Shown(mend));
            }
        }
        let verdict = match self.is_unjudged() {
            true => "Nothing is broken, but the GPU is too busy to judge whether limits hold.",
            false if self.healthy => healthy,
            false => broken,
        };
        text + "\n" + verdict + "\n"
    }
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
        let report = findings.report();
        let states: Vec<_> = report.findings.iter().map(|finding| finding.state).collect();
        let (skipped, broken) = (FindingState::Skipped, FindingState::Broken);
        assert_eq!(states, [broken, skipped, skipped, FindingState::Note]);
        assert!(!report.healthy);
        let text = report.told("fine", "not fine");
        assert!(text.contains("BROKEN   a              is gone\n"), "{text}");
        assert!(text.contains("-> fetch a\n"), "{text}");
        assert!(text.contains("skipped  b              not checked: fix 'a' first"), "{text}");
        assert!(text.ends_with("\nnot fine\n"), "{text}");
    }

    #[test]
    fn a_busy_gpu_is_neither_an_alarm_nor_an_all_clear() {
        let mut findings = Findings::default();
        findings.look("a", &[], || Err(Wrong::note("less", "more")));
        findings.look("b", &[], || Err(Wrong::busy("the GPU is busy", "wait")));
        let report = findings.report();
        assert!(!report.healthy && report.is_unjudged());
        let text = report.told("fine", "not fine");
        assert!(text.contains("busy     b              the GPU is busy\n"), "{text}");
        assert!(
            text.ends_with("but the GPU is too busy to judge whether limits hold.\n"),
            "{text}"
        );
    }
}

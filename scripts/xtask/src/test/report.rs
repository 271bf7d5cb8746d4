//! How checks went: what is shown, and what is counted.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

/// How one check went.
pub(super) struct Result {
    pub(super) name: String,
    /// Whether its last program ended with 0.
    pub(super) ok: bool,
    /// Why it could not run here.
    pub(super) missing: Option<String>,
    /// What was printed.
    pub(super) log: String,
    /// Tests that could not run here, which have passed for their runner.
    pub(super) unable: u32,
}

/// Checks and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u32,
    pub(super) failed: u32,
}

impl Result {
    /// Tests by the closing lines of their runners. A run that fails without a failed test (it did not compile), or
    /// in which no test ran, counts as one that failed.
    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        let is_closing = |line: &&str| {
            line.starts_with("test result:") || line.trim_start().starts_with("Summary [")
        };
        for line in self.log.lines().filter(is_closing) {
            let words: Vec<&str> = line
                .split(|c: char| !c.is_alphanumeric())
                .filter(|word| !word.is_empty())
                .collect();
            for pair in words.windows(2) {
                let Ok(number) = pair[0].parse::<u32>() else { continue };
                match pair[1] {
                    "passed" => counts.passed += number,
                    // "timed out", "exec failed"
                    "failed" | "timed" | "exec" => counts.failed += number,
                    _ => {}
                }
            }
        }
        if counts.failed == 0 && (!self.ok || counts.passed == 0) {
            counts.failed = 1;
        }
        counts.passed = counts.passed.saturating_sub(self.unable);
        counts
    }

    /// The lines of nextest's closing list: of a test in it the first word, and its program and name.
    fn closing_list(&self) -> impl Iterator<Item = (&str, String, String)> {
        let lines = self.log.lines().skip_while(|line| !line.trim_start().starts_with("Summary ["));
        lines.skip(1).filter_map(|line| {
            let mut words = line.split_whitespace();
            let (state, test, program) = (words.next()?, words.next_back()?, words.next_back()?);
            Some((state, program.to_owned(), test.to_owned())).filter(|_| line.contains("s] "))
        })
    }

    /// Tests that failed: program and name.
    pub(super) fn failing(&self) -> Vec<(String, String)> {
        let failed = self.closing_list().filter(|(state, ..)| *state != "FLAKY");
        let mut failing: Vec<_> = failed.map(|(_, program, test)| (program, test)).collect();
        failing.sort();
        failing.dedup();
        failing
    }
}

/// The whole run.
pub(super) struct Report {
    start: Instant,
    total: Counts,
    skipped: u32,
    failures: Vec<String>,
    flaky: Vec<String>,
    times: Vec<String>,
    is_terminal: bool,
}

impl Report {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            total: Counts::default(),
            skipped: 0,
            failures: Vec::new(),
            flaky: Vec::new(),
            times: Vec::new(),
            is_terminal: io::stdout().is_terminal(),
        }
    }

    fn colored(&self, color: &str, text: &str) -> String {
        if self.is_terminal { format!("\x1b[{color}m{text}\x1b[m") } else { text.to_owned() }
    }

    pub(super) fn begin(&self, name: &str) {
        print(&self.colored("1", &format!("== {name}")));
    }

    pub(super) fn end(&self, result: &Result, seconds: u64) {
        let state = match result.ok {
            true => self.colored("32", "ok") + "     ",
            false => self.colored("31", "FAILED") + " ",
        };
        print(&format!("{state} {} ({seconds} s)", result.name));
    }

    pub(super) fn skip(&mut self, name: &str, reason: &str) {
        self.skipped += 1;
        print(&format!("{} {name}: {reason}", self.colored("33", "SKIPPED")));
    }

    /// Counts a check.
    pub(super) fn add(&mut self, result: &Result, counts: Counts) {
        self.total.passed += counts.passed;
        self.total.failed += counts.failed;
        if counts.failed > 0 {
            self.failures.push(result.name.clone());
        }
        let flaky = result.closing_list().filter(|(state, ..)| *state == "FLAKY");
        self.flaky.extend(flaky.map(|(.., test)| test));
    }

    /// Counts tests of which some failed and ran once more. Whether all pass now.
    pub(super) fn add_retried(
        &mut self,
        first: &Result,
        second: &Result,
        failed: &[(String, String)],
    ) -> bool {
        let counts = second.counts();
        self.add(first, Counts { failed: 0, ..first.counts() });
        self.add(second, counts);
        let failing = second.failing();
        self.flaky
            .extend(failed.iter().filter(|one| !failing.contains(one)).map(|one| one.1.clone()));
        counts.failed == 0
    }

    pub(super) fn took(&mut self, tier: &str, seconds: u64, budget: u64) {
        let over = if seconds > budget {
            self.colored("33", "more than its budget")
        } else {
            String::new()
        };
        self.times.push(format!("{tier:<8} {seconds:4} s of {budget:4} s {over}"));
    }

    /// Shows what was counted. Whether nothing failed.
    pub(super) fn close(mut self) -> bool {
        for line in &self.times {
            print(line);
        }
        print(&format!("{:<8} {:4} s", "total", self.start.elapsed().as_secs()));
        self.flaky.sort();
        self.flaky.dedup();
        for name in &self.flaky {
            print(&format!("{}: {name} passed when it was retried", self.colored("33", "FLAKY")));
        }
        for name in &self.failures {
            let _ = writeln!(io::stderr(), "FAILED: {name}");
        }
        let skipped = match self.skipped {
            0 => String::new(),
            skipped => format!(", {skipped} skipped"),
        };
        print(&format!("{} passed, {} failed{skipped}", self.total.passed, self.total.failed));
        self.total.failed == 0
    }
}

pub(super) fn print(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(ok: bool, unable: u32, log: &str) -> Result {
        Result { name: String::new(), ok, missing: None, log: log.to_owned(), unable }
    }

    #[test]
    fn tests_are_counted_by_the_closing_lines() {
        let counts = |ok, log| result(ok, 0, log).counts();
        let summary = "PASS 9 passed\n     Summary [  12.3s] 9 tests run: 5 passed (2 slow, 1 flaky), 1 failed, 2 timed out, 1 exec failed, 7 skipped";
        assert_eq!(counts(false, summary), Counts { passed: 5, failed: 4 });
        let cargo =
            "test result: ok. 3 passed; 0 failed; 1 ignored\ntest result: ok. 2 passed; 0 failed;";
        assert_eq!(counts(true, cargo), Counts { passed: 5, failed: 0 });
        assert_eq!(result(true, 2, cargo).counts(), Counts { passed: 3, failed: 0 });
    }

    #[test]
    fn a_run_without_a_test_has_failed() {
        assert_eq!(result(true, 0, "").counts(), Counts { passed: 0, failed: 1 });
        assert_eq!(result(false, 0, "error[E0308]").counts(), Counts { passed: 0, failed: 1 });
        let cargo = "test result: ok. 3 passed; 0 failed";
        assert_eq!(result(false, 0, cargo).counts(), Counts { passed: 3, failed: 1 });
    }

    #[test]
    fn the_closing_list_names_what_failed() {
        let log = "   FAIL [ 1.0s] (1/2) early early::one\n     Summary [ 2.0s] 2 tests run: 1 passed, 1 failed\n   TRY 3 FAIL [   0.5s] (────) limiter::suite timed::one\n   FLAKY 2/3 [   1.5s] (────) limiter::suite timed::two\nerror: test run failed\n";
        assert_eq!(
            result(false, 0, log).failing(),
            [("limiter::suite".to_owned(), "timed::one".to_owned())]
        );
        let mut report = Report::new();
        report.add(&result(false, 0, log), Counts::default());
        assert_eq!(report.flaky, ["timed::two"]);
    }
}

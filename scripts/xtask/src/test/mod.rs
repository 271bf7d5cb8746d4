//! `xtask test`: the checks of the project, in tiers. Behind `scripts/test.sh`.

mod checks;
mod engines;
mod job;
mod packages;
mod reach;
mod report;
mod tools;
mod verified;

use clap::ValueEnum;
use job::{Fault, Follower, Job, Outcome};
use report::{Counts, Report, Result};
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use verified::Verified;

/// Which checks run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run lints, and the tests that measure no time
    #[arg(long, conflicts_with_all = ["all", "ci", "tier", "names"])]
    quick: bool,
    /// Run every tier, with more random cases
    #[arg(long, conflicts_with_all = ["ci", "tier", "names"])]
    all: bool,
    /// Run every tier, without checks whose inputs have not changed since they passed
    #[arg(long, conflicts_with_all = ["tier", "names"])]
    ci: bool,
    /// Run only this tier (repeat it for more)
    #[arg(long, conflicts_with = "names")]
    tier: Vec<Tier>,
    /// Run only tests whose names contain one of these words
    names: Vec<String>,
}

/// Output of the present check, below the folder of the build.
const LOG: &str = "tmp/log";

/// Tests that measure time sleep nearly always: see `.config/nextest.toml`.
const TIMED_AT_ONCE: &str = "6";

/// Checks that run together.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Tier {
    Lints,
    Tests,
    Timed,
    Other,
    Threads,
    Gum,
    Reach,
    Packages,
    Cluster,
    Engines,
}

impl Tier {
    /// Seconds that it may take on two cores, with a warm build. A tier that takes longer is marked, and fails nothing.
    const fn budget(self) -> u64 {
        match self {
            Self::Lints => 60,
            Self::Tests => 200,
            Self::Timed => 330,
            Self::Other => 90,
            Self::Threads | Self::Gum => 90,
            Self::Reach => 480,
            Self::Packages => 200,
            Self::Cluster => 160,
            Self::Engines => 150,
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// When a check runs.
enum When {
    /// Always.
    Always,
    /// Always, but for `--ci` only if one of these files (git's patterns) has changed since it passed.
    Changed(Vec<&'static str>),
    /// Only before a check that needs it.
    Needed,
}

/// What a check needs.
#[derive(Clone, Copy)]
enum Need {
    /// Another check, which has to pass.
    Check(&'static str),
    /// Something that this machine may lack, how to get it, and what to say if that fails.
    Tool(fn(&Job) -> bool, &'static str),
}

/// What a check does.
enum Work {
    /// It counts as one.
    Check(Box<dyn Fn(&Job) -> Outcome>),
    /// It counts as the tests that it runs.
    Tests(Box<dyn Fn(&Job) -> Command>),
    /// The same, of the tests that measure time and match nextest's filter: what failed runs once more, alone.
    Timed(Box<dyn Fn(&Job) -> Command>, String),
}

/// One line of the table of checks.
struct Check {
    tier: Tier,
    name: String,
    needs: Vec<Need>,
    when: When,
    work: Work,
}

impl Check {
    fn new(tier: Tier, name: impl Into<String>, work: Work) -> Self {
        Self { tier, name: name.into(), needs: Vec::new(), when: When::Always, work }
    }

    fn single(
        tier: Tier,
        name: impl Into<String>,
        work: impl Fn(&Job) -> Outcome + 'static,
    ) -> Self {
        Self::new(tier, name, Work::Check(Box::new(work)))
    }

    fn tests(
        tier: Tier,
        name: impl Into<String>,
        work: impl Fn(&Job) -> Command + 'static,
    ) -> Self {
        Self::new(tier, name, Work::Tests(Box::new(work)))
    }

    fn timed(
        tier: Tier,
        name: impl Into<String>,
        filter: impl Into<String>,
        work: impl Fn(&Job) -> Command + 'static,
    ) -> Self {
        Self::new(tier, name, Work::Timed(Box::new(work), filter.into()))
    }

    fn needs(mut self, need: Need) -> Self {
        self.needs.push(need);
        self
    }

    fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }
}

/// Runs the checks and tells how they went. Whether nothing failed.
///
/// # Errors
/// The log cannot be written.
pub(crate) fn run(options: &Options, target: &Path) -> std::result::Result<bool, std::io::Error> {
    fs::create_dir_all(target.join("tmp"))?;
    let target = fs::canonicalize(target)?;
    let job = Job {
        cases: match (options.all, options.ci) {
            (true, _) => 512,
            (_, true) => 256,
            _ => 64,
        },
        hours: if options.all || options.ci { "all" } else { "first" },
        log: File::options().create(true).append(true).open(target.join(LOG))?,
        target,
    };
    let _ = fs::remove_file(faults(&job));
    let mut run = Run {
        options,
        report: Report::new(),
        verified: Verified::read(),
        states: HashMap::new(),
        job,
    };
    let checks = checks::table();
    if options.names.is_empty() {
        let all = options.all || options.ci || !options.tier.is_empty();
        for &tier in Tier::value_variants() {
            let wanted = match tier {
                _ if !options.tier.is_empty() => options.tier.contains(&tier),
                Tier::Lints | Tier::Tests => true,
                Tier::Timed | Tier::Other => !options.quick,
                _ => all,
            };
            if wanted {
                run.tier(tier, &checks);
            }
        }
    } else {
        let names = options.names.clone();
        let some = Check::tests(Tier::Tests, "tests", move |job| {
            let mut command = checks::nextest(job);
            command.args(&names);
            command
        });
        run.one(&some.needs(Need::Check(checks::BUILD)), &checks);
    }
    let faultless =
        Check::single(Tier::Other, "no program failed in a test that was retried", |job| {
            match fs::read_to_string(faults(job)) {
                Ok(found) if !found.is_empty() => {
                    job::wrong(format_args!("in these tests a program failed or hung:\n{found}"))
                }
                _ => Ok(()),
            }
        });
    run.one(&faultless, &checks);
    if !options.ci {
        run.verified.write()?;
    }
    Ok(run.report.close())
}

/// Tests of time that fail are retried. That must not hide a program that failed or hung: tests note each in this file.
fn faults(job: &Job) -> std::path::PathBuf {
    job.built("tmp/faults")
}

/// How a check went.
#[derive(Clone)]
enum State {
    Passed,
    Failed,
    Skipped(String),
}

/// A run of the checks.
struct Run<'a> {
    options: &'a Options,
    job: Job,
    report: Report,
    verified: Verified,
    states: HashMap<String, State>,
}

impl Run<'_> {
    fn tier(&mut self, tier: Tier, checks: &[Check]) {
        let start = Instant::now();
        for check in checks.iter().filter(|check| check.tier == tier) {
            if !matches!(check.when, When::Needed) && !self.states.contains_key(&check.name) {
                self.one(check, checks);
            }
        }
        self.report.took(&tier.name(), start.elapsed().as_secs(), tier.budget());
    }

    /// Runs a check, after those that it needs.
    fn one(&mut self, check: &Check, checks: &[Check]) {
        let state = match self.reason_to_skip(check, checks) {
            Some(reason) => {
                self.report.skip(&check.name, &reason);
                State::Skipped(reason)
            }
            None => self.work(check),
        };
        if let (State::Passed, When::Changed(inputs)) = (&state, &check.when) {
            self.verified.note(&check.name, inputs);
        }
        self.states.insert(check.name.clone(), state);
    }

    fn reason_to_skip(&mut self, check: &Check, checks: &[Check]) -> Option<String> {
        if self.options.ci
            && let When::Changed(inputs) = &check.when
            && let Some(date) = self.verified.unchanged_since(&check.name, inputs)
        {
            return Some(format!("its inputs have not changed since it passed on {date}"));
        }
        for need in &check.needs {
            match *need {
                Need::Check(name) => {
                    if !self.states.contains_key(name)
                        && let Some(needed) = checks.iter().find(|check| check.name == name)
                    {
                        self.one(needed, checks);
                    }
                    match self.states.get(name) {
                        Some(State::Passed) => {}
                        Some(State::Skipped(reason)) => return Some(reason.clone()),
                        _ => return Some(format!("it needs '{name}', which failed")),
                    }
                }
                Need::Tool(get, lacking) => {
                    let state = self.states.get(lacking).cloned().unwrap_or_else(|| {
                        if get(&self.job) { State::Passed } else { State::Failed }
                    });
                    self.states.insert(lacking.to_owned(), state.clone());
                    if !matches!(state, State::Passed) {
                        return Some(lacking.to_owned());
                    }
                }
            }
        }
        None
    }

    fn work(&mut self, check: &Check) -> State {
        let passed = match &check.work {
            Work::Check(work) => {
                let result = self.watch(&check.name, |job| work(job));
                if let Some(reason) = result.missing {
                    return State::Skipped(reason);
                }
                // A check in Python or the shell says so of a part.
                let parts: Vec<&str> =
                    result.log.lines().filter_map(|line| line.strip_prefix("SKIPPED: ")).collect();
                for part in &parts {
                    self.report.skip(&check.name, part);
                }
                let counts = Counts { passed: u32::from(result.ok), failed: u32::from(!result.ok) };
                self.report.add(&result, counts);
                result.ok
            }
            Work::Tests(command) => self.tests(&check.name, command(&self.job)),
            Work::Timed(command, filter) => self.timed(&check.name, command, filter),
        };
        if passed { State::Passed } else { State::Failed }
    }

    fn tests(&mut self, name: &str, command: Command) -> bool {
        let result = self.tests_once(name, command);
        let counts = result.counts();
        self.report.add(&result, counts);
        counts.failed == 0
    }

    /// On a slow or shared machine tests disturb each other. A fault does not go away, and more failures than a few are
    /// no accident.
    fn timed(&mut self, name: &str, command: &dyn Fn(&Job) -> Command, filter: &str) -> bool {
        const MOST_ALONE: usize = 10;
        let mut all = command(&self.job);
        all.args(["-E", filter, "--test-threads", TIMED_AT_ONCE]);
        let first = self.tests_once(name, all);
        let (counts, failing) = (first.counts(), first.failing());
        let all_known = usize::try_from(counts.failed).is_ok_and(|failed| failed == failing.len());
        if failing.is_empty() || failing.len() > MOST_ALONE || !all_known {
            self.report.add(&first, counts);
            return counts.failed == 0;
        }
        let one =
            |(program, test): &(String, String)| format!("(binary_id(={program}) & test(={test}))");
        let only = failing.iter().map(one).collect::<Vec<_>>().join(" + ");
        let mut again = command(&self.job);
        again.args(["-E", &only, "--test-threads", "1"]);
        let second = self.tests_once(&format!("{name}: those that failed, one at a time"), again);
        self.report.add_retried(&first, &second, &failing)
    }

    /// Runs tests and counts as skipped what could not run here: tests say so in a file.
    fn tests_once(&mut self, name: &str, mut command: Command) -> Result {
        let unable = self.job.built("tmp/skipped");
        let _ = fs::remove_file(&unable);
        let mut result = self.watch(name, |job| job.run(&mut command));
        let mut seen = Vec::new();
        for line in fs::read_to_string(unable).unwrap_or_default().lines() {
            let (test, reason) = line.split_once(": ").unwrap_or((line, ""));
            if !seen.contains(&test.to_owned()) {
                seen.push(test.to_owned());
                self.report.skip(test, reason);
            }
        }
        result.unable = u32::try_from(seen.len()).unwrap_or(0);
        result
    }

    /// Runs something and shows its output meanwhile.
    fn watch(&mut self, name: &str, work: impl FnOnce(&Job) -> Outcome) -> Result {
        let start = Instant::now();
        self.report.begin(name);
        let path = self.job.built(LOG);
        let outcome = self.job.log.set_len(0).map_err(Fault::File).and_then(|()| {
            let _follower = Follower::start(&path)?;
            let outcome = work(&self.job);
            match &outcome {
                Ok(()) | Err(Fault::Missing(_)) => {}
                Err(fault) => self.job.say(fault),
            }
            outcome
        });
        let log = fs::read(&path).map(|log| String::from_utf8_lossy(&log).into_owned());
        let mut result = Result {
            name: name.to_owned(),
            ok: outcome.is_ok(),
            missing: None,
            log: log.unwrap_or_default(),
            unable: 0,
        };
        match outcome {
            Err(Fault::Missing(reason)) => {
                self.report.skip(name, &reason);
                result.missing = Some(reason);
            }
            _ => self.report.end(&result, start.elapsed().as_secs()),
        }
        result
    }
}

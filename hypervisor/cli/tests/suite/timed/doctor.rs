//! The doctor's canaries are held to their limits.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use protocol::reports::{DoctorReport, FindingState};

use crate::support::{Sluice, outcome};

#[test]
fn the_doctor_proves_both_limits() {
    let sluice = Sluice::new();
    let mut command = sluice.command();
    command.args(["doctor", "--fake-gpu", "--daemon", "none", "--json"]);
    let (code, stdout, stderr) = outcome(&mut command);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let report: DoctorReport = serde_json::from_str(&stdout).unwrap();
    for check in ["functions", "memory limit", "compute share"] {
        let finding = report.findings.iter().find(|finding| finding.check == check).unwrap();
        assert_eq!(finding.state, FindingState::Ok, "{finding:?}");
    }
}

#[test]
fn the_doctor_does_not_judge_a_busy_gpu() {
    let sluice = Sluice::new();
    let mut neighbour = sluice
        .run(&["--fake-gpu", "--device", "0", "--daemon", "none", "--"])
        .arg(sluice.built("tenant", "tenant"))
        .args(["dense", "--kernel-us", "2000", "--seconds", "600", "--commands", "--progress"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(neighbour.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let doctor = ["doctor", "--fake-gpu", "--daemon", "none"];
    let (code, stdout, stderr) = outcome(sluice.command().args(doctor));
    drop(neighbour.stdin.take());
    drop(neighbour.stdout.take());
    let _ = neighbour.wait().unwrap();
    assert_eq!((code, stderr.as_str()), (75, ""), "{stdout}");
    let found = "busy     compute share  the GPU is too busy to judge";
    let verdict = "too busy to judge whether limits hold.";
    assert!(stdout.contains(found) && stdout.trim_end().ends_with(verdict), "{stdout}");
}

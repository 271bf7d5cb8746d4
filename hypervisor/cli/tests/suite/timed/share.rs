//! Shares that are added, changed and removed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::limit::program::limit;
use crate::support::{Sluice, outcome};

/// A line of progress of `tenant dense`: seconds, kernels.
fn progress(output: &mut impl BufRead) -> Option<(f64, f64)> {
    loop {
        let mut line = String::new();
        if output.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        let line: Value = serde_json::from_str(&line).unwrap();
        if let (Some(elapsed), Some(kernels)) = (line["elapsed"].as_f64(), line["kernels"].as_f64())
        {
            return Some((elapsed, kernels));
        }
    }
}

#[test]
fn a_share_changes_while_the_program_runs() {
    let sluice = Sluice::new();
    let mut child = sluice
        .run(&["--fake-gpu", "--device", "0", "--daemon", "none", "--"])
        .arg(sluice.built("tenant", "tenant"))
        .args(["dense", "--kernel-us", "1000", "--seconds", "7", "--progress"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    // Kernels a second, from the next line on.
    let mut rate = || {
        let first = progress(&mut output).unwrap();
        let mut last = first;
        while last.0 < first.0 + 1.0 {
            last = progress(&mut output).unwrap();
        }
        (last.1 - first.1) / (last.0 - first.0)
    };
    let session = child.id().to_string();
    let change = |options: &[&str], was: &str, is: &str| {
        let (code, stdout, stderr) = limit(&sluice, &session, options);
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(stdout.contains(&format!("compute was {was}, is now {is}\n")), "{stdout}");
    };
    let free = rate();
    let (_, status, _) = outcome(sluice.command().args(["status", &session]));
    assert!(status.contains("memory  no limit, 512"), "{status}");
    assert!(status.contains("compute no limit\n"), "{status}");
    change(&["--compute", "15"], "no limit", "15% fixed");
    let slow = rate();
    change(&["--compute", "75%"], "15% fixed", "75% fixed");
    let fast = rate();
    change(&["--policy", "none"], "75% fixed", "no limit");
    let lifted = rate();
    drop(output);
    let _ = child.wait().unwrap();
    // On a machine with other work, the figures are not close to the shares.
    let rates = format!("{free} kernels a second, then {slow}, {fast}, {lifted}");
    assert!(slow < 0.4 * free && fast > 2.5 * slow, "{rates}");
    assert!(lifted > 1.1 * fast && lifted > 0.8 * free, "{rates}");
}

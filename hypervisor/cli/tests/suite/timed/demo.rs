//! `sluice demo` and `sluice hooks` on the simulated GPU.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::{Sluice, eventually, outcome, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A demo on the simulated GPU, with all parts that it needs.
fn demo(sluice: &Sluice, seconds: &str) -> Command {
    sluice.built("hypervisor", "hypervisor");
    sluice.built("tenant", "tenant");
    let mut command = sluice.command();
    command.args(["demo", "--fake-gpu", "--json", "--seconds", seconds]);
    command
}

/// Processes and directories of the session that process `pid` made.
fn traces_of(pid: u32) -> Vec<String> {
    let base = session::directory::base(rustix::process::getuid().as_raw());
    let session = format!("{}/{pid}-", base.display());
    let own = fs::read_dir(base).into_iter().flatten().flatten();
    let directories =
        own.map(|e| e.path().display().to_string()).filter(|path| path.starts_with(&session));
    let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let environment = fs::read(entry.path().join("environ")).ok()?;
        text(&environment).contains(&session).then(|| entry.path().display().to_string())
    });
    directories.chain(processes).collect()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn both_tenants_are_held_to_their_limits() {
    let sluice = Sluice::new();
    let child = demo(&sluice, "4").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(stderr, "");
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(keys(&report), ["aggregate", "device", "native_rate", "tenants"]);
    assert_eq!(report["device"]["kind"], "fake");
    assert_eq!(report["tenants"].as_array().unwrap().len(), 2);
    for (tenant, limit) in report["tenants"].as_array().unwrap().iter().zip([0.25, 0.75]) {
        assert_eq!(
            keys(tenant),
            [
                "compute_delivered",
                "compute_limit",
                "mem_granted_bytes",
                "mem_limit_bytes",
                "mem_stop",
                "name"
            ]
        );
        assert_eq!(tenant["compute_limit"], limit);
        // The demo's own check is stricter; this one also has to hold on a loaded machine.
        let delivered = tenant["compute_delivered"].as_f64().unwrap();
        assert!((delivered - limit).abs() < 0.1, "{stdout}");
        let [limit, granted] =
            ["mem_limit_bytes", "mem_granted_bytes"].map(|key| tenant[key].as_u64().unwrap());
        assert!(granted <= limit && granted > limit / 4, "{stdout}");
        assert_eq!(tenant["mem_stop"], "CUDA_ERROR_OUT_OF_MEMORY");
    }
    assert!(matches!(output.status.code(), Some(0 | 1)), "{stdout}");
    assert_eq!(traces_of(pid), [""; 0]);
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let sluice = Sluice::new();
    let mut child = demo(&sluice, "60").stdout(Stdio::null()).spawn().unwrap();
    eventually("the demo starts a process", || traces_of(child.id()).len() > 1);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(traces_of(child.id()), [""; 0]);
}

#[test]
fn every_function_of_the_simulated_driver_is_patched() {
    let sluice = Sluice::new();
    sluice.built("tenant", "tenant");
    let (code, stdout, stderr) = outcome(sluice.command().args(["hooks", "--fake-gpu"]));
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    for symbol in
        ["cuLaunchKernel", "cuMemAlloc_v2", "cuGraphLaunch_ptsz", "nvmlDeviceGetMemoryInfo"]
    {
        let row = stdout.lines().find(|line| line.split_whitespace().nth(1) == Some(symbol));
        assert!(row.is_some_and(|row| row.ends_with("patched")), "{symbol}: {row:?}\n{stdout}");
    }
    assert!(stdout.lines().last().unwrap().ends_with("0 failed"), "{stdout}");
}

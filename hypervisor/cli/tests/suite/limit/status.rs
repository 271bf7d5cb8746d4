//! What `sluice status` shows.

use serde_json::Value;

use super::program::{
    CONTEXT, DEVICE, DONE, GIB, MIB, Program, device_of, limit, lines_of, session_of, status,
};
use crate::support::{Sluice, outcome};

#[test]
fn the_settings_of_a_run_are_in_its_status() {
    let sluice = Sluice::new();
    let options = [
        "--mem",
        "24GiB",
        "--mem-real",
        "50%",
        "--compute",
        "30",
        "--burst",
        "60",
        "--weight",
        "7",
        "--priority",
        "low",
    ];
    let program = Program::run(&sluice, &options);
    let device = device_of(&sluice, &program);
    assert_eq!(device["memory"]["limit"], 24 * GIB);
    assert_eq!(device["memory"]["real"], 8 * GIB);
    let compute = serde_json::json!({
        "policy": "balance", "share_ppm": 300_000, "soft_ppm": 600_000, "weight": 7,
        "priority": "low", "density_ppm": null, "mean_ppm": 0, "recent_ppm": 0,
        "delivered_us": 0, "waited_us": 0, "sharing": null,
    });
    assert_eq!(device["compute"], compute);
    let lines = lines_of(&sluice, &program);
    assert!(lines.contains("memory  24GiB (8GiB on the device), 512.0 MiB used"), "{lines}");
    assert!(lines.contains("30% guaranteed, at most 60%, weight 7, priority low"), "{lines}");
    assert!(lines.contains("on_demand"), "{lines}");

    let (code, stdout, stderr) = limit(
        &sluice,
        &program.name(),
        &["--compute", "40", "--policy", "fixed", "--priority", "high", "--mem", "8GiB"],
    );
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.contains("memory was 24GiB (8GiB on the device), is now 8GiB"), "{stdout}");
    assert!(stdout.contains("priority low, is now 40% fixed"), "{stdout}");
    let compute = &device_of(&sluice, &program)["compute"];
    assert_eq!((&compute["policy"], &compute["share_ppm"]), (&"fixed".into(), &400_000.into()));
    assert_eq!(compute["soft_ppm"], Value::Null);
}

#[test]
fn the_json_has_one_shape() {
    let sluice = Sluice::new();
    let mut program = Program::run(&sluice, &["--mem", "2GiB"]);
    assert_eq!(program.tell("take 64"), DONE);
    let status = status(&sluice);
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&status), ["damaged", "elsewhere", "gpus", "overcommitted", "sessions"]);
    let session = session_of(&status, program.pid);
    let of_session = [
        "command",
        "container",
        "devices",
        "directory",
        "frozen",
        "name",
        "pod",
        "session",
        "uid",
        "user",
    ];
    assert_eq!(keys(&session), of_session);
    let directory = session::directory::told(&program.session);
    assert_eq!(session["directory"], directory.to_str().unwrap());
    assert_eq!(session["uid"], rustix::process::getuid().as_raw());
    let device = &session["devices"][0];
    assert_eq!(
        keys(device),
        ["age_us", "compute", "index", "memory", "processes", "refusals", "uuid"]
    );
    assert_eq!(device["uuid"], DEVICE);
    let settings = [
        "delivered_us",
        "density_ppm",
        "mean_ppm",
        "policy",
        "priority",
        "recent_ppm",
        "share_ppm",
        "sharing",
        "soft_ppm",
        "waited_us",
        "weight",
    ];
    assert_eq!(keys(&device["compute"]), settings);
    assert_eq!(device["compute"]["policy"], "none");
    let kinds =
        ["array", "context", "data", "driver", "graph", "headroom", "overcommitted", "pool"];
    let memory = &device["memory"];
    let figures =
        ["by_kind", "growth_refused", "left", "limit", "on_device", "over", "peak", "real", "used"];
    assert_eq!(keys(memory), figures);
    assert_eq!(keys(&memory["by_kind"]), kinds);
    assert_eq!(memory["by_kind"]["data"], 64 * MIB);
    assert_eq!(memory["by_kind"]["context"], CONTEXT);
    assert_eq!((&memory["real"], &memory["over"]), (&Value::Null, &Value::from(0)));
    assert_eq!(memory["left"], 2 * GIB - CONTEXT - 64 * MIB);
    assert_eq!(device["processes"].as_array().unwrap().len(), 1);
    let process = &device["processes"][0];
    let fields = [
        "by_kind",
        "bytes",
        "charged_us",
        "density_ppm",
        "holding",
        "host_pid",
        "name",
        "pid",
        "waiting",
    ];
    assert_eq!(keys(process), fields);
    assert_eq!(process["name"], "on_demand");
    assert_eq!((&process["bytes"], &process["holding"]), (&memory["used"], &Value::from(false)));
    assert_eq!(process["by_kind"], memory["by_kind"]);
}

/// Its pages would be another answer than the one that was asked for.
#[test]
fn a_daemon_that_is_named_has_to_answer() {
    let sluice = Sluice::new();
    let absent = sluice.folder().join("absent.sock");
    for words in [&["status"][..], &["status", "--json"], &["top", "--once"], &["explain", "1"]] {
        let mut command = sluice.command();
        let (code, stdout, stderr) = outcome(command.args(words).arg("--daemon").arg(&absent));
        assert_eq!((code, stdout.as_str()), (70, ""), "{words:?}: {stderr}");
        assert!(
            stderr.contains("no daemon answers there") && stderr.contains("; expected "),
            "{stderr}"
        );
    }
    // By the variable it is only preferred.
    let mut command = sluice.command();
    let (code, _, stderr) = outcome(command.arg("status").env("SLUICE_DAEMON", &absent));
    assert!(code == 0 && stderr.contains("showing the pages only"), "{stderr}");
}

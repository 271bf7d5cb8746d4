//! What people ask of a session: who it is, why it waits, what it used; and whether all is well.

use protocol::reports::{
    DoctorReport, ExplainReport, FindingState, HooksReport, LimitReport, ReasonWord,
};
use protocol::sessions::{DeviceReport, StatusReport};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::freeze::{Daemon, start};
use crate::limit::program::{CONTEXT, DEVICE, DONE, GIB, Program, REFUSED};
use crate::support::{Sluice, eventually, outcome};

/// The output is that of the type, whose schema is checked in, and has nothing more.
fn read<T: Serialize + DeserializeOwned>(stdout: &str) -> T {
    let value: T = serde_json::from_str(stdout).unwrap();
    assert_eq!(serde_json::to_string(&value).unwrap() + "\n", stdout);
    value
}

fn ask(sluice: &Sluice, arguments: &[&str]) -> (i32, String) {
    let (code, stdout, stderr) = outcome(sluice.command().args(arguments));
    assert_eq!(stderr, "", "{arguments:?}");
    (code, stdout)
}

#[test]
fn a_session_is_named_explained_limited_and_summed_up() {
    let sluice = Sluice::new();
    let name = format!("train-{}", std::process::id());
    let mut idle = sluice.run(&["--fake-gpu", "--device", "0", "--name", &name]);
    let script = r#"while ! [ -e "$GO" ]; do sleep 0.05; done
        "$TENANT" mem --api alloc --chunk 64MiB --cap 4GiB >"$RESULT""#;
    let (go, result) = (sluice.folder().join("go"), sluice.folder().join("result"));
    idle.env("GO", &go).env("RESULT", &result).env("TENANT", sluice.built("tenant", "tenant"));
    let idle = start(idle.args(["sh", "-c", script]));
    eventually("it is listed", || ask(&sluice, &["status"]).1.contains(&name));
    // Before its first use of a GPU it has limits, which can be changed.
    let (code, changed) =
        ask(&sluice, &["limit", &name, "--mem", "2GiB", "--compute", "40", "--json"]);
    let changed: LimitReport = read(&changed);
    assert_eq!((code, changed.taken_by_all, changed.devices.len()), (0, true, 1));
    let device = &changed.devices[0];
    assert_eq!((device.before.memory, device.after.memory), (None, Some(2 * GIB)));
    assert_eq!((device.after.share_ppm, device.uuid.to_string()), (400_000, DEVICE.to_owned()));
    let (_, lines) = ask(&sluice, &["status"]);
    let line = lines.lines().find(|line| line.contains(&name)).unwrap();
    for cell in ["  0  GPU-5a1ce000", "2.0 GiB", "40 %", "sh -c while", "GPU not used yet"] {
        assert!(line.contains(cell), "{cell}: {lines}");
    }
    let (code, unused) = ask(&sluice, &["explain", &name, "--json"]);
    let unused: ExplainReport = read(&unused);
    assert_eq!((code, unused.reasons[0].code), (0, ReasonWord::NotUsedYet));
    // A name is given once.
    let (code, _, stderr) = outcome(sluice.run(&["--name", &name]).args(["--", "true"]));
    assert!(code == 2 && stderr.contains("choose another"), "{stderr}");
    // The limit holds when it comes to use the GPU.
    std::fs::write(&go, "").unwrap();
    let granted = format!("\"granted_bytes\":{}", 2 * GIB - CONTEXT);
    let took = || std::fs::read_to_string(&result).is_ok_and(|text| text.contains(&granted));
    eventually("it takes what it may", took);
    drop(idle);
    eventually("the name is free", || !ask(&sluice, &["status"]).1.contains(&name));

    let limits = ["--name", &name, "--mem", "2GiB", "--compute", "40"];
    let mut program = Program::run(&sluice, &limits);
    assert_eq!(program.tell("take 1024"), DONE);
    assert_eq!(program.tell("take 1024"), REFUSED);
    let (code, refused) = ask(&sluice, &["explain", &program.pid.to_string(), "--json"]);
    let refused: ExplainReport = read(&refused);
    let process = refused.process.unwrap();
    assert_eq!((code, process.preloaded, process.uses_cuda), (1, Some(true), Some(true)));
    assert_eq!(refused.reasons[0].code, ReasonWord::Memory);
    assert_eq!(refused.devices[0].refused_bytes, Some(GIB));
    let text = &refused.reasons[0].text;
    assert!(
        text.contains("1.5 GiB of 2.0 GiB")
            && text.contains("an allocation of 1.0 GiB was refused"),
        "{text}"
    );
    // Its remedy works.
    let remedy = refused.reasons[0].remedy.clone().unwrap();
    let words: Vec<&str> = remedy.split_whitespace().skip(1).collect();
    assert_eq!(ask(&sluice, &words).0, 0, "{remedy}");
    assert_eq!(program.tell("take 1024"), DONE);

    let (_, status) = ask(&sluice, &["status", &name, "--json"]);
    let status: StatusReport = read(&status);
    let session = &status.sessions[0];
    assert_eq!((session.name.as_deref(), status.sessions.len()), (Some(name.as_str()), 1));
    assert_eq!(session.devices[0].index, Some(0));
    assert_eq!(session.devices[0].memory.peak, session.devices[0].memory.used);
    assert!(session.devices[0].compute.recent_ppm.is_some());
    let page = program.session.join(format!("{DEVICE}.page"));
    let (code, page) = ask(&sluice, &["status", "--page", page.to_str().unwrap()]);
    assert!(code == 0 && page.contains("2.5 GiB used") && page.contains("on_demand"), "{page}");
    assert!(!page.contains("not alive"), "{page}");
    // A copy says the same, of processes that hold nothing of it.
    let copy = sluice.folder().join("copy");
    fs::copy(program.session.join(format!("{DEVICE}.page")), &copy).unwrap();
    let (code, page) = ask(&sluice, &["status", "--page", copy.to_str().unwrap()]);
    let unseen = format!("not alive on this node (or the page is a copy): {}", program.pid);
    assert!(code == 0 && page.contains("2.5 GiB used") && page.contains(&unseen), "{page}");
    let (_, page) = ask(&sluice, &["status", "--page", copy.to_str().unwrap(), "--json"]);
    let page: DeviceReport = read(&page);
    assert_eq!((page.memory.used, page.unknown), (5 << 29, page.processes.len()));
    // A process that Sluice does not know.
    let (code, own) = ask(&sluice, &["explain", &std::process::id().to_string(), "--json"]);
    let own: ExplainReport = read(&own);
    assert_eq!((code, own.reasons[0].code), (1, ReasonWord::NotPreloaded));
}

#[test]
fn a_summary_and_the_choice_of_gpus_as_for_docker() {
    let sluice = Sluice::new();
    let tenant = sluice.built("tenant", "tenant");
    let mut run = sluice.run(&["--fake-gpu", "--gpus", "device=1", "--summary"]);
    // Without '--'.
    run.args(["--mem", "1GiB", "--compute", "50"]).arg(&tenant);
    run.args(["dense", "--kernel-us", "2000", "--seconds", "0.5"]);
    let (code, stdout, stderr) = outcome(&mut run);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("-000000000001"), "{stdout}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for words in
        ["peak memory 512.0 MiB of 1.0 GiB", " GPU-seconds, ", "(limit: 50% fixed); waited "]
    {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    let seen = |gpus: &str| {
        let mut run = sluice.run(&["--fake-gpu", "--gpus", gpus]);
        outcome(run.args(["sh", "-c", "echo \"$CUDA_VISIBLE_DEVICES\""])).1.matches("GPU-").count()
    };
    assert_eq!((seen("all"), seen("1"), seen("\"device=0,1\"")), (0, 1, 2));
    let (code, _, stderr) = outcome(sluice.run(&["--fake-gpu", "--gpus", "3"]).arg("true"));
    assert!(code == 2 && stderr.contains("expected at most 2"), "{stderr}");
    let (code, _, stderr) = outcome(sluice.run(&["--fake-gpu", "--gpus", "device=7"]).arg("true"));
    assert!(code == 2 && stderr.contains("--gpus: device '7' is no such device"), "{stderr}");
}

#[test]
fn the_daemon_is_the_source_where_there_is_one() {
    let sluice = Sluice::new();
    let daemon = Daemon::start(&sluice);
    let socket = daemon.socket.to_str().unwrap();
    let mut run = sluice.command();
    run.args(["run", "--fake-gpu", "--device", "0", "--compute", "40", "--daemon", socket]);
    let name = format!("served-{}", std::process::id());
    run.args(["--name", &name]).arg(sluice.built("tenant", "tenant"));
    let _program = start(run.args(["dense", "--kernel-us", "2000", "--seconds", "120"]));
    let status = || {
        let (_, stdout) = ask(&sluice, &["status", "--json", "--all", "--daemon", socket]);
        let status: StatusReport = read(&stdout);
        assert_eq!(status.elsewhere, []);
        status.sessions.into_iter().find(|found| found.name.as_ref() == Some(&name))
    };
    let got = || {
        let session = status()?;
        session.devices.first()?.compute.recent_ppm.filter(|&ppm| ppm > 0)
    };
    eventually("the share delivered is told", || got().is_some());
    let (code, stdout) = ask(&sluice, &["freeze", &name, "--daemon", socket]);
    assert_eq!(code, 0, "{stdout}");
    assert!(status().unwrap().frozen);
    let (code, frozen) = ask(&sluice, &["explain", &name, "--daemon", socket]);
    assert!(code == 1 && frozen.contains(&format!("-> sluice thaw {name}\n")), "{frozen}");
    // What is served is not pruned.
    let (_, pruned) = ask(&sluice, &["prune", "--dry-run"]);
    assert!(!pruned.contains(&status().unwrap().session), "{pruned}");
}

#[test]
fn what_is_left_over_is_pruned_by_age() {
    let sluice = Sluice::new();
    let program = Program::run(&sluice, &[]);
    let (name, session) = (program.name(), program.session.clone());
    // Its owner dies.
    let owner = name.split('-').next().unwrap().parse().unwrap();
    let owner = rustix::process::Pid::from_raw(owner).unwrap();
    rustix::process::kill_process(owner, rustix::process::Signal::KILL).unwrap();
    // Less than what another test's `sluice run` removes it after.
    let age = || crate::support::age(&session, std::time::Duration::from_secs(8 * 60));
    age();
    let prune = |options: &[&str]| ask(&sluice, &[&["prune"], options].concat()).1;
    assert!(!prune(&["--older-than", "5min"]).contains(&name), "it has a process");
    drop(program);
    eventually("its process has ended", || {
        age();
        prune(&["--older-than", "5min", "--dry-run"]).contains(&name)
    });
    assert!(!prune(&["--older-than", "2h"]).contains(&name));
    assert!(session.exists());
    assert!(prune(&["--older-than", "5min"]).contains(&format!("removed: {name}\n")));
    assert!(!session.exists());
    let (code, _, stderr) = outcome(sluice.command().args(["prune", "--older-than", "5s"]));
    assert!(code == 2 && stderr.contains("expected 1min or more"), "{stderr}");
}

#[test]
fn the_doctor_names_what_is_broken_and_the_hooks_have_a_document() {
    let mut sluice = Sluice::new();
    let (code, hooks) = ask(&sluice, &["hooks", "--fake-gpu", "--json"]);
    let hooks: HooksReport = read(&hooks);
    assert_eq!((code, hooks.failed), (0, 0));
    assert_eq!(hooks.functions.len(), hooks.patched + hooks.absent);
    let engines: Vec<_> = hooks.engines.keys().map(String::as_str).collect();
    assert_eq!(engines, ["libcuda.so.1", "libnvidia-ml.so.1"]);
    assert!(hooks.engines.values().all(|engine| engine == "detour"), "{:?}", hooks.engines);
    // Not the limiter.
    sluice.set("SLUICE_LIBRARY", "/bin/true");
    let (code, report) = ask(&sluice, &["doctor", "--fake-gpu", "--daemon", "none", "--json"]);
    let report: DoctorReport = read(&report);
    assert_eq!((code, report.healthy), (1, false));
    let state = |check: &str| report.findings.iter().find(|one| one.check == check).unwrap().state;
    assert_eq!(state("driver"), FindingState::Ok);
    assert_eq!(state("functions"), FindingState::Skipped);
    assert_eq!(state("memory limit"), FindingState::Skipped);
    let broken = report.findings.iter().find(|one| one.state == FindingState::Broken).unwrap();
    assert!(broken.check.starts_with('l'), "{broken:?}");
    assert_eq!(broken.mend.as_deref(), Some("unset SLUICE_LIBRARY"));
}

/// In a folder that shows no way of its own, and in one of `install.sh`.
#[test]
fn the_doctor_says_what_puts_missing_parts_back() {
    let sluice = Sluice::new();
    let prefix = sluice.folder().join("prefix");
    std::fs::create_dir_all(prefix.join("bin")).unwrap();
    std::fs::create_dir_all(prefix.join("lib/sluice")).unwrap();
    let own = prefix.join("bin/sluice");
    std::fs::copy(env!("CARGO_BIN_EXE_sluice"), &own).unwrap();
    let mend = || {
        let mut doctor = sluice.command_of(&own);
        doctor.args(["doctor", "--fake-gpu", "--daemon", "none", "--json"]);
        let (code, stdout, stderr) = outcome(&mut doctor);
        assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
        let report: DoctorReport = read(&stdout);
        let of = |check: &str| report.findings.iter().find(|one| one.check == check).unwrap();
        assert_eq!(of("library").mend, of("driver").mend);
        of("library").mend.clone().unwrap()
    };
    let prefix = prefix.to_str().unwrap();
    let unknown = mend();
    assert!(unknown.ends_with(&format!("/install.sh --prefix {prefix}")), "{unknown}");
    std::fs::write(Path::new(prefix).join("lib/sluice/installed"), "bin/sluice\n").unwrap();
    let installed = mend();
    assert!(installed.starts_with(&format!("sudo ./install.sh --prefix {prefix} ")), "{installed}");
}

/// A daemon whose node shows no GPU serves the simulated one.
#[test]
fn the_doctor_takes_a_daemon_without_a_gpu_for_whole_where_the_gpu_is_simulated() {
    let sluice = Sluice::new();
    let options = ["--nvml", "none"].map(OsStr::new);
    let daemon = Daemon::start_with(&sluice, sluice.folder().join("d.sock"), &options);
    let said = |fake: &[&str]| {
        let asked = ["doctor", "--json", "--daemon", daemon.socket.to_str().unwrap()];
        let (_, stdout, _) = outcome(sluice.command().args([&asked, fake].concat()));
        let report: DoctorReport = read(&stdout);
        report.findings.into_iter().find(|one| one.check == "daemon").unwrap()
    };
    let real = said(&[]);
    assert_eq!(real.state, FindingState::Broken, "{real:?}");
    assert!(real.found.contains("no GPU"), "{real:?}");
    let simulated = said(&["--fake-gpu"]);
    assert_eq!(simulated.state, FindingState::Ok, "{simulated:?}");
    assert!(simulated.found.contains("the simulated GPU"), "{simulated:?}");
}

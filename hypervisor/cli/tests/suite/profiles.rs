//! Profiles, completions, manual pages; and the simulated GPU's `nvidia-smi`, which shows what they did.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use crate::freeze::start;
use crate::support::{Sluice, eventually, outcome};

const TOTAL: [&str; 3] = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader"];

/// A session's memory on each of its devices, as nvidia-smi shows it.
fn total(sluice: &Sluice, options: &[&str]) -> (i32, String, String) {
    outcome(sluice.run(&[&["--fake-gpu"], options].concat()).args(TOTAL))
}

#[test]
fn a_profile_fills_in_what_the_command_line_leaves_open() {
    let mut sluice = Sluice::new();
    let folder = sluice.folder().join("settings");
    let file = folder.join("sluice/config.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "[profile.small]\nmem = \"4GiB\"\ncompute = 25\ndevice = [1]\n").unwrap();
    sluice.set("XDG_CONFIG_HOME", folder.to_str().unwrap());
    let shown = |options: &[&str]| total(&sluice, options).1;
    // NVML shows all devices; the limits are for the second.
    assert_eq!(shown(&["--profile", "small"]), "16384 MiB\n4096 MiB\n");
    let mut complete = sluice.command();
    complete.args(["--", "sluice", "run", "--profile", "s"]).env("_SLUICE_COMPLETE", "bash");
    complete.env("_CLAP_COMPLETE_INDEX", "3").env("_CLAP_IFS", "\n");
    assert_eq!(outcome(&mut complete).1.trim(), "small");
    assert_eq!(shown(&["--profile", "small", "--mem", "1GiB"]).lines().last(), Some("1024 MiB"));
    let (code, _, stderr) = total(&sluice, &["--profile", "large"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("--profile 'large': ") && stderr.contains("small"), "{stderr}");
    let check =
        |arguments: &[&str]| outcome(sluice.command().args(["config", "check"]).args(arguments));
    let (code, stdout, stderr) = check(&[]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.contains(": ok; profiles: small\n"), "{stdout}");
    fs::write(&file, "[profile.small]\nmem = \"lots\"\n").unwrap();
    for (code, _, stderr) in
        [check(&[]), check(&[file.to_str().unwrap()]), total(&sluice, &["--profile", "small"])]
    {
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains("profile 'small': mem = lots: "), "{stderr}");
    }
    fs::write(&file, "[profile.a]\nmem = 8\ncompute = 101\n[profile.b]\nweight = 0\n").unwrap();
    let (code, _, stderr) = check(&[]);
    assert_eq!((code, stderr.lines().count()), (2, 3), "{stderr}");
    let (code, _, stderr) = check(&["/no/such/file"]);
    assert!(code == 70 && stderr.contains("cannot read /no/such/file"), "{stderr}");
}

#[test]
fn shells_and_man_are_told_of_the_command_line() {
    let sluice = Sluice::new();
    for (shell, words) in [
        ("bash", "complete -o nospace"),
        ("zsh", "#compdef sluice"),
        ("fish", "complete --keep-order --exclusive --command sluice"),
    ] {
        let (code, stdout, _) = outcome(sluice.command().args(["completions", shell]));
        assert!(code == 0 && stdout.contains(words), "{shell}: {stdout}");
    }
    // What bash does when TAB is pressed.
    let complete = |words: &[&str]| {
        let mut command = sluice.command();
        command.args(["--", "sluice"]).args(words).env("_SLUICE_COMPLETE", "bash");
        command.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_IFS", "\n");
        outcome(&mut command)
    };
    let mut run = sluice.run(&["--fake-gpu", "--mem", "1GiB", "--name", "train-7"]);
    let _running = start(run.args(["--", "sleep", "60"]));
    for command in ["limit", "explain", "status", "top", "freeze"] {
        eventually("the running session is completed", || {
            complete(&[command, "tr"]).1.trim() == "train-7"
        });
    }
    assert_eq!(complete(&["limit", "x"]).1, "");
    assert!(!complete(&[""]).1.contains("load-nvml"), "it is no command for people");
    let folder = sluice.folder().join("man");
    let (code, _, stderr) = outcome(sluice.command().arg("man").arg(&folder));
    assert_eq!(code, 0, "{stderr}");
    let page = fs::read_to_string(folder.join("sluice-run.1")).unwrap();
    assert!(page.contains(".TH") && page.contains("\\-\\-compute"), "{page}");
    assert!(folder.join("sluice.1").is_file() && folder.join("sluice-config-check.1").is_file());
    assert!(!folder.join("sluice-load-nvml.1").exists(), "it is no command for people");
}

#[test]
fn the_simulated_gpu_has_an_nvidia_smi_that_shows_the_limits() {
    let sluice = Sluice::new();
    let run = |arguments: &[&str]| {
        let mut run = sluice.run(&["--fake-gpu", "--mem", "1GiB"]);
        let (code, stdout, stderr) = outcome(run.arg("--").args(arguments));
        assert_eq!((code, stderr.as_str()), (0, ""), "{arguments:?}: {stdout}");
        stdout
    };
    let table = run(&["nvidia-smi"]);
    assert!(
        table.contains("|       0MiB / 1024MiB |") || table.contains(" 0MiB / 1024MiB |"),
        "{table}"
    );
    assert!(
        table.contains("NVIDIA Fake GPU") && table.contains("No running processes found"),
        "{table}"
    );
    assert_eq!(run(&["nvidia-smi", "-L"]).lines().count(), 2);
    assert_eq!(run(&["nvidia-smi", "-i", "1", "-L"]).lines().count(), 1);
    // A program in the same session.
    let tenant = sluice.built("tenant", "tenant");
    let script = r#"
        "$0" mem --api alloc --chunk 256MiB --cap 256MiB --hold 60 >"$PIDFILE" &
        until nvidia-smi --query-compute-apps=used_memory --format=csv,noheader,nounits | grep -q 768; do sleep 0.05; done
        nvidia-smi --query-compute-apps=process_name,used_memory --format=csv
        nvidia-smi
        kill $!
    "#;
    // And one in no session, which holds as much of the same device. NVML lists it to those in no session.
    let mut outside = sluice.command_of(&tenant);
    let driver = sluice.folder().join("driver");
    fs::create_dir(&driver).unwrap();
    let links = [("libfake_cuda.so", "libcuda.so.1"), ("libfake_nvml.so", "libnvidia-ml.so.1")];
    for (file, name) in links {
        symlink(sluice.built(file, "fake-cuda"), driver.join(name)).unwrap();
    }
    let hold = ["mem", "--api", "alloc", "--chunk", "64MiB", "--cap", "64MiB", "--hold", "60"];
    outside.env("LD_LIBRARY_PATH", &driver).args(hold).stdout(Stdio::null());
    let mut outside = outside.spawn().unwrap();
    let all = || {
        let mut smi = sluice.command_of(sluice.built("fake-nvidia-smi", "fake-smi"));
        let query = ["--query-compute-apps=used_memory", "--format=csv,noheader,nounits"];
        outcome(smi.env("LD_LIBRARY_PATH", &driver).args(query)).1
    };
    eventually("the other program is listed", || all().contains("576"));
    let shown = run(&["sh", "-c", script, tenant.to_str().unwrap()]);
    let listed = all();
    outside.kill().unwrap();
    outside.wait().unwrap();
    assert_eq!(listed.trim(), "576");
    let of_session = |line: &&str| line.contains("/tenant") && line.contains("MiB");
    assert_eq!(shown.lines().filter(of_session).count(), 2, "one row in each: {shown}");
    assert!(shown.starts_with("process_name, used_gpu_memory [MiB]\n"), "{shown}");
    assert!(
        shown.contains("/tenant, 768 MiB\n") && shown.contains("768MiB / 1024MiB |"),
        "{shown}"
    );
}

//! `sluice top`, `record` and `plot` beside programs on the simulated GPU.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread::spawn;
use std::time::Duration;

use protocol::record::{FigureSource, Sample};
use protocol::sessions::StatusReport;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::freeze::{Daemon, Running, start};
use crate::limit::program::{CONTEXT, DEVICE, GIB};
use crate::support::{Sluice, eventually, outcome};

/// A program that takes memory and half of the device's time.
struct Busy {
    _program: Running,
    name: String,
    socket: PathBuf,
    // It ends after its program.
    daemon: Daemon,
}

impl Busy {
    fn start(sluice: &Sluice) -> Self {
        let nvml = sluice.built("libfake_nvml.so", "fake-nvml");
        let daemon = Daemon::start_with(
            sluice,
            sluice.folder().join("d.sock"),
            &["--nvml".as_ref(), nvml.as_os_str()],
        );
        let mut run = sluice.command();
        let name = format!("busy-{}", std::process::id());
        run.args(["run", "--fake-gpu", "--device", "0", "--mem", "2GiB", "--compute", "50"]);
        run.args(["--name", &name, "--daemon"]).arg(&daemon.socket);
        run.arg(sluice.built("tenant", "tenant"));
        let program = start(run.args(["dense", "--kernel-us", "2000", "--seconds", "300"]));
        let busy = Self { _program: program, name, socket: daemon.socket.clone(), daemon };
        eventually("a share was delivered", || {
            let sample = busy.sample(sluice);
            let own =
                sample.status.sessions.iter().find(|one| one.name.as_ref() == Some(&busy.name));
            let device = own.and_then(|own| own.devices.first());
            let seen = sample.devices.first().is_some_and(|device| device.power_mw.is_some());
            seen && device.is_some_and(|device| device.compute.delivered_us > 0)
        });
        busy
    }

    fn ask(&self, sluice: &Sluice, arguments: &[&str]) -> (i32, String, String) {
        let daemon = ["--daemon", self.socket.to_str().unwrap()];
        outcome(sluice.command().args(arguments).args(daemon))
    }

    fn sample(&self, sluice: &Sluice) -> Sample {
        let (code, stdout, stderr) = self.ask(sluice, &["top", "--json"]);
        assert_eq!((code, stderr.as_str()), (0, ""));
        let sample: Sample = serde_json::from_str(&stdout).unwrap();
        assert_eq!(serde_json::to_string(&sample).unwrap() + "\n", stdout);
        sample
    }
}

/// Where no terminal of its user is: by the API, and in metrics.
#[test]
fn the_daemon_tells_the_name_that_a_session_was_given() {
    let sluice = Sluice::new();
    let busy = Busy::start(&sluice);
    let client = &busy.daemon.client;
    eventually("it is called so", || {
        let list: api::SessionList =
            client.get(api::path::SESSIONS, Duration::from_secs(20)).unwrap();
        list.sessions.iter().any(|session| session.called.as_ref() == Some(&busy.name))
    });
    let mut stream = UnixStream::connect(&busy.socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let metrics = std::io::read_to_string(stream).unwrap();
    let label = format!("called=\"{}\"", busy.name);
    for name in ["sluice_session_share_ratio", "sluice_session_memory_limit_bytes"] {
        let told = metrics.lines().any(|line| line.starts_with(name) && line.contains(&label));
        assert!(told, "{name}: {metrics}");
    }
}

#[test]
fn devices_and_sessions_are_shown_once_where_there_is_no_terminal() {
    let sluice = Sluice::new();
    let busy = Busy::start(&sluice);
    let sample = busy.sample(&sluice);
    assert!(sample.daemon);
    let device = &sample.devices[0];
    assert_eq!((device.uuid.to_string().as_str(), device.index), (DEVICE, Some(0)));
    assert_eq!(device.source, FigureSource::Daemon);
    assert_eq!(device.memory_total_bytes, Some(16 * GIB));
    eventually("the device's memory is that of the session", || {
        let sample = busy.sample(&sluice);
        let own = sample.status.sessions.iter().find(|one| one.name.as_ref() == Some(&busy.name));
        let used = own.unwrap().devices[0].memory.used;
        used >= CONTEXT && sample.devices[0].memory_used_bytes == Some(used)
    });
    for arguments in [&["top"][..], &["top", "--once"]] {
        let (code, stdout, stderr) = busy.ask(&sluice, arguments);
        assert_eq!((code, stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(!stdout.contains('\u{1b}'), "{stdout}");
        let line = stdout.lines().find(|line| line.contains(busy.name.as_str())).unwrap();
        assert!(line.contains(" 50 % 512.0 MiB/2.0 GiB"), "{stdout}");
        for words in ["GPU 0  NVIDIA Fake GPU", "/700 W", " °C", "GPU 1", "16.0 GiB", "root"] {
            let is_user = words == "root" && !rustix::process::getuid().is_root();
            assert!(is_user || stdout.contains(words), "{words}: {stdout}");
        }
    }
    let (code, detail, _) = busy.ask(&sluice, &["top", "--once", &busy.name]);
    assert!(
        code == 0 && detail.contains("context 512.0 MiB") && detail.contains("tenant"),
        "{detail}"
    );
    let (code, _, stderr) = busy.ask(&sluice, &["top", "--once", "no-such"]);
    assert!(code == 2 && stderr.contains("'no-such': no such session"), "{stderr}");
    // Without the daemon's word there are no figures of devices; the sessions are there.
    let (code, stdout, _) = outcome(sluice.command().args(["top", "--once", "--daemon", "none"]));
    assert!(
        code == 0 && stdout.contains("no daemon") && stdout.contains(busy.name.as_str()),
        "{stdout}"
    );
    assert!(stdout.contains("no figures: start 'hypervisor daemon'"), "{stdout}");
}

#[test]
fn what_is_recorded_is_replayed_and_drawn() {
    let sluice = Sluice::new();
    let busy = Busy::start(&sluice);
    let file = |name: &str| sluice.folder().join(name).to_str().unwrap().to_owned();
    let (run, plot, picture) = (file("run.jsonl"), file("run.svg"), file("top.svg"));
    let record = ["record", &run, "--for", "1s", "--interval", "200ms", "--session", &busy.name];
    let (code, _, stderr) = busy.ask(&sluice, &record);
    assert!(code == 0 && stderr.contains(" samples to "), "{stderr}");
    let (code, _, stderr) = busy.ask(&sluice, &record);
    assert!(code == 2 && stderr.contains("exists and would be overwritten"), "{stderr}");
    let lines: Vec<Sample> = fs::read_to_string(&run)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines.len() >= 2, "{}", lines.len());
    assert!(lines.iter().all(|line| line.status.sessions.len() == 1));
    let delivered = |line: &Sample| line.status.sessions[0].devices[0].compute.delivered_us;
    assert!(delivered(&lines[lines.len() - 1]) > delivered(&lines[0]));
    let ok = |arguments: &[&str]| {
        let (code, stdout, stderr) = outcome(sluice.command().args(arguments));
        assert_eq!(code, 0, "{arguments:?}: {stderr}");
        stdout
    };
    ok(&["plot", &run, "-o", &plot]);
    let svg = fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains(&busy.name) && svg.contains("memory, GiB"));
    // Its last sample, byte for byte.
    let last: Sample = serde_json::from_str(&ok(&["top", "--replay", &run, "--json"])).unwrap();
    assert_eq!(Some(&last), lines.last());
    assert!(ok(&["top", "--replay", &run]).contains("replay "));
    ok(&["top", "--replay", &run, "--picture", &picture, &busy.name]);
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("waiting"), "{svg}");
    // `top` records in the same format.
    let own = file("own.jsonl");
    busy.ask(&sluice, &["top", "--once", "--record", &own]);
    assert!(ok(&["top", "--replay", &own]).contains(busy.name.as_str()));
    let (code, _, stderr) = outcome(sluice.command().args(["plot", "/dev/null", "-o", &plot]));
    assert!(code == 2 && stderr.contains("has no samples"), "{stderr}");
}

/// A terminal of 80 columns and 24 lines with a program in it.
struct Terminal {
    keys: fs::File,
    output: Receiver<Vec<u8>>,
    screen: vt100::Parser,
    child: std::process::Child,
}

impl Terminal {
    fn start(mut command: Command) -> Self {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&main, size).unwrap();
        let path = ptsname(&main, Vec::new()).unwrap().into_string().unwrap();
        let open = || fs::OpenOptions::new().read(true).write(true).open(Path::new(&path)).unwrap();
        command.stdin(open()).stdout(open()).stderr(open()).env("TERM", "xterm-256color");
        let child = command.spawn().unwrap();
        let keys = fs::File::from(main.try_clone().unwrap());
        let (sender, output) = channel();
        spawn(move || read_all(main, &sender));
        Self { keys, output, screen: vt100::Parser::new(24, 80, 0), child }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is to be seen.
    fn shows(&mut self, words: &str) {
        eventually(words, || {
            while let Ok(bytes) = self.output.try_recv() {
                self.screen.process(&bytes);
            }
            self.screen.screen().contents().contains(words)
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_all(main: OwnedFd, to: &std::sync::mpsc::Sender<Vec<u8>>) {
    let mut main = fs::File::from(main);
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = main.read(&mut bytes) {
        if to.send(bytes[..length].to_vec()).is_err() {
            return;
        }
    }
}

#[test]
fn in_a_terminal_a_limit_is_changed_and_a_session_is_frozen_after_a_yes() {
    let sluice = Sluice::new();
    let busy = Busy::start(&sluice);
    let mut top = sluice.command();
    top.args(["top", "--interval", "200ms", "--daemon"]).arg(&busy.socket).env("NO_COLOR", "1");
    let mut terminal = Terminal::start(top);
    terminal.shows("512.0 MiB/2.0 GiB");
    terminal.press(&format!("/{}\r", busy.name));
    terminal.shows("filter: ");
    let own = || {
        let sample = busy.sample(&sluice);
        let is_it = |one: &protocol::sessions::SessionReport| one.name.as_ref() == Some(&busy.name);
        sample.status.sessions.into_iter().find(is_it).unwrap()
    };
    // The first time it is not confirmed.
    terminal.press("l--mem 3GiB --compute 30\r");
    terminal.shows("sure?");
    terminal.press("n");
    terminal.shows("nothing was changed");
    assert_eq!(own().devices[0].memory.limit, Some(2 * GIB));
    terminal.press("l--mem 3GiB --compute 30\r");
    terminal.shows("sure?");
    terminal.press("y");
    eventually("the limits are changed", || {
        let device = &own().devices[0];
        (device.memory.limit, device.compute.share_ppm) == (Some(3 * GIB), 300_000)
    });
    terminal.press("f");
    terminal.shows("freeze");
    terminal.press("y");
    eventually("it is frozen", || own().frozen);
    terminal.press("\r");
    terminal.shows("samples: F frozen");
    terminal.press("q");
    let mut status = None;
    eventually("it ends", || {
        status = terminal.child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(0));
}

#[test]
fn in_a_terminal_no_line_of_status_is_wider() {
    let sluice = Sluice::new();
    let name = format!("{:x<64}", format!("wide-{}-", std::process::id()));
    let mut run = sluice.run(&["--fake-gpu", "--device", "0", "--mem", "2GiB", "--name", &name]);
    let _program = start(run.args(["sleep", "300"]));
    let lines = |text: String| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with("DAMAGED")).map(str::to_owned).collect()
    };
    let status = ["status", "--daemon", "none"];
    eventually("it is listed", || outcome(sluice.command().args(status)).1.contains(name.as_str()));
    let mut command = sluice.command();
    command.args(status);
    let terminal = Terminal::start(command);
    let bytes: Vec<u8> = terminal.output.iter().flatten().collect();
    let seen = lines(String::from_utf8(bytes).unwrap());
    assert!(seen.iter().all(|line| line.chars().count() <= 80), "{seen:#?}");
    assert!(!seen[0].contains("UUID") && seen[0].contains("NAME"), "{seen:#?}");
    assert!(seen.iter().any(|line| line.contains(&name[..7]) && line.contains('…')), "{seen:#?}");
}

#[test]
fn a_recording_says_that_it_waits_for_its_session() {
    let sluice = Sluice::new();
    let file = sluice.folder().join("run.jsonl");
    let mut record = sluice.command();
    record.arg("record").arg(&file).args(["--session", "nosuch", "--daemon", "none"]);
    let (code, _, stderr) = outcome(record.args(["--for", "500ms", "--interval", "100ms"]));
    assert_eq!(code, 0, "{stderr}");
    let waits = "sluice: no session nosuch yet; waiting for it\n";
    assert!(stderr.starts_with(waits) && stderr.lines().count() == 2, "{stderr}");
}

#[test]
fn shares_of_more_than_a_gpu_are_shown_by_status_and_top() {
    let sluice = Sluice::new();
    let busy = Busy::start(&sluice);
    let said = "shares on GPU 0 add up to 150.0 %";
    assert_eq!(busy.sample(&sluice).status.overcommitted, []);
    let mut run = sluice.command();
    run.args(["run", "--fake-gpu", "--device", "0", "--compute", "100", "--daemon"]);
    run.arg(&busy.socket).arg(sluice.built("tenant", "tenant"));
    let _other = start(run.args(["dense", "--kernel-us", "2000", "--seconds", "300"]));
    eventually("top --json tells", || {
        let found = busy.sample(&sluice).status.overcommitted;
        found.iter().any(|gpu| gpu.notice == said && gpu.shares_ppm == 1_500_000)
    });
    let (_, status, _) = busy.ask(&sluice, &["status", "--json"]);
    let status: StatusReport = serde_json::from_str(&status).unwrap();
    assert_eq!(status.overcommitted, busy.sample(&sluice).status.overcommitted);
    for command in [&["top", "--once"][..], &["status"], &["status", &busy.name]] {
        let (_, text, _) = busy.ask(&sluice, command);
        assert!(text.contains(said), "{command:?}: {text}");
    }
}

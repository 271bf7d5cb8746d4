//! `sluice` and a daemon that is reached by TCP.

use std::fs::{self, File, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use http_bidir_comm::client::BlockingHttpClient;
use protocol::record::Sample;
use protocol::reports::{DoctorReport, Finding, FindingState};
use protocol::{DeviceQuota, Register, Registered, VERSION, path};
use rustix::process::Signal;

use crate::authority::Authority;
use crate::freeze::{Daemon, PATIENCE, start};
use crate::support::{Sluice, eventually, outcome};

const TOKEN: &str = "0123456789abcdef";

/// The port at which a daemon says that it listens: it was given one that nobody had.
fn port_in(log: &Path) -> u16 {
    let mut port = None;
    eventually("the daemon says its port", || {
        let said = fs::read_to_string(log).unwrap();
        let address = said.split("address=").nth(1).and_then(|rest| rest.lines().next());
        let address = address.and_then(|address| address.trim().parse::<SocketAddr>().ok());
        port = address.map(|address| address.port());
        port.is_some()
    });
    port.unwrap()
}

fn secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

/// A session of this process, that only the daemon knows.
fn register(client: &BlockingHttpClient) {
    let uuid = "GPU-5a1ce000-0000-4000-8000-000000000000".parse().unwrap();
    let devices = vec![DeviceQuota::fixed(uuid, 250_000)];
    let message = Register { protocol: VERSION, session: "far".to_owned(), devices, gates: None };
    client.post::<_, Registered>(path::REGISTER, &message, PATIENCE).unwrap();
}

struct Far {
    sluice: Sluice,
    port: u16,
    daemon: Daemon,
}

impl Far {
    /// A daemon on a port, with a session, and with TLS if there is a CA.
    fn start(authority: Option<&Authority>) -> Self {
        let sluice = Sluice::new();
        let at = |name: &str| sluice.folder().join(name);
        secret(&at("token"), TOKEN);
        let mut command = sluice.command_of(sluice.built("hypervisor", "hypervisor"));
        command.args(["daemon", "--nvml", "none", "--listen", "127.0.0.1:0", "--token-file"]);
        command.arg(at("token"));
        let (certificate_file, key_file) = (at("cert.pem"), at("key.pem"));
        if let Some(authority) = authority {
            let (certificate, key) = authority.signs("127.0.0.1");
            secret(&certificate_file, &certificate);
            secret(&key_file, &key);
            secret(&at("ca.pem"), &authority.pem);
            command.arg("--tls-cert").arg(certificate_file).arg("--tls-key").arg(key_file);
        }
        command.stderr(File::create(at("log")).unwrap());
        let daemon = Daemon::start_by(&mut command, at("elsewhere.sock"));
        register(&daemon.client);
        Self { port: port_in(&at("log")), sluice, daemon }
    }

    /// `sluice` with the variables that name the daemon.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sluice.command();
        command.env("HYPERVISOR_IP", "127.0.0.1").env("HYPERVISOR_PORT", self.port.to_string());
        command.args(arguments);
        command
    }

    fn file(&self, name: &str) -> String {
        self.sluice.folder().join(name).display().to_string()
    }
}

#[test]
fn the_variables_of_an_address_and_a_token_show_another_node() {
    let far = Far::start(None);
    let token = far.file("token");
    for set in [("SLUICE_TOKEN_FILE", &*token), ("SLUICE_TOKEN", TOKEN)] {
        let (code, stdout, stderr) = outcome(far.command(&["status"]).env(set.0, set.1));
        assert!(code == 0 && stdout.contains("far") && stderr.is_empty(), "{stdout}{stderr}");
    }
    for words in [&["status", "far", "--json"][..], &["explain", "far"], &["top", "--once"]] {
        let (_, stdout, stderr) = outcome(far.command(words).env("SLUICE_TOKEN", TOKEN));
        assert!(stdout.contains("far") && stderr.is_empty(), "{words:?}: {stdout}{stderr}");
    }
    // Without a token, with a wrong one, and with one that is none.
    let (code, stdout, stderr) = outcome(&mut far.command(&["status"]));
    assert!(code == 70 && stdout.is_empty() && stderr.contains("SLUICE_TOKEN_FILE"), "{stderr}");
    let mut wrong = far.command(&["status"]);
    let (code, _, stderr) = outcome(wrong.env("SLUICE_TOKEN", "0123456789abcdeg"));
    assert!(code == 70 && stderr.contains("401") && !stderr.contains("0123"), "{stderr}");
    let (code, _, stderr) = outcome(far.command(&["status"]).env("SLUICE_TOKEN", "short"));
    assert!(code == 2 && stderr.contains("16 visible") && !stderr.contains("short"), "{stderr}");
    // A CA where nothing is encrypted.
    secret(Path::new(&far.file("ca.pem")), &Authority::new().pem);
    let mut command = far.command(&["status"]);
    command.env("SLUICE_TOKEN", TOKEN).env("SLUICE_CA_FILE", far.file("ca.pem"));
    let (code, _, stderr) = outcome(&mut command);
    assert!(code == 70 && stderr.contains("does not speak TLS"), "{stderr}");
    // The option and the other variable count more.
    let mut local = far.command(&["status"]);
    let (code, stdout, _) = outcome(local.env("SLUICE_DAEMON", "none"));
    assert!(code == 0 && !stdout.contains("far"), "{stdout}");
    let mut local = far.command(&["status", "--daemon"]);
    let (code, stdout, _) = outcome(local.arg(&far.daemon.socket));
    assert!(code == 0 && stdout.contains("far"), "{stdout}");
}

#[test]
fn what_can_only_be_read_is_not_changed() {
    let far = Far::start(None);
    for words in [
        &["freeze", "far"][..],
        &["thaw", "far"],
        &["limit", "far", "--compute", "10"],
        &["healthy", "0"],
    ] {
        let (code, _, stderr) = outcome(far.command(words).env("SLUICE_TOKEN", TOKEN));
        assert!(code == 2 && stderr.contains("read-only over TCP"), "{words:?}: {stderr}");
    }
}

#[test]
fn over_tls_the_ca_is_named_by_a_file() {
    let authority = Authority::new();
    let far = Far::start(Some(&authority));
    let status = |ca: Option<&str>| {
        let mut command = far.command(&["status"]);
        command.env("SLUICE_TOKEN", TOKEN).envs(ca.map(|file| ("SLUICE_CA_FILE", file)));
        outcome(&mut command)
    };
    let (code, stdout, stderr) = status(Some(&far.file("ca.pem")));
    assert!(code == 0 && stdout.contains("far"), "{stdout}{stderr}");
    let (code, _, stderr) = status(None);
    assert!(
        code == 70 && stderr.contains("speaks TLS") && stderr.contains("SLUICE_CA_FILE"),
        "{stderr}"
    );
    secret(Path::new(&far.file("other.pem")), &Authority::new().pem);
    let (code, _, stderr) = status(Some(&far.file("other.pem")));
    assert!(code == 70 && stderr.contains("not signed by the given CA"), "{stderr}");
    let (code, _, stderr) = status(Some(&far.file("token")));
    assert!(code == 2 && stderr.contains("BEGIN CERTIFICATE"), "{stderr}");
}

/// What the doctor finds of the daemon, and the command that mends it.
fn examined(command: &mut Command) -> (i32, Finding) {
    let (code, stdout, _) = outcome(command.args(["doctor", "--fake-gpu", "--json"]));
    let report: DoctorReport = serde_json::from_str(&stdout).unwrap();
    let find = |finding: &Finding| finding.check == "daemon";
    (code, report.findings.into_iter().find(find).unwrap())
}

#[test]
fn the_doctor_looks_at_the_daemon_that_is_meant_and_names_what_is_missing() {
    let authority = Authority::new();
    let far = Far::start(Some(&authority));
    let at = format!("tcp:127.0.0.1:{}", far.port);
    let tokened = |token: &str| {
        let mut command = far.command(&[]);
        command.env("SLUICE_TOKEN", token);
        command
    };
    let (_, found) = examined(tokened(TOKEN).env("SLUICE_CA_FILE", far.file("ca.pem")));
    assert_eq!((found.state, found.mend), (FindingState::Ok, None), "{}", found.found);
    assert!(found.found.contains(&at), "{}", found.found);
    let (code, found) = examined(&mut tokened(TOKEN));
    assert_eq!((code, found.state), (1, FindingState::Broken), "{}", found.found);
    assert_eq!(found.mend.as_deref(), Some("export SLUICE_CA_FILE=FILE"));
    let mut wrong = tokened("0123456789abcdeg");
    let (code, found) = examined(wrong.env("SLUICE_CA_FILE", far.file("ca.pem")));
    assert_eq!((code, found.state), (1, FindingState::Broken), "{}", found.found);
    assert_eq!(found.mend.as_deref(), Some("export SLUICE_TOKEN_FILE=FILE"));
    assert!(found.found.contains(&at) && !found.found.contains("0123"), "{}", found.found);
}

#[test]
fn another_node_is_recorded_also_while_its_daemon_is_away_for_a_while() {
    for authority in [None, Some(Authority::new())] {
        let far = Far::start(authority.as_ref());
        let file = far.file("run.jsonl");
        let mut command = far.command(&["record", &*file, "--interval", "100ms"]);
        command.env("SLUICE_TOKEN", TOKEN).stderr(File::create(far.file("said")).unwrap());
        if authority.is_some() {
            command.env("SLUICE_CA_FILE", far.file("ca.pem"));
        }
        let recording = start(&mut command);
        let samples = || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let read = |line: &str| serde_json::from_str::<Sample>(line).unwrap();
            whole.lines().map(read).collect::<Vec<_>>()
        };
        let is_in = |sample: &Sample| {
            let mut found = sample.status.elsewhere.iter();
            sample.daemon && found.any(|session| session.session == "far")
        };
        eventually("it is recorded", || {
            samples().iter().filter(|sample| is_in(sample)).count() > 2
        });
        far.daemon.signal(Signal::STOP);
        let said = || fs::read_to_string(far.file("said")).unwrap();
        eventually("it is said", || said().contains("samples are missing"));
        let before = samples().len();
        far.daemon.signal(Signal::CONT);
        eventually("it goes on", || samples().len() > before + 2);
        drop(recording);
        let said = said();
        assert_eq!(said.matches("samples are missing").count(), 1, "{said}");
        assert!(said.ends_with(&format!("samples to {file}\n")), "{said}");
    }
    // Who may not read gets no file.
    let far = Far::start(None);
    let file = far.file("refused.jsonl");
    let (code, _, stderr) = outcome(&mut far.command(&["record", &*file]));
    assert!(code == 70 && stderr.contains("SLUICE_TOKEN_FILE"), "{stderr}");
    assert!(!Path::new(&file).exists());
}

#[test]
fn a_program_calls_no_port_and_is_not_told_the_token() {
    let sluice = Sluice::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let tenant = sluice.built("tenant", "tenant");
    let script = format!(
        "echo \"token $SLUICE_TOKEN.\"; exec '{}' dense --kernel-us 1000 --seconds 0.2",
        tenant.display()
    );
    let mut run = sluice.command();
    run.args(["run", "--fake-gpu", "--compute", "50", "--", "sh", "-c", &script]);
    run.env("HYPERVISOR_IP", "127.0.0.1").env("HYPERVISOR_PORT", port).env("SLUICE_TOKEN", TOKEN);
    let (code, stdout, stderr) = outcome(&mut run);
    assert!(code == 0 && stdout.contains("token ."), "{stdout}{stderr}");
    // Another daemon of this machine may be in sight.
    if !stderr.is_empty() {
        assert!(stderr.contains("leases are granted over a Unix socket only"), "{stderr}");
    }
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

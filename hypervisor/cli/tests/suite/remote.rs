//! `sluice` and a daemon that is reached by TCP.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use http_bidir_comm::client::BlockingHttpClient;
use protocol::{DeviceQuota, Register, Registered, VERSION, path};

use crate::authority::Authority;
use crate::freeze::{Daemon, PATIENCE};
use crate::support::{Sluice, outcome};

const TOKEN: &str = "0123456789abcdef";

/// A port that nobody has just now.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
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
        let port = port();
        let listen = format!("127.0.0.1:{port}");
        let token = at("token");
        let mut options: Vec<&OsStr> =
            vec!["--listen".as_ref(), listen.as_ref(), "--token-file".as_ref(), token.as_ref()];
        let (certificate_file, key_file) = (at("cert.pem"), at("key.pem"));
        if let Some(authority) = authority {
            let (certificate, key) = authority.signs("127.0.0.1");
            secret(&certificate_file, &certificate);
            secret(&key_file, &key);
            secret(&at("ca.pem"), &authority.pem);
            options.extend(["--tls-cert".as_ref(), certificate_file.as_os_str()]);
            options.extend(["--tls-key".as_ref(), key_file.as_os_str()]);
        }
        let daemon = Daemon::start_with(&sluice, at("elsewhere.sock"), &options);
        register(&daemon.client);
        Self { sluice, port, daemon }
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
        assert!(code == 2 && stderr.contains("can only be read"), "{words:?}: {stderr}");
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
    assert!(code == 70 && stderr.contains("not of the CA"), "{stderr}");
    let (code, _, stderr) = status(Some(&far.file("token")));
    assert!(code == 2 && stderr.contains("BEGIN CERTIFICATE"), "{stderr}");
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
        assert!(stderr.contains("grants leases over its Unix socket alone"), "{stderr}");
    }
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

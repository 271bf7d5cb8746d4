//! A daemon that is reached by TCP. It can be read there, and changes nothing.

use std::env::var_os;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use ::limits::env;
use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint, TrustedRoots};

use super::Error;
use super::environment::DAEMON_BY_TCP;

/// Longer tokens and certificates are none.
const LONGEST: u64 = 1 << 20;
/// The fewest bytes of a token, as a daemon asks for them.
const SHORTEST_TOKEN: usize = 16;

/// The variables that name it.
const HOST: &str = DAEMON_BY_TCP[0];
const PORT: &str = DAEMON_BY_TCP[1];

/// A client of the daemon that the variables name, unless an option or `SLUICE_DAEMON` names another, or none.
///
/// # Errors
/// [`Error::Usage`]: half an address, a token or a CA that is none.
pub(crate) fn client(option: Option<&OsStr>) -> Result<Option<BlockingHttpClient>, Error> {
    if option.is_some() || set(env::DAEMON_SOCKET, |name| var_os(name)).is_some() {
        return Ok(None);
    }
    by(|name| var_os(name))
}

/// Refuses to change what is reached so.
///
/// # Errors
/// [`Error::Usage`]
pub(crate) fn check_may_change(option: Option<&OsStr>) -> Result<(), Error> {
    let Some(client) = client(option)? else { return Ok(()) };
    Err(Error::Usage(format!(
        "{HOST} and {PORT} name the daemon at {}, which is read-only over TCP. To change anything, use the daemon's \
         Unix socket on its machine (--daemon PATH), or --daemon none for the sessions here",
        client.endpoint()
    )))
}

/// What went wrong, with the variable that would mend it.
pub(crate) fn told(error: &ClientError) -> String {
    let remedy = match setting(error) {
        Some(env::TOKEN_FILE) => {
            format!("; set the token with {} or {}", env::TOKEN_FILE, env::TOKEN)
        }
        Some(name) => format!("; set the CA's file with {name}"),
        None => String::new(),
    };
    format!("{error}{remedy}")
}

/// The variable by which it would be mended: that of the token's file, or of the CA's.
pub(crate) fn setting(error: &ClientError) -> Option<&'static str> {
    match error {
        ClientError::Refused { status: 401, .. } => Some(env::TOKEN_FILE),
        ClientError::Refused { status: 400, .. } | ClientError::Tls { .. } => Some(env::CA_FILE),
        _ => None,
    }
}

fn by(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<BlockingHttpClient>, Error> {
    let (host, port) = match (set(HOST, &variable), set(PORT, &variable)) {
        (None, None) => return Ok(None),
        (Some(host), Some(port)) => (host, port),
        (Some(_), None) => return Err(incomplete(HOST, PORT)),
        (None, Some(_)) => return Err(incomplete(PORT, HOST)),
    };
    let host = text(HOST, &host, "an IP address or a host name")?;
    let accepted = "a port from 1 to 65535";
    let port = text(PORT, &port, accepted)?;
    let number: u16 = port.parse().map_err(|_| no(PORT, &port, accepted))?;
    let token = token(&variable)?;
    let Some(file) = set(env::CA_FILE, &variable) else {
        return Ok(Some(BlockingHttpClient::new(Endpoint::Tcp { host, port: number, token })));
    };
    let wrong = |problem: &dyn std::fmt::Display| {
        Error::Usage(format!("{}={}: {problem}", env::CA_FILE, file.display()))
    };
    let pem = read(Path::new(&file)).map_err(|error| wrong(&error))?;
    let roots = TrustedRoots::from_pem(&pem).map_err(|error| wrong(&error))?;
    let client = BlockingHttpClient::over_tls(host, number, token, roots);
    client.map(Some).map_err(|error| Error::Usage(format!("{HOST}: {error}")))
}

/// The token that the daemon is shown. The file counts more than the variable, which programs inherit.
fn token(variable: &impl Fn(&str) -> Option<OsString>) -> Result<Option<String>, Error> {
    let accepted = "one line of at least 16 visible characters";
    let (name, bytes) = match (set(env::TOKEN_FILE, variable), set(env::TOKEN, variable)) {
        (Some(file), _) => {
            let bytes = read(Path::new(&file)).map_err(|error| {
                Error::Usage(format!("{}={}: {error}", env::TOKEN_FILE, file.display()))
            })?;
            (env::TOKEN_FILE, bytes)
        }
        (None, Some(token)) => (env::TOKEN, token.into_encoded_bytes()),
        (None, None) => return Ok(None),
    };
    let token = String::from_utf8(bytes).unwrap_or_default();
    let token = token.trim_end_matches(['\n', '\r']);
    if token.len() < SHORTEST_TOKEN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        // What it is stays unsaid.
        return Err(Error::Usage(format!("{name} holds no token; expected {accepted}")));
    }
    Ok(Some(token.to_owned()))
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A variable that is set, and not to nothing.
fn set(name: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<OsString> {
    variable(name).filter(|value| !value.is_empty())
}

fn text(name: &str, value: &OsStr, accepted: &str) -> Result<String, Error> {
    let text = value.to_str().filter(|text| !text.contains(|c: char| c.is_control()));
    text.map(str::to_owned).ok_or_else(|| no(name, &value.to_string_lossy(), accepted))
}

fn no(name: &str, value: &str, accepted: &str) -> Error {
    Error::Usage(format!("{name}={}: expected {accepted}", ::limits::Shown(value)))
}

fn incomplete(set: &str, missing: &str) -> Error {
    Error::Usage(format!("{set} is set, but {missing} is not; set both or neither"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Option<BlockingHttpClient>, String> {
        let found = |asked: &str| {
            let mut found = variables.iter().filter(|(name, _)| *name == asked);
            found.next().map(|(_, value)| OsString::from(value))
        };
        by(found).map_err(|error| error.to_string())
    }

    #[test]
    fn both_halves_of_an_address_name_a_daemon() {
        assert!(with(&[]).unwrap().is_none());
        assert!(with(&[(HOST, ""), (PORT, "")]).unwrap().is_none());
        let client = with(&[(HOST, "::1"), (PORT, "9400")]).unwrap().unwrap();
        assert_eq!(client.endpoint().to_string(), "tcp:::1:9400");
        let said = with(&[(HOST, "::1")]).unwrap_err();
        assert!(said.contains("HYPERVISOR_PORT is not"), "{said}");
        let said = with(&[(PORT, "1"), (HOST, "")]).unwrap_err();
        assert!(said.contains("HYPERVISOR_IP is not"), "{said}");
        for port in ["0x1", "65536", "-1", "p"] {
            let said = with(&[(HOST, "a"), (PORT, port)]).unwrap_err();
            assert!(said.contains(port) && said.contains("1 to 65535"), "{said}");
        }
    }

    #[test]
    fn a_token_and_a_ca_come_from_files_and_are_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        let file = file.to_str().unwrap();
        let address = [(HOST, "a"), (PORT, "1")];
        let also = |more: &[(&str, &str)]| with(&[&address, more].concat());
        let client = also(&[(env::TOKEN_FILE, file), (env::TOKEN, "x")]).unwrap().unwrap();
        assert!(!format!("{client:?}").contains("0123"), "{client:?}");
        for token in ["fifteen bytes..", "with a blank in it", "0123456789abcdef\nx"] {
            let said = also(&[(env::TOKEN, token)]).unwrap_err();
            assert!(said.contains("16 visible") && !said.contains(token), "{said}");
        }
        let said = also(&[(env::TOKEN_FILE, "/nowhere/t")]).unwrap_err();
        assert!(said.contains("SLUICE_TOKEN_FILE=/nowhere/t"), "{said}");
        let said = also(&[(env::CA_FILE, file)]).unwrap_err();
        assert!(said.contains("SLUICE_CA_FILE") && said.contains("BEGIN CERTIFICATE"), "{said}");
    }
}

//! Names of sessions' directories. An owned session's directory ends in a secret, which grants use of the session to
//! whoever knows it, so messages leave it out.

use std::path::{Path, PathBuf};

/// Separates a session's name from the secret in its directory's name.
pub const SECRET: char = '.';
/// Length of the secret, in hexadecimal digits.
pub const SECRET_DIGITS: usize = 32;

/// A directory's name without its secret, if it has one.
#[must_use]
pub fn without_secret(name: &str) -> Option<&str> {
    let (shown, secret) = name.rsplit_once(SECRET)?;
    let is_secret =
        secret.len() == SECRET_DIGITS && secret.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_secret.then_some(shown)
}

/// A path for messages: `*` replaces the secret.
#[must_use]
pub fn told(path: &Path) -> PathBuf {
    path.components()
        .map(|part| match part.as_os_str().to_str().and_then(without_secret) {
            Some(name) => PathBuf::from(format!("{name}{SECRET}*")),
            None => PathBuf::from(part.as_os_str()),
        })
        .collect()
}

/// A session's name, from its path below the directory of the user's sessions.
#[must_use]
pub fn shown(path: &Path) -> String {
    let names = path.iter().map(|name| name.to_string_lossy());
    let names = names.map(|name| without_secret(&name).unwrap_or(&name).to_owned());
    names.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_not_told() {
        let secret = "0123456789abcdef0123456789abcdef";
        let path = format!("/dev/shm/sluice-root/4711-1-0123456789abcdef.{secret}/a.page");
        let expected = "/dev/shm/sluice-root/4711-1-0123456789abcdef.*/a.page";
        assert_eq!(told(Path::new(&path)), Path::new(expected));
        assert_eq!(shown(Path::new(&format!("a-1.{secret}/tenant-a"))), "a-1/tenant-a");
        for plain in ["/a.b/c", "env-0123456789abcdef", "x.0123", "../a"] {
            assert_eq!(told(Path::new(plain)), Path::new(plain));
        }
    }
}

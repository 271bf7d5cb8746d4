//! Chooses the directory of the state.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The directory of the state, and how it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Named by the user. If unusable, the daemon does not start.
    Named(PathBuf),
    /// The default. If unusable, no state is kept.
    Default(PathBuf),
    /// None: the user named a socket but no directory.
    Nowhere,
}

/// Input of the choice.
#[derive(Clone, Debug, Default)]
struct Surroundings {
    /// From systemd (systemd.exec(5)): possibly several directories, the first of which is used.
    state_directory: Option<OsString>,
    xdg_state_home: Option<OsString>,
    is_root: bool,
}

/// `--state`; else systemd's directory; else, with the default socket, `/var/lib/sluice`, `$XDG_STATE_HOME/sluice` or
/// the socket's own directory.
pub(crate) fn choose(option: Option<&Path>, default_socket: Option<&Path>) -> Choice {
    let surroundings = Surroundings {
        state_directory: env::var_os("STATE_DIRECTORY"),
        xdg_state_home: env::var_os("XDG_STATE_HOME"),
        is_root: rustix::process::geteuid().is_root(),
    };
    choose_in(option, default_socket, &surroundings)
}

fn choose_in(
    option: Option<&Path>,
    default_socket: Option<&Path>,
    around: &Surroundings,
) -> Choice {
    if let Some(folder) = option {
        return Choice::Named(folder.to_owned());
    }
    let absolute = |folder: &Path| folder.is_absolute().then(|| folder.to_owned());
    let given = around.state_directory.as_deref().and_then(|folders| {
        let first = folders.as_encoded_bytes().split(|&byte| byte == b':').next()?;
        absolute(Path::new(str::from_utf8(first).ok()?))
    });
    if let Some(folder) = given {
        return Choice::Named(folder);
    }
    let Some(socket) = default_socket else { return Choice::Nowhere };
    if around.is_root {
        return Choice::Default("/var/lib/sluice".into());
    }
    let home = around.xdg_state_home.as_deref().and_then(|home| absolute(Path::new(home)));
    let folder = home.map(|home| home.join("sluice"));
    match folder.or_else(|| socket.parent().map(Path::to_owned)) {
        Some(folder) => Choice::Default(folder),
        None => Choice::Nowhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_the_first_that_is_named() {
        let socket = Path::new("/run/user/7/sluice/hypervisor.sock");
        let all = Surroundings {
            state_directory: Some("/var/lib/a:/var/lib/b".into()),
            xdg_state_home: Some("/home/me/state".into()),
            is_root: false,
        };
        let (named, default) =
            (|at: &str| Choice::Named(at.into()), |at: &str| Choice::Default(at.into()));
        let option = Some(Path::new("here"));
        assert_eq!(choose_in(option, None, &all), named("here"));
        assert_eq!(choose_in(None, None, &all), named("/var/lib/a"));
        for nothing in ["", "relative", ":"] {
            let without = Surroundings { state_directory: Some(nothing.into()), ..all.clone() };
            assert_eq!(choose_in(None, Some(socket), &without), default("/home/me/state/sluice"));
            assert_eq!(choose_in(None, None, &without), Choice::Nowhere);
        }
        let bare = Surroundings::default();
        assert_eq!(choose_in(None, Some(socket), &bare), default("/run/user/7/sluice"));
        let relative = Surroundings { xdg_state_home: Some("state".into()), ..bare.clone() };
        assert_eq!(choose_in(None, Some(socket), &relative), default("/run/user/7/sluice"));
        let root = Surroundings { is_root: true, ..bare };
        assert_eq!(choose_in(None, Some(socket), &root), default("/var/lib/sluice"));
    }
}

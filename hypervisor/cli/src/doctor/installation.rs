//! How this `sluice` came here, as far as it shows: what puts a missing part back is something else for each way.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use build_info::VERSION;
use session::directory::told;

/// Where a `sluice` is from.
#[derive(Debug, PartialEq, Eq)]
enum Installation {
    /// A package of this name.
    Debian(String),
    Rpm(String),
    /// By `install.sh`, below this prefix.
    Script(PathBuf),
    /// By pip or uv, in the environment with this prefix.
    Wheel(PathBuf),
    /// An archive that is used where it was unpacked.
    Archive(PathBuf),
    /// Cargo's folder, or one that `cargo xtask build-release` made there.
    Build {
        shipped: bool,
    },
    /// Nothing tells.
    Unknown(PathBuf),
}

/// The command that puts the parts of this `sluice` back.
pub(super) fn mend() -> String {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/bin/sluice"));
    Installation::of(&own, package).mend()
}

/// The package that a file is from, by the system's own word: `program` is asked, as in `dpkg -S FILE`.
fn package(program: &str, options: &[&str], file: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.args(options).arg(file).env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    let said = String::from_utf8(output.stdout).ok()?;
    let name = said.split([':', ',', '\n']).next()?.trim();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
    (!name.is_empty() && name.bytes().all(plain)).then(|| name.to_owned())
}

impl Installation {
    /// `package` tells the package that has a file: see [`package`].
    fn of(own: &Path, package: impl Fn(&str, &[&str], &Path) -> Option<String>) -> Self {
        let folder = own.parent().unwrap_or(Path::new("/"));
        let prefix = folder.parent().unwrap_or(Path::new("/"));
        if prefix.join("lib/sluice/installed").is_file() {
            return Self::Script(prefix.to_owned());
        }
        if prefix.join("lib/sluice/installed-by-pip").is_file() {
            return Self::Wheel(prefix.to_owned());
        }
        if let Some(name) = package("dpkg", &["-S"], own) {
            return Self::Debian(name);
        }
        if let Some(name) = package("rpm", &["-q", "--queryformat", "%{NAME}\n", "-f"], own) {
            return Self::Rpm(name);
        }
        if prefix.join("install.sh").is_file() {
            return Self::Archive(prefix.to_owned());
        }
        // Cargo marks the folder that it builds into.
        if folder.ancestors().any(|above| above.join("CACHEDIR.TAG").is_file()) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            return Self::Build { shipped: name.starts_with("shipped") };
        }
        Self::Unknown(prefix.to_owned())
    }

    fn mend(&self) -> String {
        let processor = std::env::consts::ARCH;
        match self {
            Self::Debian(name) => {
                let processor = match processor {
                    "x86_64" => "amd64",
                    "aarch64" => "arm64",
                    other => other,
                };
                format!("sudo dpkg --install {name}_{VERSION}-1_{processor}.deb")
            }
            Self::Rpm(name) => {
                format!("sudo rpm --upgrade --replacepkgs {name}-{VERSION}-1.{processor}.rpm")
            }
            Self::Script(prefix) => format!(
                "sudo ./install.sh --prefix {}  # of the archive or in scripts/ of the checkout that it was installed from",
                told(prefix).display()
            ),
            Self::Wheel(prefix) => format!(
                "pip install --force-reinstall --no-deps sluice-{VERSION}-py3-none-*_{processor}.whl  # in the environment {}",
                told(prefix).display()
            ),
            Self::Archive(folder) => format!(
                "tar -xzf sluice-{VERSION}-{processor}.tar.gz --strip-components 1 -C {}",
                told(folder).display()
            ),
            Self::Build { shipped: false } => "cargo build --release --workspace".to_owned(),
            Self::Build { shipped: true } => "cargo xtask build-release".to_owned(),
            Self::Unknown(prefix) => format!(
                "tar -xzf sluice-{VERSION}-{processor}.tar.gz && sudo sluice-{VERSION}-{processor}/install.sh --prefix {}",
                told(prefix).display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn nobody(_: &str, _: &[&str], _: &Path) -> Option<String> {
        None
    }

    fn file(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn each_way_is_told_by_what_it_leaves() {
        let root = tempfile::tempdir().unwrap();
        let prefix = root.path().join("prefix");
        let own = prefix.join("bin/sluice");
        assert_eq!(Installation::of(&own, nobody), Installation::Unknown(prefix.clone()));
        file(&prefix.join("install.sh"));
        assert_eq!(Installation::of(&own, nobody), Installation::Archive(prefix.clone()));
        let by = |manager: &'static str| {
            move |program: &str, _: &[&str], file: &Path| {
                (program == manager && file.ends_with("bin/sluice"))
                    .then(|| "gpu-sluice".to_owned())
            }
        };
        let name = || "gpu-sluice".to_owned();
        assert_eq!(Installation::of(&own, by("dpkg")), Installation::Debian(name()));
        assert_eq!(Installation::of(&own, by("rpm")), Installation::Rpm(name()));
        file(&prefix.join("lib/sluice/installed-by-pip"));
        assert_eq!(Installation::of(&own, by("dpkg")), Installation::Wheel(prefix.clone()));
        file(&prefix.join("lib/sluice/installed"));
        assert_eq!(Installation::of(&own, by("dpkg")), Installation::Script(prefix));
        let target = root.path().join("target");
        file(&target.join("CACHEDIR.TAG"));
        for (folder, shipped) in [("release", false), ("shipped", true), ("shipped-aarch64", true)]
        {
            let found = Installation::of(&target.join(folder).join("sluice"), nobody);
            assert_eq!(found, Installation::Build { shipped });
        }
    }

    #[test]
    fn each_way_has_its_command() {
        let of = |installation: Installation| installation.mend();
        assert!(of(Installation::Debian("s".to_owned())).starts_with("sudo dpkg --install s_"));
        assert!(
            of(Installation::Rpm("s".to_owned()))
                .starts_with("sudo rpm --upgrade --replacepkgs s-")
        );
        let prefix = || PathBuf::from("/opt/it");
        assert!(
            of(Installation::Script(prefix())).starts_with("sudo ./install.sh --prefix /opt/it ")
        );
        let wheel = of(Installation::Wheel(prefix()));
        assert!(wheel.starts_with("pip install --force-reinstall "), "{wheel}");
        assert!(wheel.ends_with("# in the environment /opt/it"), "{wheel}");
        assert!(of(Installation::Archive(prefix())).ends_with(" -C /opt/it"));
        assert!(of(Installation::Unknown(prefix())).ends_with("install.sh --prefix /opt/it"));
        assert_eq!(of(Installation::Build { shipped: true }), "cargo xtask build-release");
    }

    #[test]
    fn what_a_package_manager_says_is_a_name_or_nothing() {
        let says = |text: &str| package("printf", &[text], Path::new(""));
        assert_eq!(says("sluice: /usr/bin/sluice\n").as_deref(), Some("sluice"));
        assert_eq!(says("sluice:amd64, other: /usr/bin/sluice\n").as_deref(), Some("sluice"));
        for odd in ["", "\n", "a b\n", "$(x): y\n"] {
            assert_eq!(says(odd), None, "{odd:?}");
        }
        assert_eq!(package("false", &[], Path::new("/")), None);
        assert_eq!(package("no-such-manager", &[], Path::new("/")), None);
    }
}

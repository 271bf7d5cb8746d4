//! A container: one process with its own root.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

use crate::proto::ContainerConfig;
use crate::{cdi, hooks};

/// Script that mounts the root and becomes the program. Arguments: root, first user id, file to create once all is
/// mounted, number of mounts, each mount as HOST INSIDE ro|rw, then variables and arguments as for `env`.
const BEGIN: &str = include_str!("begin.sh");
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A container to be started.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    /// The kubelet's configuration.
    pub config: &'a ContainerConfig,
    /// First host user id of the user namespace, which maps 0 to 65,535; `None`: no user namespace.
    pub users: Option<u32>,
    /// The container's directory, which is created; the root is `rootfs` in it.
    pub bundle: &'a Path,
    /// File to which the output is appended.
    pub output: &'a Path,
    /// Directory with the image's files, in addition to the machine's programs.
    pub image: Option<&'a Path>,
    /// Directories of CDI files. Empty: CDI is not supported.
    pub cdi: &'a [PathBuf],
}

impl Container<'_> {
    /// Starts the program; waits for its hooks, if any.
    ///
    /// # Errors
    /// The system's.
    pub fn start(&self) -> io::Result<Child> {
        let mut config = self.config.clone();
        let hooks = cdi::edit(&mut config, self.cdi).map_err(io::Error::other)?;
        let root = self.bundle.join("rootfs");
        std::fs::create_dir_all(&root)?;
        if let Some(image) = self.image {
            let mut copy = std::process::Command::new("cp");
            let copied = copy.arg("-a").arg(image.join(".")).arg(&root).status()?;
            if !copied.success() {
                return Err(io::Error::other(format!("the image {}: {copied}", image.display())));
            }
        }
        hooks::write_config(self.bundle, &config)?;
        let ready = self.bundle.join("created");
        let mut child = self.spawn(&config, &root, (!hooks.is_empty()).then_some(&*ready))?;
        if !hooks.is_empty() {
            // Without a line on stdin the script ends.
            let input = child.stdin.take();
            hooks::run(self.bundle, &ready, &mut child, &hooks)?;
            if let Some(input) = input {
                io::Write::write_all(&mut File::from(input.into_owned_fd()?), b"\n")?;
            }
        }
        Ok(child)
    }

    fn spawn(
        &self,
        config: &ContainerConfig,
        root: &Path,
        ready: Option<&Path>,
    ) -> io::Result<Child> {
        let mut mounts: Vec<[&str; 3]> = Vec::new();
        for mount in &config.mounts {
            let mode = if mount.readonly { "ro" } else { "rw" };
            mounts.push([&mount.host_path, &mount.container_path, mode]);
        }
        for device in &config.devices {
            mounts.push([&device.host_path, &device.container_path, "rw"]);
        }
        let output: File = OpenOptions::new().create(true).append(true).open(self.output)?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", BEGIN, "sh"]);
        let users = self.users.map(|first| first.to_string()).unwrap_or_default();
        command.arg(root).arg(users).arg(ready.unwrap_or(Path::new("")));
        command.arg(mounts.len().to_string()).args(mounts.iter().flatten());
        command.arg(PATH);
        command.args(config.envs.iter().map(|one| format!("{}={}", one.key, one.value)));
        command.args(&config.command).args(&config.args);
        let input = if ready.is_some() { Stdio::piped() } else { Stdio::null() };
        command.stdin(input).stdout(output.try_clone()?).stderr(output).kill_on_drop(true);
        command.spawn()
    }
}

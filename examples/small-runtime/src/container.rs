//! One process with a root of its own.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::process::{Child, Command};

use crate::proto::ContainerConfig;

/// Makes the root and becomes the program: ROOT, the first of its users, how many mounts, each as HOST INSIDE ro|rw, then the
/// program's own variables and words as `env` takes them.
const BEGIN: &str = include_str!("begin.sh");
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Starts the program of a container. `users`: it has a user namespace, in which 0 to 65,535 are the host's users from
/// this one on.
///
/// # Errors
/// The system's.
pub fn start(
    config: &ContainerConfig,
    users: Option<u32>,
    root: &Path,
    output: &Path,
) -> io::Result<Child> {
    let mut mounts: Vec<[&str; 3]> = Vec::new();
    for mount in &config.mounts {
        let mode = if mount.readonly { "ro" } else { "rw" };
        mounts.push([&mount.host_path, &mount.container_path, mode]);
    }
    for device in &config.devices {
        mounts.push([&device.host_path, &device.container_path, "rw"]);
    }
    std::fs::create_dir_all(root)?;
    let output: File = OpenOptions::new().create(true).append(true).open(output)?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", BEGIN, "sh"]);
    let users = users.map(|first| first.to_string()).unwrap_or_default();
    command.arg(root).arg(users).arg(mounts.len().to_string()).args(mounts.iter().flatten());
    command.arg(PATH);
    command.args(config.envs.iter().map(|one| format!("{}={}", one.key, one.value)));
    command.args(&config.command).args(&config.args);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).kill_on_drop(true);
    command.spawn()
}

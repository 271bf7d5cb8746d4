//! Runs OCI hooks, with a bundle's `config.json` and the container's state on stdin.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::process::Child;

use crate::cdi::Hook;
use crate::proto::ContainerConfig;

/// Longer than anything but a hang.
const WITHIN: Duration = Duration::from_secs(20);
const VERSION: &str = "1.0.2";

/// Writes the `config.json` that hooks read.
pub(crate) fn write_config(bundle: &Path, config: &ContainerConfig) -> io::Result<()> {
    let mounts = config.mounts.iter().map(|one| {
        let mode = if one.readonly { "ro" } else { "rw" };
        json!({"destination": one.container_path, "type": "bind", "source": one.host_path, "options": ["rbind", mode]})
    });
    let config = json!({
        "ociVersion": VERSION, "root": {"path": "rootfs"}, "mounts": mounts.collect::<Vec<_>>(),
        "annotations": config.annotations,
    });
    std::fs::write(bundle.join("config.json"), config.to_string())
}

/// Waits until a container is created, runs its hooks in the runtime's namespaces, and starts the program.
pub(crate) fn run(
    bundle: &Path,
    ready: &Path,
    child: &mut Child,
    hooks: &[Hook],
) -> io::Result<()> {
    let begun = Instant::now();
    while !ready.exists() {
        if child.try_wait()?.is_some() || begun.elapsed() > WITHIN {
            return Err(io::Error::other("the container was not created"));
        }
        sleep(Duration::from_millis(5));
    }
    let state = json!({
        "ociVersion": VERSION, "id": bundle.file_name().map(|name| name.to_string_lossy()), "status": "creating",
        "pid": child.id(), "bundle": bundle, "annotations": {},
    });
    for hook in hooks {
        let env = hook.env.iter().filter_map(|one| one.split_once('='));
        let mut command = Command::new(&hook.path);
        command.args(hook.args.iter().skip(1)).env_clear().envs(env).current_dir(bundle);
        let mut run = command.stdin(Stdio::piped()).spawn()?;
        if let Some(mut input) = run.stdin.take() {
            // A hook that does not read may have ended.
            _ = input.write_all(state.to_string().as_bytes());
        }
        let status = run.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("the hook {}: {status}", hook.path.display())));
        }
    }
    Ok(())
}

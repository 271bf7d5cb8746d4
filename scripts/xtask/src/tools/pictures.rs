//! `xtask pictures`: what README.md and docs/operations.md show.

use super::{Error, path};
use crate::process::{command, run};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

/// Draws `sluice top` and a plot as docs/pictures/*.svg, and prints `sluice status`, `sluice explain` and `nvidia-smi`:
/// real output of programs on the simulated GPU under a daemon. Takes a minute.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the programs; by default target/debug
    #[arg(value_parser = path)]
    programs: Option<PathBuf>,
}

/// Programs in the background, which end with this.
struct Background(Vec<Child>);

impl Drop for Background {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // SIGTERM, so that `sluice run` ends its program, too.
            let _ = run(command("kill").arg(child.id().to_string()).stderr(Stdio::null()));
            let _ = child.wait();
        }
    }
}

/// Makes them.
///
/// # Errors
/// A program failed.
pub(crate) fn make(arguments: Arguments, target: PathBuf) -> Result<(), Error> {
    let programs = arguments.programs.unwrap_or_else(|| target.join("debug"));
    let folder = tempfile::tempdir()?;
    let (socket, recording) = (folder.path().join("d.sock"), folder.path().join("run.jsonl"));
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
    let program = |line: &str| {
        let line = line
            .strip_prefix("sluice")
            .map_or(line.to_owned(), |rest| format!("{}/sluice{rest}", programs.display()));
        let mut command = command(&line);
        command.env("PATH", &path).env("SLUICE_DAEMON", &socket);
        command.env("SLUICE_FAKE_NODE", folder.path().join("node"));
        command
    };
    let mut background = Background(Vec::new());
    let mut start = |command: &mut Command| {
        background.0.push(command.stdout(Stdio::null()).spawn()?);
        Ok::<_, Error>(())
    };
    let session = |line: &str| {
        program(&format!("sluice run --fake-gpu --device 0 --name {line} --seconds 90"))
    };
    let pause = |seconds| thread::sleep(Duration::from_secs(seconds));

    let mut daemon = Command::new(programs.join("hypervisor"));
    daemon.args(["daemon", "--log", "warn", "--socket"]).arg(&socket);
    daemon.arg("--nvml").arg(programs.join("libfake_nvml.so"));
    start(daemon.env("SLUICE_FAKE_NODE", folder.path().join("node")))?;
    while !socket.exists() {
        thread::sleep(Duration::from_millis(100));
    }
    start(&mut session("train --mem 8GiB --compute 50 tenant dense --kernel-us 2000"))?;
    start(&mut session("serve --mem 2GiB --compute 20 --burst 40 tenant dense --kernel-us 500"))?;
    let notebook = "notebook --mem 1GiB tenant mem --api alloc --chunk 384MiB --cap 4GiB --hold 90";
    start(&mut program(&format!("sluice run --fake-gpu --device 0 --name {notebook}")))?;
    pause(3);
    // In the recording another session comes, limits change, and one is frozen for a while.
    let mut recorder =
        program("sluice record --for 45s").arg(&recording).stdout(Stdio::null()).spawn()?;
    pause(8);
    start(&mut session(
        "batch --mem 4GiB --compute 25 --policy balance tenant dense --kernel-us 1000",
    ))?;
    for (seconds, line) in [
        (8, "sluice limit train --compute 30"),
        (10, "sluice freeze serve"),
        (8, "sluice thaw serve"),
    ] {
        pause(seconds);
        run(program(line).stdout(Stdio::null()))?;
    }
    recorder.wait()?;
    let pictures = env::current_dir()?.join("docs/pictures");
    fs::create_dir_all(&pictures)?;
    run(program("sluice plot").arg(&recording).arg("-o").arg(pictures.join("plot.svg")))?;
    for (lines, picture, session) in [("16", "top.svg", None), ("22", "session.svg", Some("serve"))]
    {
        let mut top = program("sluice top --replay");
        top.arg(&recording).arg("--picture").arg(pictures.join(picture)).args(session);
        run(top.env("COLUMNS", "110").env("LINES", lines))?;
    }
    for line in ["sluice status", "sluice status train", "sluice explain notebook"] {
        println!("$ {line}");
        // `explain` fails for a session that was refused something.
        let _ = run(&mut program(line));
    }
    let line = "sluice run --fake-gpu --mem 1GiB -- nvidia-smi";
    println!("$ {line}");
    Ok(run(&mut program(line))?)
}

//! A simulated GPU of the test's own.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A node used by no other test, and the directory in which programs find its driver.
pub(crate) struct Node {
    dir: TempDir,
}

impl Node {
    /// A node with one device of this memory, and 64 MiB per context.
    pub(crate) fn new(memory: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, built) in
            [("libcuda.so.1", "libfake_cuda.so"), ("libnvidia-ml.so.1", "libfake_nvml.so")]
        {
            std::os::unix::fs::symlink(library(built), dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("memory"), memory).unwrap();
        Self { dir }
    }

    /// `tenant` on this node.
    pub(crate) fn tenant(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenant"));
        for (name, _) in std::env::vars_os() {
            let of_caller = ["SLUICE_", "CUDA_", "LD_PRELOAD"];
            if of_caller.iter().any(|own| name.as_encoded_bytes().starts_with(own.as_bytes())) {
                command.env_remove(&name);
            }
        }
        command
            .args(arguments.split_whitespace())
            .env("LD_LIBRARY_PATH", self.dir.path())
            .env("SLUICE_FAKE_NODE", self.dir.path().join("node"))
            .env("SLUICE_FAKE_DEVICES", "1")
            .env("SLUICE_FAKE_CONTEXT", "64MiB")
            .env(
                "SLUICE_FAKE_MEMORY",
                std::fs::read_to_string(self.dir.path().join("memory")).unwrap(),
            );
        command
    }

    /// Runs `tenant` to its end; returns all printed lines.
    pub(crate) fn lines(&self, arguments: &str) -> Vec<Value> {
        let output = self.tenant(arguments).output().unwrap();
        assert!(output.status.success(), "tenant {arguments}: {}", text(&output));
        let out = String::from_utf8(output.stdout).unwrap();
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Runs `tenant` to its end; returns the only line.
    pub(crate) fn result(&self, arguments: &str) -> Value {
        let mut lines = self.lines(arguments);
        assert_eq!(lines.len(), 1, "tenant {arguments}: {lines:?}");
        lines.remove(0)
    }
}

/// A running `tenant`, controlled by the test.
pub(crate) struct Steered {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Steered {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Reads the next lines.
    pub(crate) fn hear(&mut self, count: usize) -> Vec<Value> {
        let mut next = || serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap();
        (0..count).map(|_| next()).collect()
    }

    /// Closes stdin; returns the last line, and stderr.
    pub(crate) fn end(mut self) -> (Value, String) {
        drop(self.child.stdin.take());
        let last = self.lines.by_ref().last().unwrap().unwrap();
        assert!(self.child.wait().unwrap().success(), "{last}");
        let mut err = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (serde_json::from_str(&last).unwrap(), err)
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        // The program has ended, or the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All output of a program.
pub(crate) fn text(output: &Output) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}\n{err}", output.status)
}

/// A library of the workspace, next to the tenant binary.
fn library(name: &str) -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_tenant")).with_file_name(name);
    assert!(
        beside.exists(),
        "{} is missing: run `cargo build -p fake-cuda -p fake-nvml` first",
        beside.display()
    );
    beside
}

//! The parts of Sluice, the driver, and the loader.

use std::collections::BTreeSet;
use std::env::var_os;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Access, access};
use session::directory;

use protocol::findings::{Checked, Wrong};

use super::{installation, unlisted};
use crate::parts::{self, Parts};
use crate::{devices, hooks};

/// A part is missing or damaged.
fn incomplete(error: impl ToString) -> Wrong {
    Wrong::broken(error.to_string(), installation::mend())
}

/// The limiter is: the variable may have led to it.
fn no_limiter(error: impl ToString) -> Wrong {
    match var_os(parts::LIBRARY).is_some_and(|path| !path.is_empty()) {
        true => Wrong::broken(error.to_string(), format!("unset {}", parts::LIBRARY)),
        false => incomplete(error),
    }
}

fn located() -> Result<Parts, Wrong> {
    Parts::locate(var_os(parts::LIBRARY).map(PathBuf::from)).map_err(incomplete)
}

/// Within a session nothing can be proved: its limits hold for the doctor, too.
pub(super) fn session() -> Checked {
    let leave = "env -u LD_PRELOAD -u SLUICE_SESSION_DIR sluice doctor";
    match directory::inside() {
        Ok(None) => Ok("not inside a session".to_owned()),
        Ok(Some(_)) => {
            Err(Wrong::broken("inside a session, whose limits hold for this command", leave))
        }
        Err(error) => Err(Wrong::broken(error.to_string(), leave)),
    }
}

/// The files beside this one.
pub(super) fn library() -> Checked {
    let parts = located()?;
    let limiter = parts.limiter().map_err(no_limiter)?;
    parts.find(parts::TENANT).map_err(incomplete)?;
    Ok(limiter.display().to_string())
}

/// Whether the loader loads the library into a program of this machine's glibc.
pub(super) fn loader() -> Checked {
    let limiter = located()?.limiter().map_err(no_limiter)?;
    let own = std::env::current_exe()
        .map_err(|error| Wrong::broken(error.to_string(), "mount -t proc proc /proc"))?;
    let mut command = Command::new(own);
    let output = command
        .arg("--version")
        .env("LD_PRELOAD", &limiter)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| incomplete(format!("cannot start a program: {error}")))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    if !output.status.success() || said.contains("cannot be preloaded") {
        return Err(no_limiter(format!("the loader does not load it: {said}")));
    }
    Ok(format!("loads it ({})", glibc().unwrap_or_else(|| "glibc".to_owned())))
}

/// As in `glibc 2.36`.
fn glibc() -> Option<String> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    version.starts_with("glibc").then_some(version)
}

/// The driver and its GPUs.
pub(super) fn driver(fake: bool) -> Checked {
    let broken = |error: crate::Error| match fake {
        true => incomplete(error),
        false => Wrong::broken(error.to_string(), "sudo modprobe nvidia && nvidia-smi"),
    };
    let library = match fake {
        true => Some(located()?.find(parts::FAKE_NVML.0).map_err(broken)?),
        false => None,
    };
    let found = devices::list(library.as_deref()).map_err(broken)?;
    let version = match fake {
        true => "simulated in software".to_owned(),
        false => fs::read_to_string("/sys/module/nvidia/version")
            .map_or_else(|_| "unknown version".to_owned(), |text| text.trim().to_owned()),
    };
    let gpus: Vec<String> =
        found.iter().map(|gpu| format!("{} {} ({})", gpu.index, gpu.name, gpu.uuid)).collect();
    Ok(format!("{version}; GPU {}", gpus.join(", GPU ")))
}

/// The driver's files, which each program opens.
pub(super) fn device_files() -> Checked {
    let is_of_gpu = |name: &str| {
        name == "nvidiactl"
            || name == "nvidia-uvm"
            || name.strip_prefix("nvidia").is_some_and(|rest| {
                !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())
            })
    };
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let files: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_of_gpu))
        .map(|entry| entry.path())
        .collect();
    let closed =
        |path: &&PathBuf| access(path.as_path(), Access::READ_OK | Access::WRITE_OK).is_err();
    if let Some(path) = files.iter().find(closed) {
        let group = "sudo usermod -aG video $USER  # and log in again";
        return Err(Wrong::broken(format!("this user cannot open {}", path.display()), group));
    }
    if !files.iter().any(|path| path == Path::new("/dev/nvidia-uvm")) {
        let make = "sudo nvidia-modprobe -u -c 0";
        return Err(Wrong::note(
            "/dev/nvidia-uvm is missing; the driver creates it if it has the rights",
            make,
        ));
    }
    Ok(format!("{} files, all open to this user", files.len()))
}

/// The driver's functions.
pub(super) fn functions(fake: bool) -> Checked {
    let report = hooks::report(fake)
        .map_err(|error| Wrong::broken(error.to_string(), "SLUICE_LOG=debug sluice hooks"))?;
    if report.failed > 0 {
        let found = format!("{} functions of the driver are not patched", report.failed);
        return Err(Wrong::broken(found, "sluice hooks  # lists them with the reasons"));
    }
    let driver = match fake {
        true => located()?.find(parts::FAKE_CUDA.0).ok(),
        false => unlisted::driver(),
    };
    let driver = driver.and_then(|path| fs::read(path).ok());
    let new = driver.and_then(|bytes| unlisted::unlisted(&bytes)).unwrap_or_default();
    if !new.is_empty() {
        let found = format!(
            "the driver is newer than this release, which does not know {}; work and memory through {} may exceed the \
             limits",
            new.join(", "),
            if new.len() == 1 { "it" } else { "them" },
        );
        return Err(Wrong::note(found, "install a newer Sluice"));
    }
    let engines: BTreeSet<&str> = report.engines.values().map(String::as_str).collect();
    let engines: Vec<&str> = engines.into_iter().collect();
    let (patched, absent) = (report.patched, report.absent);
    Ok(format!("{patched} patched by {}, {absent} absent from this driver", engines.join(" and ")))
}

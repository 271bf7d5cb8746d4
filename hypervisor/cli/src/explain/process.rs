//! What can be seen of a process: whether the limiter and the CUDA driver are in it.

use std::path::Path;

use procfs::process::{MMapPath, Process};
use protocol::reports::{ExplainedProcess, Explanation, ReasonWord};

use crate::{parts, reach};

/// Looks at a process's memory map.
pub(super) fn look(pid: u32) -> ExplainedProcess {
    let process = i32::try_from(pid).ok().and_then(|pid| Process::new(pid).ok());
    let maps = process.as_ref().and_then(|process| process.maps().ok());
    let has = |is_it: fn(&str) -> bool| {
        maps.as_ref().map(|maps| {
            maps.iter().any(|map| match &map.pathname {
                MMapPath::Path(path) => {
                    path.file_name().and_then(|name| name.to_str()).is_some_and(is_it)
                }
                _ => false,
            })
        })
    };
    ExplainedProcess {
        pid,
        name: process.and_then(|process| Some(process.stat().ok()?.comm)),
        preloaded: has(|name| name.starts_with(parts::LIMITER)),
        uses_cuda: has(is_driver),
    }
}

fn is_driver(name: &str) -> bool {
    name.starts_with("libcuda.so") || name.starts_with(parts::FAKE_CUDA.0)
}

/// Why a process is in no session.
pub(super) fn outside_of_sessions(process: &ExplainedProcess) -> Vec<Explanation> {
    let reason = match (process.preloaded, process.uses_cuda) {
        (None, _) => unseen(process.pid),
        (Some(false), uses_cuda) => not_preloaded(process.pid, uses_cuda == Some(true)),
        (Some(true), Some(true)) => Explanation {
            code: ReasonWord::NoSession,
            text: format!(
                "process {} has loaded the limiter and the CUDA driver, but has used no device or has no limit",
                process.pid
            ),
            remedy: Some(
                "start it with a limit: sluice run --mem 8GiB --compute 30 -- CMD".to_owned(),
            ),
        },
        (Some(true), _) => Explanation {
            code: ReasonWord::NoSession,
            text: format!(
                "process {} has loaded the limiter, but not the CUDA driver: it uses no GPU itself",
                process.pid
            ),
            remedy: Some("explain the process that does, or its session: sluice status".to_owned()),
        },
    };
    vec![reason]
}

pub(super) fn not_preloaded(pid: u32, uses_cuda: bool) -> Explanation {
    if let Some(why) = reach::of_file(Path::new(&format!("/proc/{pid}/exe"))) {
        return Explanation {
            code: ReasonWord::NotPreloaded,
            text: format!("process {pid} {why}: no limit can be enforced on it"),
            remedy: Some("use a dynamically linked 64-bit build".to_owned()),
        };
    }
    let uses = if uses_cuda { "uses the GPU" } else { "has not loaded the CUDA driver" };
    Explanation {
        code: ReasonWord::NotPreloaded,
        text: format!("process {pid} {uses}, and has not loaded the limiter: it is not limited"),
        remedy: Some(
            "restart it with 'sluice run', or with LD_PRELOAD=libcuda_limiter.so and a limit"
                .to_owned(),
        ),
    }
}

pub(super) fn unseen(pid: u32) -> Explanation {
    Explanation {
        code: ReasonWord::Unseen,
        text: format!("this user may not read the memory map of process {pid}"),
        remedy: Some("run it as the process's user or as root: sudo sluice explain".to_owned()),
    }
}

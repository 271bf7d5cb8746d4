//! All about one session, for people.

use std::fmt;

use limits::units::PPM_PER_PERCENT;
use limits::{ComputeLimit, Limits, MemoryLimit, Shown};
use protocol::sessions::{
    ByKind, ComputeReport, DeviceReport, MemoryReport, ProcessReport, SessionReport, SharingReason,
    SharingReport, SharingWay, StatusReport,
};

use super::table::{Bytes, Limit, Percent, Seconds};

/// Displays a part of a report.
pub(super) struct Detail<'a, T>(pub(super) &'a T);

impl fmt::Display for Detail<'_, StatusReport> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.sessions.is_empty() {
            f.write_str("no sessions\n")?;
        }
        for session in &self.0.sessions {
            Detail(session).fmt(f)?;
        }
        for damaged in &self.0.damaged {
            writeln!(f, "DAMAGED {}: {}", Shown(&damaged.session), Shown(&damaged.problem))?;
        }
        Ok(())
    }
}

impl fmt::Display for Detail<'_, SessionReport> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let session = self.0;
        write!(f, "{} of user {}", Shown(&session.session), session.uid)?;
        if let Some(name) = &session.name {
            write!(f, ", called {}", Shown(name))?;
        }
        if let Some(container) = &session.container {
            let name = container.name.as_ref().unwrap_or(&container.id);
            write!(f, ", in {} container {}", Shown(&container.runtime), Shown(name))?;
        }
        writeln!(f, "{}", if session.frozen { ", frozen" } else { "" })?;
        if let Some(command) = &session.command {
            writeln!(f, "  {}", Shown(command))?;
        }
        if session.devices.is_empty() {
            writeln!(f, "  no process has used a GPU yet")?;
        }
        session.devices.iter().try_for_each(|device| Detail(device).fmt(f))
    }
}

impl fmt::Display for Detail<'_, DeviceReport> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceReport { uuid, index, memory, compute, processes, unknown, age_us, .. } = self.0;
        let limits = limits(memory, compute);
        match index {
            Some(index) => writeln!(f, "  {uuid} (GPU {index})")?,
            None => writeln!(f, "  {uuid}")?,
        }
        let limit = limits.memory.map_or("no limit".to_owned(), |limit| Limit(limit).to_string());
        write!(f, "    memory  {limit}, {} used", Bytes(memory.used))?;
        let kinds: Vec<_> =
            named(&memory.by_kind).into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        for (number, (kind, bytes)) in kinds.iter().enumerate() {
            let open = if number == 0 { " (" } else { ", " };
            write!(f, "{open}{kind} {}", Bytes(*bytes))?;
        }
        f.write_str(if kinds.is_empty() { "" } else { ")" })?;
        match memory.left {
            _ if memory.growth_refused => {
                write!(f, "; OVER by {}: allocations fail", Bytes(memory.over))?;
            }
            Some(left) => write!(f, ", {} left", Bytes(left))?,
            None => {}
        }
        write!(f, "\n    compute {}", limits.compute)?;
        if let Some(density) = compute.density_ppm {
            write!(f, ", density {}%", density / PPM_PER_PERCENT)?;
        }
        if let (Some(recent), Some(mean)) = (compute.recent_ppm, compute.mean_ppm) {
            let (recent, mean) = (Percent(recent), Percent(mean));
            write!(f, "\n    got     {recent} in the last 10 s, {mean} since its start")?;
        }
        if compute.waited_us > 0 {
            write!(f, "; waited {}", Seconds(compute.waited_us))?;
        }
        if let Some(sharing) = &compute.sharing {
            write!(f, "\n    shares  {}", sharing_words(sharing))?;
        }
        writeln!(f)?;
        if processes.is_empty() {
            let none = match age_us {
                Some(_) => "no processes",
                None => "no process has used this GPU yet",
            };
            writeln!(f, "    {none}")?;
        }
        processes.iter().try_for_each(|process| Detail(process).fmt(f))?;
        if *unknown > 0 {
            writeln!(f, "    {unknown} of these may have ended (not visible from here)")?;
        }
        Ok(())
    }
}

/// What a session may take of a device's time, in a few words.
pub(crate) fn compute_limit(compute: &ComputeReport) -> ComputeLimit {
    let ComputeReport { share_ppm, policy, soft_ppm, weight, priority, .. } = *compute;
    ComputeLimit { share_ppm, policy, soft_ppm, weight, priority }
}

/// The limits in a report.
fn limits(memory: &MemoryReport, compute: &ComputeReport) -> Limits {
    Limits {
        memory: memory.limit.map(|limit| MemoryLimit { limit, real: memory.real }),
        compute: compute_limit(compute),
    }
}

/// The kinds by name.
pub(crate) fn named(kinds: &ByKind) -> [(&'static str, u64); 8] {
    [
        ("data", kinds.data),
        ("context", kinds.context),
        ("pool", kinds.pool),
        ("graph", kinds.graph),
        ("array", kinds.array),
        ("overcommitted", kinds.overcommitted),
        ("driver", kinds.driver),
        ("headroom", kinds.headroom),
    ]
}

impl fmt::Display for Detail<'_, ProcessReport> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.0;
        let name = Shown(process.name.as_deref().unwrap_or("?")).to_string();
        write!(f, "    {:>8} {name:<16} {:>10}", process.pid, Bytes(process.bytes).to_string())?;
        if let Some(host) = process.host_pid.filter(|host| *host != process.pid) {
            write!(f, "  pid {host} on the host")?;
        }
        if let Some(density) = process.density_ppm {
            write!(f, "  density {}%", density / PPM_PER_PERCENT)?;
        }
        if process.name.is_none() {
            f.write_str("  not seen here")?;
        }
        if process.holding {
            f.write_str("  holding")?;
        }
        writeln!(f, "{}", if process.waiting { "  waiting" } else { "" })
    }
}

/// In which way a session shares a device, since when, what that gives, and why.
pub(crate) fn sharing_words(sharing: &SharingReport) -> String {
    let SharingReport { way, reason, since_us, in_turns_ppm, at_once_ppm } = *sharing;
    let how = match way {
        SharingWay::Turns => "takes turns with other sessions",
        SharingWay::Overlap => "runs at once with other sessions",
    };
    let why = match (way, reason) {
        (_, SharingReason::NotCompared) => "the other way was not tried",
        (SharingWay::Turns, SharingReason::Guarantee) => {
            "at once, a session would get less than its guarantee"
        }
        (SharingWay::Turns, _) => "at once, they get no more done together",
        (SharingWay::Overlap, _) => "together they get more done than in turns",
    };
    let gave = match in_turns_ppm.zip(at_once_ppm) {
        Some((turns, at_once)) => format!(
            "; this one's speed: {} in turns, {} at once, of the better",
            Percent(turns),
            Percent(at_once)
        ),
        None => String::new(),
    };
    format!("{how} for {}: {why}{gave}", Seconds(since_us))
}

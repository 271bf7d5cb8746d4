//! The report, for people.

use std::fmt;

use limits::units::{PPM_PER_PERCENT, Size};
use limits::{ComputeLimit, Limits, MemoryLimit, Shown};
use protocol::sessions::{
    ByKind, ComputeReport, DeviceReport, MemoryReport, ProcessReport, SessionReport, StatusReport,
};

/// Displays a part of a report.
pub(super) struct View<'a, T>(pub(super) &'a T);

impl fmt::Display for View<'_, StatusReport> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.sessions.is_empty() {
            f.write_str("no sessions\n")?;
        }
        for session in &self.0.sessions {
            View(session).fmt(f)?;
        }
        for damaged in &self.0.damaged {
            writeln!(f, "DAMAGED {}: {}", Shown(&damaged.session), Shown(&damaged.problem))?;
        }
        Ok(())
    }
}

impl fmt::Display for View<'_, SessionReport> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let session = self.0;
        writeln!(f, "{} of user {}", Shown(&session.session), session.uid)?;
        if session.devices.is_empty() {
            writeln!(f, "  has used no device yet")?;
        }
        session.devices.iter().try_for_each(|device| View(device).fmt(f))
    }
}

impl fmt::Display for View<'_, DeviceReport> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceReport { uuid, memory, compute, processes, unknown } = self.0;
        let limits = limits(memory, compute);
        writeln!(f, "  {uuid}")?;
        let limit = limits.memory.map_or("no limit".to_owned(), |limit| limit.to_string());
        write!(f, "    memory  {limit}, {} used", Rounded(memory.used))?;
        let kinds: Vec<_> =
            named(&memory.by_kind).into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        for (number, (kind, bytes)) in kinds.iter().enumerate() {
            let open = if number == 0 { " (" } else { ", " };
            write!(f, "{open}{kind} {}", Rounded(*bytes))?;
        }
        f.write_str(if kinds.is_empty() { "" } else { ")" })?;
        match memory.left {
            _ if memory.growth_refused => {
                write!(f, "; OVER by {}: growth refused", Rounded(memory.over))?;
            }
            Some(left) => write!(f, ", {} left", Rounded(left))?,
            None => {}
        }
        write!(f, "\n    compute {}", limits.compute)?;
        if let Some(density) = compute.density_ppm {
            write!(f, ", density {}%", density / PPM_PER_PERCENT)?;
        }
        writeln!(f)?;
        if processes.is_empty() {
            writeln!(f, "    no processes")?;
        }
        processes.iter().try_for_each(|process| View(process).fmt(f))?;
        if *unknown > 0 {
            writeln!(f, "    {unknown} of these may have ended: that could not be told")?;
        }
        Ok(())
    }
}

/// The limits in a report.
fn limits(memory: &MemoryReport, compute: &ComputeReport) -> Limits {
    let ComputeReport { share_ppm, policy, soft_ppm, weight, priority, .. } = *compute;
    Limits {
        memory: memory.limit.map(|limit| MemoryLimit { limit, real: memory.real }),
        compute: ComputeLimit { share_ppm, policy, soft_ppm, weight, priority },
    }
}

/// The kinds by name.
fn named(kinds: &ByKind) -> [(&'static str, u64); 8] {
    [
        ("data", kinds.data),
        ("context", kinds.context),
        ("pool", kinds.pool),
        ("graph", kinds.graph),
        ("array", kinds.array),
        ("oversubscribed", kinds.oversubscribed),
        ("driver", kinds.driver),
        ("headroom", kinds.headroom),
    ]
}

impl fmt::Display for View<'_, ProcessReport> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.0;
        let name = Shown(process.name.as_deref().unwrap_or("?")).to_string();
        write!(f, "    {:>8} {name:<16} {:>10}", process.pid, Rounded(process.bytes).to_string())?;
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

/// Displays bytes: exact if they are a whole number of a unit, else to a tenth of it.
struct Rounded(u64);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = Size(self.0).to_string();
        if self.0 == 0 || exact.len() <= 7 {
            return exact.fmt(f);
        }
        let (shift, unit) = if self.0 >> 30 > 0 {
            (30, "GiB")
        } else if self.0 >> 20 > 0 {
            (20, "MiB")
        } else {
            (10, "KiB")
        };
        #[allow(clippy::cast_precision_loss, reason = "to a tenth")]
        let value = self.0 as f64 / (1_u64 << shift) as f64;
        write!(f, "{value:.1}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_exact_or_to_a_tenth() {
        for (bytes, text) in [
            (0, "0B"),
            (8 << 30, "8GiB"),
            (1536 << 20, "1536MiB"),
            ((8 << 30) + (512 << 20) + 4096, "8.5GiB"),
            ((3 << 20) + 1, "3.0MiB"),
            (2049, "2049B"),
        ] {
            assert_eq!(Rounded(bytes).to_string(), text);
        }
    }
}

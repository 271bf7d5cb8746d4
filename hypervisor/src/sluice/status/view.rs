//! The report, for people.

use std::fmt;

use limits::units::{PPM_PER_PERCENT, Size};

use super::report::{DeviceReport, ProcessReport, Report, SessionReport};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sessions.is_empty() {
            f.write_str("no sessions\n")?;
        }
        for session in &self.sessions {
            session.fmt(f)?;
        }
        for damaged in &self.damaged {
            writeln!(f, "DAMAGED {}: {}", shown(&damaged.session), shown(&damaged.problem))?;
        }
        Ok(())
    }
}

impl fmt::Display for SessionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of user {}", shown(&self.session), self.uid)?;
        if self.devices.is_empty() {
            writeln!(f, "  has used no device yet")?;
        }
        self.devices.iter().try_for_each(|device| device.fmt(f))
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {}", self.uuid)?;
        let memory = &self.memory;
        let limit = self.limits.memory.map_or("no limit".to_owned(), |limit| limit.to_string());
        write!(f, "    memory  {limit}, {} used", Rounded(memory.used))?;
        let kinds: Vec<_> =
            memory.by_kind.named().into_iter().filter(|(_, bytes)| *bytes > 0).collect();
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
        write!(f, "\n    compute {}", self.limits.compute)?;
        if let Some(density) = self.compute.density_ppm {
            write!(f, ", density {}%", density / PPM_PER_PERCENT)?;
        }
        writeln!(f)?;
        if self.processes.is_empty() {
            writeln!(f, "    no processes")?;
        }
        self.processes.iter().try_for_each(|process| process.fmt(f))
    }
}

impl fmt::Display for ProcessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().map_or_else(|| "?".to_owned(), shown);
        write!(f, "    {:>8} {name:<16} {:>10}", self.pid, Rounded(self.bytes).to_string())?;
        if let Some(host) = self.host_pid.filter(|host| *host != self.pid) {
            write!(f, "  pid {host} on the host")?;
        }
        if let Some(density) = self.density_ppm {
            write!(f, "  density {}%", density / PPM_PER_PERCENT)?;
        }
        if self.holding {
            f.write_str("  holding")?;
        }
        writeln!(f, "{}", if self.waiting { "  waiting" } else { "" })
    }
}

/// Bytes, exact where they are whole, else to a tenth of a unit.
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

/// A name that somebody else has chosen: without what could play with a terminal.
fn shown(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let escaped: Box<dyn Iterator<Item = char>> = if c.is_control() {
                Box::new(c.escape_default())
            } else {
                Box::new(std::iter::once(c))
            };
            escaped
        })
        .collect()
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

    #[test]
    fn names_cannot_play_with_the_terminal() {
        assert_eq!(shown("a\u{1b}[2Jb c"), "a\\u{1b}[2Jb c");
    }
}

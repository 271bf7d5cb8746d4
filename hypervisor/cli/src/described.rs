//! A session's limits, for people.

use std::fmt;

use limits::units::{Percent, Size};
use limits::{Policy, Priority};
use session::SessionLimits;
use session::layout::NO_LIMIT;

/// The memory limit, as in `8GiB (6GiB on the device)`.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a>(pub &'a SessionLimits);

impl fmt::Display for Memory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionLimits { memory, memory_real, .. } = *self.0;
        if memory == NO_LIMIT {
            return f.write_str("no limit");
        }
        Size(memory).fmt(f)?;
        if memory_real < memory {
            write!(f, " ({} on the device)", Size(memory_real))
        } else {
            Ok(())
        }
    }
}

/// The compute limit, as in `30% guaranteed, at most 60%, weight 30`.
#[derive(Debug, Clone, Copy)]
pub struct Compute<'a>(pub &'a SessionLimits);

impl fmt::Display for Compute<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.0;
        let share = Percent(limits.share_ppm);
        match limits.policy {
            Policy::None => return f.write_str("no limit"),
            Policy::Fixed => write!(f, "{share} fixed")?,
            Policy::Balance => {
                write!(f, "{share} guaranteed")?;
                if let Some(soft) = limits.soft_share_ppm {
                    write!(f, ", at most {}", Percent(soft))?;
                }
                write!(f, ", weight {}", limits.weight)?;
            }
        }
        if limits.priority == Priority::Low { f.write_str(", priority low") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_in_words() {
        let none = SessionLimits::default();
        assert_eq!(
            (Memory(&none).to_string(), Compute(&none).to_string()),
            ("no limit".into(), "no limit".into())
        );
        let limits = SessionLimits {
            memory: 8 << 30,
            memory_real: 6 << 30,
            share_ppm: 125_000,
            policy: Policy::Balance,
            soft_share_ppm: Some(600_000),
            weight: 13,
            priority: Priority::Low,
        };
        assert_eq!(Memory(&limits).to_string(), "8GiB (6GiB on the device)");
        assert_eq!(
            Compute(&limits).to_string(),
            "12.5% guaranteed, at most 60%, weight 13, priority low"
        );
        let fixed = SessionLimits { policy: Policy::Fixed, priority: Priority::High, ..limits };
        assert_eq!(Compute(&fixed).to_string(), "12.5% fixed");
        let all_real = SessionLimits { memory_real: 8 << 30, ..limits };
        assert_eq!(Memory(&all_real).to_string(), "8GiB");
    }
}

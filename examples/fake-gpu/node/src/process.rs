//! Is a recorded process still the one that was recorded?

/// When a process started, in clock ticks since boot (`/proc/PID/stat`, field 22); `None` if it
/// does not exist or has exited and only waits to be collected.
#[must_use]
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name (field 2) may hold blanks and parentheses; the last one ends it.
    let rest = &stat[stat.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::start_time;

    #[test]
    fn own_process_and_nobody() {
        let own = start_time(std::process::id());
        assert!(own.is_some_and(|ticks| ticks > 0));
        assert_eq!(own, start_time(std::process::id()));
        assert_eq!(start_time(u32::MAX), None);
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let mut alive = true;
        for _ in 0..500 {
            alive = start_time(pid).is_some();
            if !alive {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!alive);
        child.wait().unwrap();
    }
}

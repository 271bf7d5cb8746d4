//! Whether a recorded process is still the same one.

/// Offset of a clock in this process's time namespace, in nanoseconds.
pub(crate) fn ahead(clock: &str) -> i64 {
    let list = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let mut fields = list.lines().filter_map(|line| line.strip_prefix(clock));
    let mut fields = fields.next().unwrap_or_default().split_ascii_whitespace();
    let mut number = || fields.next().and_then(|field| field.parse::<i64>().ok()).unwrap_or(0);
    number() * 1_000_000_000 + number()
}

/// Start time of a process in clock ticks since boot (`/proc/PID/stat`, field 22), without the offset of this process's
/// time namespace; `None` if the process does not exist. Read from its first thread, which started at the same time:
/// QEMU's user mode falsifies a process's own `/proc/PID/stat` by a few ticks.
#[must_use]
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")).ok()?;
    // The command name (field 2) may contain blanks and parentheses; the last parenthesis ends it.
    let rest = &stat[stat.rfind(')')? + 1..];
    let shown: u64 = rest.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some(shown.wrapping_sub(ahead("boottime").div_euclid(10_000_000).cast_unsigned()))
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

    /// `starttime` in proc_pid_stat(5) is the process's, for whichever thread.
    #[test]
    fn it_is_the_one_of_the_process() {
        let stat = std::fs::read_to_string("/proc/1/stat").unwrap();
        let of_process = stat[stat.rfind(')').unwrap() + 1..].split_ascii_whitespace().nth(19);
        assert_eq!(start_time(1), of_process.and_then(|ticks| ticks.parse().ok()));
    }
}

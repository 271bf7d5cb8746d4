//! `sluice run --summary`: a line about a session when its program has ended.

use std::fs;
use std::path::Path;

use protocol::sessions::DeviceReport;
use session::{Names, Page, clock};

use super::status::{Bytes, Percent, Seconds, compute_limit, page_device};

/// What the session in `dir` has used, device by device.
pub(crate) fn lines(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut pages: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| Page::has_name_of_one(path)).collect();
    pages.sort();
    let mut names = Names::default();
    let used = pages.iter().filter_map(|path| {
        let page = Page::open_existing(path).ok()?;
        let summary = page.summary().ok().filter(|summary| summary.was_used)?;
        let uid = rustix::process::geteuid().as_raw();
        let found = (page.device(), summary);
        Some(line(&page_device(&found, &mut names, uid, None, clock::now_ns())))
    });
    let lines: Vec<String> = used.collect();
    if lines.is_empty() { vec!["no GPU was used".to_owned()] } else { lines }
}

fn line(device: &DeviceReport) -> String {
    let (memory, compute) = (&device.memory, &device.compute);
    let of = memory.limit.map_or_else(String::new, |limit| format!(" of {}", Bytes(limit)));
    let peak = format!("{}: peak memory {}{of}", device.uuid, Bytes(memory.peak));
    match compute.mean_ppm {
        Some(mean) => format!(
            "{peak}; {} GPU-seconds, {} of the time (limit: {}); waited {}",
            thousandths(compute.delivered_us),
            Percent(mean),
            compute_limit(compute),
            Seconds(compute.waited_us)
        ),
        None => format!("{peak}; GPU time is measured only under a compute limit"),
    }
}

fn thousandths(us: u64) -> String {
    format!("{}.{:03}", us / 1_000_000, us / 1_000 % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_seconds() {
        assert_eq!((thousandths(0), thousandths(12_034_999)), ("0.000".into(), "12.034".into()));
    }
}

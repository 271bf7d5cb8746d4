//! `sluice demo`: two programs on one GPU, each held to its memory and its share. Both are measured
//! against the same load alone.
//!
//! 1. native: the load alone, without Sluice.
//! 2. memory: each tenant takes memory until it is refused.
//! 3. sharing: both run the load at once, under a daemon of their own.

mod stage;
mod tenant;
mod track;
mod verdict;
mod view;

use std::time::{Duration, Instant};

use limits::units::{Amount, PPM_ONE};
use session::directory;

use self::stage::Stage;
use self::tenant::{Measured, MemoryResult, TenantLoad};
use self::track::Overlap;
use self::verdict::{DemoDeviceReport, DemoReport, TenantReport};
use self::view::{DemoView, Live, TenantRow};
use super::cli::DemoArgs;
use super::cli::LimitArgs;
use super::{Error, ExitStatus};

/// Length of one kernel of the load, in microseconds.
const KERNEL_US: u32 = 2_500;
/// When, as a part of the time, the demo looks as `sluice top` does, and the width of what is shown.
const LIVE_VIEW_AT: f64 = 0.8;
const LIVE_VIEW_WIDTH: usize = 90;
/// How often the child processes are checked.
const TICK: Duration = Duration::from_millis(50);

/// A tenant of the demo.
struct Guest {
    name: &'static str,
    share_ppm: u32,
    memory: u64,
}

/// The two tenants, on a device with `total` bytes (unknown for the simulated one, which has 16
/// GiB): 2 and 4 GiB, or an eighth and a quarter of a small device.
fn guests(total: Option<u64>) -> [Guest; 2] {
    let most = total.unwrap_or(u64::MAX);
    [
        Guest { name: "tenant-a", share_ppm: 250_000, memory: (2 << 30).min(most / 8) },
        Guest { name: "tenant-b", share_ppm: 750_000, memory: (4 << 30).min(most / 4) },
    ]
}

impl Guest {
    fn limits(&self) -> LimitArgs {
        LimitArgs {
            mem: Some(Amount::Bytes(self.memory)),
            compute: Some(self.share_ppm),
            ..LimitArgs::default()
        }
    }

    fn share(&self) -> f64 {
        f64::from(self.share_ppm) / f64::from(PPM_ONE)
    }
}

/// Runs the demo and returns the exit status: 0 if every limit held, 1 otherwise.
///
/// # Errors
/// [`Error`] if it could not be run to its end; its processes are ended then, too.
pub fn run(arguments: &DemoArgs) -> Result<u8, Error> {
    if directory::inside()?.is_some() {
        return Err(Error::Usage(
            "already inside a session, whose limits would hold for the demo; run it outside"
                .to_owned(),
        ));
    }
    let mut view = DemoView::new(arguments.json);
    let mut stage = Stage::set(arguments.fake_gpu)?;
    let length = Duration::from_secs(arguments.seconds.into());

    view.line(&format!(
        "Sluice demo: two programs share one GPU{}.",
        if stage.is_fake() { ", simulated in software" } else { "" }
    ));
    view.working("1/3  solo: the load alone, without limits");
    let native_length = (length / 3).clamp(Duration::from_secs(1), Duration::from_secs(5));
    let native = TenantLoad { kernel_us: KERNEL_US, length: native_length, iterations: None };
    let native = stage.measure_native(&native)?;
    let guests = guests(stage.device_memory(native.uuid));
    view.done(&format!(
        "1/3  solo: {:.0} kernels of {:.1} ms a second on {}",
        native.rate,
        f64::from(KERNEL_US) / 1e3,
        native.device
    ));

    stage.start_daemon()?;
    view.working("2/3  memory: each allocates beyond its limit");
    let taken = take_memory(&mut stage, &guests, &native)?;
    view.done("2/3  memory: each was stopped at its limit");

    view.working("3/3  sharing: both at once");
    let overlap = share(&mut stage, &mut view, &guests, &native, length)?;
    view.done(&format!("3/3  sharing: both at once for {:.1} s", overlap.seconds));

    let report = report(&stage, &guests, &native, &taken, &overlap);
    view.finish(&report)?;
    Ok(if report.holds() { 0 } else { ExitStatus::CheckFailed as u8 })
}

fn take_memory(
    stage: &mut Stage,
    guests: &[Guest; 2],
    native: &Measured,
) -> Result<[MemoryResult; 2], Error> {
    let [a, b] = guests;
    let mut start = |guest: &Guest| stage.start_memory(guest.name, &guest.limits(), native.uuid);
    let (mut first, mut second) = (start(a)?, start(b)?);
    Ok([stage.finish(&mut first)?, stage.finish(&mut second)?])
}

fn share(
    stage: &mut Stage,
    view: &mut DemoView,
    guests: &[Guest; 2],
    native: &Measured,
    length: Duration,
) -> Result<Overlap, Error> {
    let load = TenantLoad { kernel_us: KERNEL_US, length, iterations: Some(native.iterations) };
    let mut running = Vec::new();
    for guest in guests {
        running.push(stage.start_load(guest.name, &guest.limits(), native.uuid, &load)?);
    }
    let start = Instant::now();
    let mut looks = Vec::new();
    loop {
        stage.check_interrupt()?;
        // Some seconds before the end, so that the shares of the last seconds are known.
        if looks.is_empty() && start.elapsed() > length.mul_f64(LIVE_VIEW_AT) {
            looks = crate::top::lines(stage.daemon(), LIVE_VIEW_WIDTH)?;
        }
        let tracks: Vec<_> = running.iter().map(tenant::RunningTenant::track).collect();
        let shown = guests.iter().zip(&tracks).map(|(guest, track)| TenantRow {
            name: guest.name,
            limit: guest.share(),
            now: track.recent_rate() / native.rate,
        });
        view.live(&Live {
            elapsed: start.elapsed().min(length).as_secs_f64(),
            length: length.as_secs_f64(),
            tenants: shown.collect(),
        });
        let mut ended = true;
        for tenant in &mut running {
            ended &= stage.has_ended(tenant)?;
        }
        if ended {
            break;
        }
        std::thread::sleep(TICK);
    }
    let mut tracks = Vec::new();
    view.line("");
    view.line("sluice top --once, meanwhile:");
    looks.iter().for_each(|line| view.line(line));
    view.line("");
    for tenant in &mut running {
        let _: Measured = stage.finish(tenant)?;
        tracks.push(tenant.track());
    }
    track::overlap(&tracks).ok_or_else(|| Error::Helper {
        name: super::parts::TENANT,
        problem: "the two programs did not overlap for long enough to compare them; try a larger --seconds"
            .to_owned(),
    })
}

fn report(
    stage: &Stage,
    guests: &[Guest; 2],
    native: &Measured,
    taken: &[MemoryResult; 2],
    overlap: &Overlap,
) -> DemoReport {
    let tenants =
        guests.iter().zip(taken).zip(&overlap.rates).map(|((guest, taken), rate)| TenantReport {
            name: guest.name,
            compute_limit: guest.share(),
            compute_delivered: rate / native.rate,
            mem_limit_bytes: guest.memory,
            mem_granted_bytes: taken.granted_bytes,
            mem_stop: taken.stop.clone(),
        });
    DemoReport {
        device: DemoDeviceReport {
            kind: if stage.is_fake() { "fake" } else { "real" },
            name: native.device.clone(),
        },
        tenants: tenants.collect(),
        native_rate: native.rate,
        aggregate: overlap.rates.iter().sum::<f64>() / native.rate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_device_gets_small_limits() {
        let memory = |total| guests(total).map(|guest| guest.memory);
        assert_eq!(memory(None), [2 << 30, 4 << 30]);
        assert_eq!(memory(Some(141 << 30)), [2 << 30, 4 << 30]);
        assert_eq!(memory(Some(8 << 30)), [1 << 30, 2 << 30]);
    }
}

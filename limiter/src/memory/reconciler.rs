//! The reconciler: one thread per process, for memory changes that no call of the program reports, and for deferred
//! frees.
//!
//! It starts with the first context on a device that has a ledger. Queries to the driver and NVML may take
//! milliseconds; meanwhile the thread holds no lock that a call of the program would wait for without bound. The thread
//! does not keep a process from exiting: the exit waits a moment until it has left the driver, and does not let it in
//! again.

use super::bell::Bell;
use super::device::Devices;
use super::holdings::Holdings;
use super::overcommit::HostPlaced;
use super::reconcile::Reconciliations;
use crate::driver_calls;
use crate::exit_guard::{ExitGuard, Visits};
use crate::own_thread::CpuTime;
use crate::{clock, own_thread, unpatched};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Release};
use core::time::Duration;
use std::time::Instant;

/// The period of its own checks.
const PERIOD: Duration = Duration::from_secs(1);
/// The least time between two checks when the bell rings or a result has to be confirmed.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// How often pending frees are polled.
const FREES: Duration = Duration::from_millis(5);

/// Whether the reconciler of this process is running.
#[derive(Default)]
pub(crate) struct Started(AtomicBool);

/// The state that the reconciler works on.
#[derive(Clone, Copy)]
pub(super) struct Charge {
    pub(super) bell: &'static Bell,
    pub(super) devices: &'static Devices,
    pub(super) holdings: &'static Holdings,
    pub(super) looks: &'static Reconciliations,
    pub(super) placed: &'static HostPlaced,
}

impl Started {
    /// Starts the reconciler unless it is running.
    pub(super) fn start(&self, guard: &'static ExitGuard, charge: Charge) {
        if self.0.swap(true, AcqRel) {
            return;
        }
        let keep = move || keep(&guard.reconciler, charge);
        if let Err(error) = guard.start("sluice-memory", keep) {
            self.0.store(false, Release);
            unpatched::note(format!(
                "cannot start the thread that measures what the driver takes by itself: {error}"
            ));
        }
    }
}

fn keep(visits: &Visits, charge: Charge) {
    fn in_driver<R>(visits: &Visits, calls: impl FnOnce() -> R) -> R {
        let _inside = visits.enter();
        calls()
    }
    // This thread queries and frees while other threads may be capturing.
    in_driver(visits, driver_calls::never_disturb);
    let (mut looked, mut wanted) = (None::<Instant>, false);
    let mut cpu = CpuTime::default();
    loop {
        wanted |= charge.bell.was_rung();
        let since = looked.map_or(PERIOD, |looked| looked.elapsed());
        if since >= PERIOD || (wanted && since >= DEBOUNCE) {
            wanted = in_driver(visits, || {
                unpatched::check();
                charge.look(&mut cpu)
            });
            looked = Some(Instant::now());
        }
        if in_driver(visits, || charge.placed.carry_out_frees(0)) {
            own_thread::asleep(|| clock::sleep_for(FREES));
        } else if wanted {
            own_thread::asleep(|| clock::sleep_for(DEBOUNCE));
        } else {
            own_thread::asleep(|| charge.bell.sleep(PERIOD));
        }
    }
}

impl Charge {
    /// Checks each device. Returns whether to check again soon.
    fn look(&self, cpu: &mut CpuTime) -> bool {
        let mut soon = false;
        for device in self.devices.iter() {
            soon |= self.looks.reconcile(self.holdings, device);
            device.ledger.note_own_cpu(cpu.since());
        }
        soon
    }
}

//! Opening gates and ending leases through the gate page. The test's process has a gate page; a child of it has none.

use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use limits::GpuId;
use observer::{AllReadings, Blind, DeviceReading, Unread};
use protocol::{Admission, Decision, DeviceQuota, GatesInStream, LeaseReport, Register, VERSION};
use session::gate_page::{GateBlock, GatePage, Opened};
use tokio::time::timeout;

use super::alive::Stuck;
use super::ends::EndWatch;
use super::*;
use crate::identity::Owner;

/// A simulated device.
const DEVICE: GpuId =
    GpuId::from_bytes([0x5a, 0x1c, 0xe0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]);
const LONG: Duration = Duration::from_secs(5);
const MOMENT: Duration = Duration::from_millis(30);
/// Shorter than the wait for a lease whose end is not reported.
const PATIENCE: Duration = Duration::from_millis(150);
const SHORT: Duration = Duration::from_millis(5);

struct Process {
    caller: Caller,
    worker: u64,
}

struct Stage {
    core: Arc<Core>,
    page: GatePage,
    /// With the gate page.
    own: Process,
    /// Without a gate page.
    other: Process,
    child: Child,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Stage {
    async fn new() -> Self {
        let connections = ConnectionQuota::of_this_process();
        let core = Core::new(connections, Sources::default(), None, UnknownProcesses::Report);
        let timed = Arc::clone(&core);
        tokio::spawn(async move { timed.keep_time().await });
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let page = GatePage::create().unwrap();
        page.block_of(DEVICE).unwrap();
        let gates = Some(GatesInStream { descriptor: page.as_fd().as_raw_fd().into() });
        let own = Self::process(&core, std::process::id(), "own", gates).await;
        let other = Self::process(&core, child.id(), "other", None).await;
        Self { core, page, own, other, child }
    }

    async fn process(
        core: &Arc<Core>,
        pid: u32,
        session: &str,
        gates: Option<GatesInStream>,
    ) -> Process {
        let owner = Owner::user(rustix::process::geteuid().as_raw());
        let caller = Caller::new(pid.cast_signed(), owner);
        let devices = vec![DeviceQuota::fixed(DEVICE, 500_000)];
        let register = Register { protocol: VERSION, session: session.to_owned(), devices, gates };
        let worker = core.register(&caller, &register).await.unwrap().worker;
        Process { caller, worker }
    }

    fn block(&self) -> &GateBlock {
        self.page.block(self.page.block_of(DEVICE).unwrap())
    }

    fn ask(
        &self,
        process: &Process,
        gate: Option<u32>,
    ) -> Pin<Box<dyn Future<Output = Option<Lease>>>> {
        self.call(process, None, Some(LONG), gate)
    }

    async fn report(&self, process: &Process, lease: u64, held: Duration) {
        let report = LeaseReport::busy(lease, held.as_micros() as u64);
        assert_eq!(self.call(process, Some(report), None, None).await, None);
    }

    fn call(
        &self,
        process: &Process,
        report: Option<LeaseReport>,
        ask: Option<Duration>,
        gate: Option<u32>,
    ) -> Pin<Box<dyn Future<Output = Option<Lease>>>> {
        let (core, caller) = (Arc::clone(&self.core), process.caller.clone());
        let ask = ask.map(|ask| ask.as_micros() as u64);
        let worker = process.worker;
        let admission = Admission { report, ask, gate, ..Admission::of(worker, DEVICE) };
        Box::pin(async move {
            let Decision { lease, .. } = core.admission(&caller, admission).await.unwrap();
            lease
        })
    }

    /// Time charged to a session, and the number of leases.
    async fn charged(&self, session: &str) -> (Duration, usize) {
        let sessions = self.core.session_list(&self.own.caller).await.unwrap().0.sessions;
        let leases = self.core.lease_list(&self.own.caller).await.unwrap().0.leases;
        let it = sessions.iter().find(|status| status.name == session).unwrap();
        (Duration::from_micros(it.devices[0].charged_us), leases.len())
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

#[test]
fn a_grant_that_opened_a_gate_is_paid_for_although_its_call_is_gone() {
    run(async {
        for by_page in [true, false] {
            let stage = Stage::new().await;
            let first = stage.ask(&stage.other, None).await.unwrap();
            let word = stage.block().ask().filter(|_| by_page);
            let mut waits = stage.ask(&stage.own, word);
            assert!(timeout(MOMENT, &mut waits).await.is_err() && !stage.block().is_open());
            stage.report(&stage.other, first.id, MOMENT).await;
            // Before the answer arrives.
            assert_eq!(stage.block().is_open(), by_page);
            thread::sleep(MOMENT);
            drop(waits);
            assert!(!stage.block().is_open());
            let (charged, leases) = stage.charged("own").await;
            assert_eq!((charged >= MOMENT, leases), (by_page, 0), "{charged:?}");
            // The process withdraws the lease as well. The word that it named then opens nothing.
            assert!(!stage.block().withdraw());
            assert!(stage.ask(&stage.own, word).await.is_some() && !stage.block().is_open());
        }
    });
}

/// As if the process had been stopped while its call waited.
#[test]
fn a_gate_that_nobody_looks_after_is_closed_and_paid_for() {
    run(async {
        let stage = Stage::new().await;
        let first = stage.ask(&stage.other, None).await.unwrap();
        let mut waits = stage.ask(&stage.own, stage.block().ask());
        assert!(timeout(MOMENT, &mut waits).await.is_err());
        stage.report(&stage.other, first.id, MOMENT).await;
        assert!(stage.block().is_open());
        assert!(timeout(LONG, stage.ask(&stage.other, None)).await.unwrap().is_some());
        assert!(!stage.block().is_open());
        let (charged, _) = stage.charged("own").await;
        assert!(charged >= Duration::from_millis(20), "{charged:?}");
    });
}

#[test]
fn the_end_of_a_lease_is_seen_in_its_page_and_not_believed_twice() {
    run(async {
        let stage = Stage::new().await;
        let _watch = EndWatch::start(&stage.core).unwrap();
        let block = stage.block();
        // With a worker whose gates are on its threads, turns are long: no lease is ended early meanwhile.
        let first = stage.ask(&stage.other, None).await.unwrap();
        tokio::time::sleep(SHORT * 2).await;
        stage.report(&stage.other, first.id, SHORT * 2).await;
        for lies in [false, true] {
            let lease = stage.ask(&stage.own, block.ask()).await.unwrap().id;
            assert!(block.granted_at(lease).is_some() && block.is_open());
            assert_eq!(block.open(Some(lease)), Opened::Open);
            let mut waits = stage.ask(&stage.other, None);
            if lies {
                block.end(lease + 9);
            }
            assert!(timeout(SHORT, &mut waits).await.is_err());
            block.close();
            block.end(lease);
            if lies {
                assert!(timeout(SHORT, &mut waits).await.is_err());
            } else {
                // Seen in the page, without a report.
                waits = Box::pin(std::future::ready(timeout(PATIENCE, waits).await.unwrap()));
            }
            stage.report(&stage.own, lease, SHORT).await;
            let next = waits.await.unwrap().id;
            stage.report(&stage.other, next, SHORT).await;
        }
    });
}

/// As in a container in which NVML works and the kernel module shows no device.
#[derive(Debug)]
struct NoneShown;

impl Devices for NoneShown {
    fn exists(&self, _: GpuId) -> Existence {
        Existence::Unknown
    }

    fn any(&self) -> bool {
        false
    }
}

#[test]
fn a_daemon_that_observes_a_device_is_ready() {
    run(async {
        let connections = ConnectionQuota::of_this_process();
        let sources = Sources { devices: Arc::new(NoneShown), ..Sources::default() };
        let policy = UnknownProcesses::Report;
        let core = Core::new(connections, sources, None, policy);
        let readiness = core.readiness().await;
        assert_eq!(readiness.reasons[0].code, api::ReasonCode::NoDevice);
        let shown = DeviceReading::unread(0, DEVICE, &Unread::NotSupported);
        core.observe(|model| {
            model.read(AllReadings { taken: Instant::now(), devices: vec![shown] })
        });
        let readiness = core.readiness().await;
        assert!(readiness.ready && readiness.reasons.is_empty(), "{readiness:?}");
        core.observe(|model| model.blind(Blind("gone".to_owned())));
        assert!(!core.readiness().await.ready);
    });
}

#[test]
fn a_daemon_whose_state_is_in_use_for_long_is_not_ready() {
    run(async {
        let stage = Stage::new().await;
        let codes = async |stage: &Stage| -> Vec<api::ReasonCode> {
            let readiness = stage.core.readiness().await;
            assert_eq!(readiness.ready, readiness.reasons.is_empty());
            readiness.reasons.iter().map(|reason| reason.code).collect()
        };
        assert_eq!(codes(&stage).await, []);
        let (held, is_held) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let core = Arc::clone(&stage.core);
        let holds = thread::spawn(move || {
            let _state = core.state();
            held.send(()).unwrap();
            let _ = ends.recv();
        });
        is_held.recv().unwrap();
        assert_eq!(codes(&stage).await, [api::ReasonCode::SchedulerStuck]);
        // The watchdog is not signalled either.
        assert_eq!(stage.core.alive(), Err(Stuck::State));
        drop(end);
        holds.join().unwrap();
        assert_eq!(codes(&stage).await, []);
        assert!(stage.core.alive().is_ok_and(|alive| alive.processes == 2));
    });
}

//! A kubelet and devices, for tests.

mod go_client;
mod kubelet;
mod pods;

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use dialects::{Dialect, ResourceNames};
use limits::GpuId;
use node::{DeviceList, NodeError, Options};
use observer::{AllReadings, Blind, DeviceReading, Hardware, Link, Memory, Seen, Source, Unread};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use go_client::{GoClient, GoEncoder, Watched};
pub(crate) use kubelet::FakeKubelet;
pub(crate) use pods::Pods;
pub(crate) use small_api_server::ApiServer;

/// Only a hang lasts so long.
pub(crate) const HANG: Duration = Duration::from_secs(100);

pub(crate) async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, work).await.expect("it hangs")
}

/// Waits until it is so.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < HANG, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The simulated GPU of that number.
pub(crate) fn gpu(number: u8) -> GpuId {
    format!("GPU-5a1ce000-0000-4000-8000-0000000000{number:02x}").parse().unwrap()
}

/// Devices that show what the test says.
struct Script(Receiver<Seen>);

impl Source for Script {
    fn watch(&mut self, over: &AtomicBool, take: &mut dyn FnMut(Seen)) -> Result<(), Blind> {
        while !over.load(Ordering::Acquire) {
            match self.0.recv_timeout(Duration::from_millis(20)) {
                Ok(seen) => take(seen),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(())
    }
}

/// What so many devices of 80 GB show.
pub(crate) fn shows(count: u8) -> Seen {
    let device = |number| {
        let why = Unread::NotSupported;
        let mut reading = DeviceReading::unread(u32::from(number), gpu(number), &why);
        let total = 81_559 << 20;
        reading.memory = Ok(Memory { total, reserved: 0, used: 0, free: total });
        reading.hardware = Hardware {
            pci: Ok(format!("00000000:4{number}:00.0")),
            numa: Ok(u32::from(number)),
            capability: Ok((9, 0)),
            mig: Ok(false),
            // Each with the next one.
            links: vec![(gpu(number ^ 1), Link::NvLinks(18))],
        };
        reading
    };
    Seen::Devices(AllReadings { taken: Instant::now(), devices: (0..count).map(device).collect() })
}

/// `hypervisor node`, running.
pub(crate) struct Agent {
    pub(crate) devices: Sender<Seen>,
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<(), NodeError>>,
}

pub(crate) fn options(folder: &Path) -> Options {
    Options {
        kubelet: folder.join("kubelet"),
        allocations: folder.join("allocations"),
        dialects: vec![Dialect::VgpuManager],
        gates: "".parse().unwrap(),
        names: ResourceNames::default(),
        split: 10.try_into().unwrap(),
        memory_factor: 1024.try_into().unwrap(),
        library: folder.join("library"),
        daemon: folder.join("daemon/hypervisor.sock"),
        devices: DeviceList::Files,
        driver: None,
        image_preloads: None,
        scaling: node::pool::Scaling::ONCE,
        gpu_info: None,
        hami: dialects::registers::HamiForm::default(),
        cluster: None,
        dra: None,
        nri: None,
    }
}

impl Agent {
    pub(crate) fn start(options: Options, first: Seen) -> Self {
        let (devices, seen) = channel();
        devices.send(first).unwrap();
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(async move {
            node::serve(&options, Box::new(Script(seen)), async { _ = ended.await }).await
        });
        Self { devices, end, task }
    }

    /// Asks it to end.
    pub(crate) async fn stop(self) -> Result<(), NodeError> {
        _ = self.end.send(());
        in_time(self.task).await.unwrap()
    }

    /// It ends where it is, and removes nothing.
    pub(crate) async fn kill(self) {
        self.task.abort();
        _ = in_time(self.task).await;
    }

    /// Waits for it to end by itself.
    pub(crate) async fn fails(self) -> String {
        in_time(self.task).await.unwrap().unwrap_err().to_string()
    }
}

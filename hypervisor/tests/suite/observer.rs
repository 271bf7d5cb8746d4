//! A daemon that cannot see the devices. What one sees is tested with the simulated ones, by the limiter's tests.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use api::{DeviceDeclared, DeviceList};
use http_bidir_comm::client::ClientError;
use rustix::process::{Pid, Signal, kill_process};

use crate::process::{Daemon, GPU_ID, PATIENCE, admission, place, register};

#[test]
fn a_daemon_without_nvml_says_so_and_serves() {
    const NOWHERE: &str = "/nowhere/libnvidia-ml.so.1";
    let (_dir, socket) = place();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hypervisor"));
    command.env_clear().args(["daemon", "--nvml", NOWHERE, "--socket"]).arg(&socket);
    let mut daemon = Daemon::start_by(command.stderr(Stdio::piped()), &socket);
    let client = daemon.client();
    let start = Instant::now();
    let observer = loop {
        let list: DeviceList = client.get(api::path::DEVICES, PATIENCE).unwrap();
        if list.observer.message.is_some() {
            break list.observer;
        }
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(5));
    };
    assert!(!observer.sees && observer.message.unwrap().contains(NOWHERE));
    let worker = register(&client, "any", 500_000).unwrap();
    assert!(admission(&client, worker, None, Some(PATIENCE)).unwrap().is_some());
    let path = api::path::device(&GPU_ID.to_string(), "/healthy");
    let declared = client.post::<_, DeviceDeclared>(&path, &(), PATIENCE);
    assert!(matches!(declared, Err(ClientError::Refused { status: 404, .. })), "{declared:?}");
    kill_process(Pid::from_child(&daemon.process), Signal::TERM).unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut daemon.process.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(said.matches("cannot observe the node's devices").count(), 1, "{said}");
}

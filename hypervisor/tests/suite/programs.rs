//! Processes that use the device as a limited program does: each keeps its lease for as long as it
//! may.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::Duration;

use http_bidir_comm::client::{BlockingHttpClient, Endpoint};
use protocol::{DeviceQuota, LeaseReport, Register, Registered, VERSION, path};
use serde_json::json;

use crate::holders::now_us;
use crate::process::{PATIENCE, admission, given, helper};

/// How a helper uses the device: it keeps its lease for as long as it may.
#[derive(Clone)]
pub(crate) struct Program<'a> {
    pub(crate) session: &'a str,
    pub(crate) quota: DeviceQuota,
    /// What part of the time that it holds it uses.
    pub(crate) density: f64,
    pub(crate) length: Duration,
}

/// What a helper has seen.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Seen {
    /// When it held, lease by lease.
    pub(crate) held: Vec<(u64, u64)>,
    /// How often a lease was prolonged; refusals are `refused`.
    pub(crate) renewed: u64,
    refused: u64,
    /// How often a grant said that another session held at the same time.
    pub(crate) shared: u64,
}

impl Program<'_> {
    pub(crate) fn start(&self, socket: &Path) -> Child {
        let Self { session, quota, density, length } = self;
        let given = json!([socket, session, quota, density, length.as_millis() as u64]);
        helper("programs::helper_that_goes_on", &given).spawn().unwrap()
    }
}

#[test]
#[ignore = "a helper process of the other tests"]
fn helper_that_goes_on() {
    let Some(given) = given() else { return };
    let (socket, session, quota, density, length): (PathBuf, String, DeviceQuota, f64, u64) = given;
    let client = BlockingHttpClient::new(Endpoint::Unix(socket));
    let register = Register { protocol: VERSION, session, devices: vec![quota], gates: None };
    let registered: Registered = client.post(path::REGISTER, &register, PATIENCE).unwrap();
    let worker = registered.worker;
    let mut seen = Seen { held: Vec::new(), renewed: 0, refused: 0, shared: 0 };
    let end = now_us() + length * 1000;
    let mut last = None;
    while now_us() < end {
        // As the limiter asks.
        let poll = Some(Duration::from_millis(20));
        let Some(lease) = admission(&client, worker, last.take(), poll).unwrap() else { continue };
        let start = now_us();
        let (mut told, mut ends) = (start, start + lease.length_us);
        seen.shared += u64::from(lease.shared);
        let told = loop {
            let nap = ends.saturating_sub(now_us()).min(5_000);
            thread::sleep(Duration::from_micros(nap));
            let now = now_us();
            let used = ((now - told) as f64 * density) as u64;
            let report = LeaseReport {
                lease: lease.id,
                held_us: now - told,
                estimated_us: used,
                backlogged_us: if density > 0.95 { now - told } else { 0 },
                idle_us: 0,
                launches: 1,
                done: now >= ends || now >= end,
            };
            if report.done {
                break report;
            }
            told = now;
            if ends - now > 7_000 {
                continue_with(&client, worker, report);
                continue;
            }
            match admission(&client, worker, Some(report), Some(Duration::ZERO)).unwrap() {
                Some(more) => {
                    assert_eq!(more.id, lease.id);
                    ends = now_us() + more.length_us;
                    seen.renewed += 1;
                    seen.shared += u64::from(more.shared);
                }
                None => seen.refused += 1,
            }
        };
        seen.held.push((start, now_us()));
        last = Some(told);
    }
    if last.is_some() {
        admission(&client, worker, last, None).unwrap();
    }
    println!("SEEN {}", serde_json::to_string(&seen).unwrap());
}

/// Reports how a lease is used, and asks for nothing.
fn continue_with(client: &BlockingHttpClient, worker: u64, report: LeaseReport) {
    assert_eq!(admission(client, worker, Some(report), None).unwrap(), None);
}

pub(crate) fn overlap(a: &[(u64, u64)], b: &[(u64, u64)]) -> u64 {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    pairs.map(|(a, b)| a.1.min(b.1).saturating_sub(a.0.max(b.0))).sum()
}

pub(crate) fn total(held: &[(u64, u64)]) -> u64 {
    held.iter().map(|(a, b)| b - a).sum()
}

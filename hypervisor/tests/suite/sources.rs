//! Another source of identity and of quotas: a program that serves pods with the daemon's library.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use http_bidir_comm::server::Peer;
use hypervisor::{
    AsRegistered, Asked, Caller, Identity, KernelIdentity, Options, Owner, Quotas, Sources,
    Unidentified,
};
use limits::ComputeLimit;
use protocol::status::{NodeStatus, SessionStatus};
use protocol::{Admission, Decision, DeviceQuota, GatesInStream, Register, Registered, path};
use session::gate_page::GatePage;

use crate::process::{GPU_ID, PATIENCE, place, register, registration};

/// The owner that the test speaks for: a pod, its user, or none that is known.
#[derive(Clone, Debug, Default)]
struct Speaker(Arc<Mutex<Option<&'static str>>>);

impl Speaker {
    fn is(&self, pod: Option<&'static str>) {
        *self.0.lock().unwrap() = pod;
    }
}

impl Identity for Speaker {
    fn caller(&self, peer: Peer) -> Result<Caller, Unidentified> {
        match *self.0.lock().unwrap() {
            Some("unknown") => {
                let reason = "its cgroup is of no pod".to_owned();
                Err(Unidentified { pid: peer.pid, reason })
            }
            pod => {
                let pod = pod.map(str::to_owned);
                Ok(Caller { pid: peer.pid, owner: Owner { uid: peer.uid, pod } })
            }
        }
    }
}

/// A control plane's decisions, by session; other sessions have what their processes say.
#[derive(Debug)]
struct Table(BTreeMap<&'static str, ComputeLimit>);

impl Quotas for Table {
    fn quota(&self, asked: &Asked<'_>) -> ComputeLimit {
        assert_eq!((asked.uuid, &asked.owner.pod), (GPU_ID, &None));
        self.0.get(asked.session).copied().unwrap_or_else(|| AsRegistered.quota(asked))
    }
}

/// A daemon in this process.
fn serve(sources: Sources) -> (tempfile::TempDir, BlockingHttpClient) {
    let (dir, socket) = place();
    let options = Options { socket: Some(socket.clone()) };
    let serving = thread::spawn(move || hypervisor::run(&options, sources));
    let start = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        assert!(start.elapsed() < PATIENCE && !serving.is_finished());
        thread::sleep(Duration::from_millis(5));
    }
    (dir, BlockingHttpClient::new(Endpoint::Unix(socket)))
}

fn sessions(client: &BlockingHttpClient) -> Vec<SessionStatus> {
    let status: NodeStatus = client.get(path::STATUS, PATIENCE).unwrap();
    status.devices.into_iter().flat_map(|device| device.sessions).collect()
}

fn shares(client: &BlockingHttpClient) -> Vec<u32> {
    sessions(client).iter().map(|session| session.share_ppm).collect()
}

#[test]
fn pods_of_one_user_are_apart() {
    let speaker = Speaker::default();
    let identity: Arc<dyn Identity> = Arc::new(speaker.clone());
    let (_dir, client) = serve(Sources { identity, ..Sources::default() });
    speaker.is(Some("pod-a"));
    let worker = register(&client, "main", 300_000).unwrap();
    assert_eq!(shares(&client), [300_000]);
    // The same user and the same name are another session here, and the first one cannot be seen.
    speaker.is(Some("pod-b"));
    assert_eq!(shares(&client), [0; 0]);
    assert_ne!(register(&client, "main", 200_000).unwrap(), worker);
    assert_eq!(shares(&client), [200_000]);
    speaker.is(Some("pod-a"));
    assert_eq!(shares(&client), [300_000]);
    // The daemon's own user sees all sessions.
    speaker.is(None);
    assert_eq!(shares(&client), [300_000, 200_000]);
    speaker.is(Some("unknown"));
    let refused = register(&client, "main", 1).unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 403, .. }), "{refused}");
    assert!(refused.to_string().contains("its cgroup is of no pod"), "{refused}");
}

/// The kernel's word on the caller may be out of date: the process has ended, and another user's has its
/// id. That process is not asked for its page.
#[test]
fn a_process_of_another_user_is_not_asked_for_its_page() {
    #[derive(Debug)]
    struct Late(u32);
    impl Identity for Late {
        fn caller(&self, peer: Peer) -> Result<Caller, Unidentified> {
            Ok(Caller { pid: peer.pid, owner: Owner::user(peer.uid + self.0) })
        }
    }
    let page = GatePage::create().unwrap();
    page.block_of(GPU_ID).unwrap();
    let descriptor = page.as_fd().as_raw_fd().into();
    let register =
        Register { gates: Some(GatesInStream { descriptor }), ..registration("main", 300_000) };
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("sluice-gates")).count()
    };
    assert_eq!(mapped(), 1);
    for (user, pages) in [(1, 1), (0, 2)] {
        let (_dir, client) =
            serve(Sources { identity: Arc::new(Late(user)), ..Sources::default() });
        let _: Registered = client.post(path::REGISTER, &register, PATIENCE).unwrap();
        assert_eq!(mapped(), pages, "{user}");
    }
}

#[test]
fn a_table_overrules_what_a_session_says() {
    let quarter = ComputeLimit { weight: 0, ..ComputeLimit::balance(250_000, 7) };
    let nothing = ComputeLimit::fixed(0);
    let quotas = Arc::new(Table([("known", quarter), ("mistaken", nothing)].into()));
    let (_dir, client) =
        serve(Sources { identity: Arc::new(KernelIdentity), quotas, ..Sources::default() });
    let worker = register(&client, "known", 900_000).unwrap();
    // A value of the source that is out of range is replaced by the nearest possible one.
    let session = &sessions(&client)[0];
    assert_eq!((session.share_ppm, session.policy, session.weight), (250_000, quarter.policy, 1));
    let change = Admission {
        worker,
        uuid: GPU_ID,
        report: None,
        ask: None,
        quota: Some(DeviceQuota::fixed(GPU_ID, 800_000)),
    };
    let _: Decision = client.post(path::REPORT, &change, PATIENCE).unwrap();
    assert_eq!(shares(&client), [250_000]);
    register(&client, "mistaken", 900_000).unwrap();
    register(&client, "unknown", 600_000).unwrap();
    let mut all = shares(&client);
    all.sort_unstable();
    assert_eq!(all, [1, 250_000, 600_000]);
}

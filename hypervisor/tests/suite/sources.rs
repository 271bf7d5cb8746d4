//! Another source of identity and of quotas: a program that serves pods with the daemon's library.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use api::{DeviceList, Session, SessionAction, SessionDevice, SessionList};
use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use http_bidir_comm::server::Peer;
use hypervisor::{
    AsRegistered, Asked, Caller, Identity, KernelIdentity, Options, Owner, Quotas, Sources,
    Unidentified,
};
use limits::ComputeLimit;
use protocol::{Admission, Decision, DeviceQuota, GatesInStream, Register, Registered, path};
use session::gate_page::GatePage;

use crate::call::call;
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
                let pod = pod.map(|pod| pod.parse().unwrap());
                Ok(Caller::new(peer.pid, Owner { pod, ..Owner::user(peer.uid) }))
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
    let options = Options { socket: Some(socket.clone()), ..Options::default() };
    let serving = thread::spawn(move || hypervisor::run(&options, sources));
    let start = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        assert!(start.elapsed() < PATIENCE && !serving.is_finished());
        thread::sleep(Duration::from_millis(5));
    }
    (dir, BlockingHttpClient::new(Endpoint::Unix(socket)))
}

fn sessions(client: &BlockingHttpClient) -> Vec<SessionDevice> {
    let list: SessionList = client.get(api::path::SESSIONS, PATIENCE).unwrap();
    list.sessions.into_iter().flat_map(|session| session.devices).collect()
}

fn shares(client: &BlockingHttpClient) -> Vec<u32> {
    sessions(client).iter().map(|session| session.share_ppm).collect()
}

#[test]
fn another_owner_s_session_is_a_sum_and_is_not_changed() {
    let speaker = Speaker::default();
    let identity: Arc<dyn Identity> = Arc::new(speaker.clone());
    let (dir, _) = serve(Sources { identity, ..Sources::default() });
    let socket = dir.path().join("daemon.sock");
    let as_pod = |pod| {
        speaker.is(Some(pod));
        BlockingHttpClient::new(Endpoint::Unix(socket.clone()))
    };
    // A session of this name is on the node, too. It is another one.
    let owned = session::directory::OwnedSession::create().unwrap();
    let before = limits::Limits { memory: None, compute: ComputeLimit::fixed(200_000) };
    let page = session::Page::open(owned.path(), GPU_ID, &before).unwrap();
    let name = session::directory::shown_name(Path::new(owned.path().file_name().unwrap()));
    let first = as_pod("aaaaaaaa-0000-4000-8000-000000000000");
    register(&first, &name, 300_000).unwrap();
    let list = |client: &BlockingHttpClient| {
        client.get::<SessionList>(api::path::SESSIONS, PATIENCE).unwrap()
    };
    let id = list(&first).sessions[0].id;
    let act = |client: &BlockingHttpClient, action, id| -> Result<SessionAction, ClientError> {
        client.post(&api::path::session(id, action), &(), PATIENCE)
    };
    assert!(act(&first, "/freeze", id).is_ok() && act(&first, "/thaw", id).is_ok());
    let change = Some(r#"{"share_ppm": 250000}"#);
    let (status, text) = call(&socket, "PUT", &api::path::session(id, "/limits"), change);
    assert!(status == 409 && text.contains("no_page"), "{text}");
    assert_eq!(page.layout().limits().compute.share_ppm, 200_000);
    let second = as_pod("bbbbbbbb-0000-4000-8000-000000000000");
    assert_eq!(list(&second), SessionList { sessions: Vec::new(), others: 1 });
    let devices: DeviceList = second.get(api::path::DEVICES, PATIENCE).unwrap();
    let (own, others) = (&devices.devices[0].own, &devices.devices[0].others);
    assert_eq!((own.sessions, others.sessions, others.share_ppm), (0, 1, 300_000));
    let status = |refused: ClientError| match refused {
        ClientError::Refused { status, .. } => status,
        other => panic!("{other}"),
    };
    // Its id cannot be probed: each call says the same as of an id that nobody has.
    for (id, other) in [(id, id + 1), (id + 1, id)] {
        let one = second.get::<Session>(&api::path::session(id, ""), PATIENCE).unwrap_err();
        let said = one.to_string();
        assert_eq!(status(one), 404);
        assert!(said.contains("is unknown") && !said.contains(&other.to_string()), "{said}");
        for action in ["/freeze", "/thaw"] {
            let refused = act(&second, action, id).unwrap_err();
            assert_eq!(refused.to_string(), said);
            assert_eq!(status(refused), 404);
        }
        let path = api::path::session(id, "/limits");
        let change = serde_json::json!({"share_ppm": 250_000});
        let refused = second.put::<_, api::LimitsChanged>(&path, &change, PATIENCE).unwrap_err();
        assert_eq!(refused.to_string(), said);
    }
}

#[test]
fn pods_of_one_user_are_apart() {
    let speaker = Speaker::default();
    let identity: Arc<dyn Identity> = Arc::new(speaker.clone());
    let (dir, _) = serve(Sources { identity, ..Sources::default() });
    // Who calls is asked once for each connection.
    let as_pod = |pod| {
        speaker.is(pod);
        BlockingHttpClient::new(Endpoint::Unix(dir.path().join("daemon.sock")))
    };
    let first = as_pod(Some("aaaaaaaa-0000-4000-8000-000000000000"));
    let worker = register(&first, "main", 300_000).unwrap();
    assert_eq!(shares(&first), [300_000]);
    // The same user and the same name are another session here, and the first one cannot be seen.
    let second = as_pod(Some("bbbbbbbb-0000-4000-8000-000000000000"));
    assert_eq!(shares(&second), [0; 0]);
    assert_ne!(register(&second, "main", 200_000).unwrap(), worker);
    assert_eq!(shares(&second), [200_000]);
    assert_eq!(shares(&first), [300_000]);
    // The daemon's own user sees all sessions.
    assert_eq!(shares(&as_pod(None)), [300_000, 200_000]);
    let refused = register(&as_pod(Some("unknown")), "main", 1).unwrap_err();
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
            Ok(Caller::new(peer.pid, Owner::user(peer.uid + self.0)))
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
    let (_dir, client) = serve(Sources {
        identity: Arc::new(KernelIdentity::default()),
        quotas,
        ..Sources::default()
    });
    let worker = register(&client, "known", 900_000).unwrap();
    // A value of the source that is out of range is replaced by the nearest possible one.
    let session = &sessions(&client)[0];
    assert_eq!(
        (session.share_ppm, session.policy, session.weight),
        (250_000, quarter.policy.into(), 1)
    );
    let change = Admission {
        worker,
        uuid: GPU_ID,
        report: None,
        ask: None,
        quota: Some(DeviceQuota::fixed(GPU_ID, 800_000)),
        gate: None,
        together: false,
        outside_us: 0,
        queued_us: 0,
    };
    let _: Decision = client.post(path::REPORT, &change, PATIENCE).unwrap();
    assert_eq!(shares(&client), [250_000]);
    register(&client, "mistaken", 900_000).unwrap();
    register(&client, "unknown", 600_000).unwrap();
    let mut all = shares(&client);
    all.sort_unstable();
    assert_eq!(all, [1, 250_000, 600_000]);
}

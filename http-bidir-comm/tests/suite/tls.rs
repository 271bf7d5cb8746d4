//! Client and server over TLS, and their errors if the other side does not speak it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint, TrustedRoots};
use http_bidir_comm::server::{Answer, Body, BoundedTcpListener, ServerTls, serve};
use poem::{Route, get, handler, post};
use rcgen::{CertificateParams, KeyPair};
use tokio::runtime::Runtime;

use crate::authority::Authority;

const PATIENCE: Duration = Duration::from_secs(30);

#[handler]
async fn echo(body: Body<String>) -> Answer<String> {
    Answer(body.0)
}

#[handler]
async fn long() -> Answer<String> {
    Answer("x".repeat(1 << 20))
}

struct Served {
    _runtime: Runtime,
    port: u16,
}

impl Served {
    /// A server for at most `most` connections; `tls` is certificate and key.
    fn new(most: usize, tls: Option<(String, String)>) -> Self {
        let of = |(certificate, key): (String, String)| {
            ServerTls::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap()
        };
        Self::with(most, tls.map(of))
    }

    fn with(most: usize, tls: Option<ServerTls>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let context = runtime.enter();
        let listener = BoundedTcpListener::bind(([127, 0, 0, 1], 0).into(), most).unwrap();
        let port = listener.local_addr().unwrap().port();
        let routes = Route::new().at("/echo", post(echo)).at("/long", get(long));
        match tls {
            Some(tls) => {
                runtime.spawn(serve(listener.with_tls(tls), routes));
            }
            None => {
                runtime.spawn(serve(listener, routes));
            }
        }
        drop(context);
        Self { _runtime: runtime, port }
    }

    fn over_tls(&self, roots: TrustedRoots) -> BlockingHttpClient {
        BlockingHttpClient::over_tls("127.0.0.1".into(), self.port, None, roots).unwrap()
    }

    fn plain(&self) -> BlockingHttpClient {
        let host = "127.0.0.1".to_owned();
        BlockingHttpClient::new(Endpoint::Tcp { host, port: self.port, token: None })
    }
}

fn roots(authority: &Authority) -> TrustedRoots {
    TrustedRoots::from_pem(authority.pem.as_bytes()).unwrap()
}

fn call(client: &BlockingHttpClient) -> Result<String, ClientError> {
    client.post("/echo", "a word", PATIENCE)
}

#[test]
fn a_server_of_the_right_ca_is_called_on_one_connection() {
    let authority = Authority::new();
    // The only connection slot: the connection is kept alive.
    let served = Served::new(1, Some(authority.signs("127.0.0.1")));
    let client = served.over_tls(roots(&authority));
    for _ in 0..3 {
        assert_eq!(call(&client).unwrap(), "a word");
    }
    let answer: String = client.get("/long", PATIENCE).unwrap();
    assert_eq!(answer.len(), 1 << 20);
    assert_eq!(call(&client).unwrap(), "a word");
}

#[test]
fn a_certificate_that_signs_itself_is_its_own_ca() {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    let served = Served::new(1, Some((pem.clone(), key.serialize_pem())));
    let client = served.over_tls(TrustedRoots::from_pem(pem.as_bytes()).unwrap());
    assert_eq!(call(&client).unwrap(), "a word");
}

#[test]
fn a_renewed_certificate_is_that_of_new_connections() {
    let (former, later) = (Authority::new(), Authority::new());
    let [tls, renewed] = [&former, &later].map(|authority| {
        let (certificate, key) = authority.signs("127.0.0.1");
        ServerTls::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap()
    });
    let served = Served::with(8, Some(tls.clone()));
    let kept = served.over_tls(roots(&former));
    assert_eq!(call(&kept).unwrap(), "a word");
    tls.renew(&renewed);
    assert_eq!(call(&kept).unwrap(), "a word");
    assert_eq!(call(&served.over_tls(roots(&later))).unwrap(), "a word");
    let said = call(&served.over_tls(roots(&former))).unwrap_err();
    assert!(matches!(said, ClientError::Tls { .. }), "{said:?}");
}

#[test]
fn a_server_of_another_ca_or_another_name_is_not_used() {
    let (authority, other) = (Authority::new(), Authority::new());
    let served = Served::new(8, Some(authority.signs("127.0.0.1")));
    let said = call(&served.over_tls(roots(&other))).unwrap_err();
    assert!(matches!(said, ClientError::Tls { .. }), "{said:?}");
    assert!(said.to_string().contains("name the CA that signed it"), "{said}");
    let served = Served::new(8, Some(authority.signs("elsewhere.test")));
    let said = call(&served.over_tls(roots(&authority))).unwrap_err();
    assert!(matches!(said, ClientError::Tls { .. }), "{said:?}");
    assert!(said.to_string().contains("elsewhere.test"), "{said}");
}

#[test]
fn either_side_says_what_it_would_accept() {
    let authority = Authority::new();
    let served = Served::new(8, Some(authority.signs("127.0.0.1")));
    match call(&served.plain()).unwrap_err() {
        ClientError::Refused { status: 400, message } => {
            assert!(message.contains("this port speaks TLS; use https"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let plain = Served::new(8, None);
    let said = call(&plain.over_tls(roots(&authority))).unwrap_err();
    assert!(matches!(said, ClientError::Tls { .. }), "{said:?}");
    assert!(said.to_string().contains("it does not speak TLS; connect without a CA"), "{said}");
    // The port still serves clients with TLS.
    assert_eq!(call(&served.over_tls(roots(&authority))).unwrap(), "a word");
    assert_eq!(call(&plain.plain()).unwrap(), "a word");
}

#[test]
fn one_caller_too_many_is_let_go() {
    let authority = Authority::new();
    let served = Served::new(1, Some(authority.signs("127.0.0.1")));
    let kept = served.over_tls(roots(&authority));
    call(&kept).unwrap();
    let said = call(&served.over_tls(roots(&authority))).unwrap_err();
    assert!(matches!(said, ClientError::Connect { .. }), "{said:?}");
    assert_eq!(call(&kept).unwrap(), "a word");
}

#[test]
fn garbage_after_the_first_byte_ends_the_connection() {
    let authority = Authority::new();
    let served = Served::new(1, Some(authority.signs("127.0.0.1")));
    for garbage in [&[22; 64][..], &[22, 3, 1, 0, 4, 9, 9, 9, 9], &[0; 64], b"\r\n\r\n"] {
        let mut stream = TcpStream::connect(("127.0.0.1", served.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(garbage).unwrap();
        let mut answer = Vec::new();
        // An alert or a refusal, then the end of the stream; or the end at once.
        let ended = stream.read_to_end(&mut answer);
        let reset = ended.is_err_and(|error| error.kind() != std::io::ErrorKind::ConnectionReset);
        assert!(!reset && answer.len() < 1024, "{answer:?}");
    }
    // The only slot: the failed connections have freed theirs.
    let client = served.over_tls(roots(&authority));
    let start = std::time::Instant::now();
    while call(&client).is_err() {
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn what_is_no_certificate_or_no_key_is_refused() {
    let authority = Authority::new();
    let (certificate, key) = authority.signs("127.0.0.1");
    let (_, other) = authority.signs("127.0.0.1");
    let said = |certificate: &str, key: &str| {
        ServerTls::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err().to_string()
    };
    assert!(said("", &key).contains("BEGIN CERTIFICATE"));
    assert!(said(&key, &key).contains("BEGIN CERTIFICATE"));
    assert!(said(&certificate, &certificate).contains("BEGIN PRIVATE KEY"));
    assert!(said(&certificate, &other).contains("expected the key of the first certificate"));
    for none in
        ["", "x", key.as_str(), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
    {
        assert!(TrustedRoots::from_pem(none.as_bytes()).is_err(), "{none}");
    }
    let host = BlockingHttpClient::over_tls("no host".into(), 1, None, roots(&authority));
    assert!(host.unwrap_err().to_string().contains("'no host' is not a host"));
}

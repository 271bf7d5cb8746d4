//! Who may be which client.

use std::thread;

use http_bidir_comm::server::{ApiError, BearerToken, Caller, SameUser};
use poem::http::StatusCode;

use super::*;

const TOKEN: &str = "correct-horse-battery";

fn run(endpoint: Endpoint, transport: Transport) -> Result<(), ClientError> {
    client(endpoint, transport).run(&Stop::new(), |n| n)
}

#[test]
fn a_token_opens_a_port() {
    for transport in TRANSPORTS {
        let served = Served::new(short_keep_alive(), BearerToken::new(TOKEN).unwrap());
        for wrong in [None, Some("correct-horse-batterY"), Some("")] {
            let refused = run(served.listening_on_tcp(8, wrong), transport).unwrap_err();
            assert!(matches!(refused, ClientError::Refused { status: 401, .. }), "{refused}");
            assert!(!refused.to_string().contains(TOKEN));
        }
        assert_eq!(served.tasks.clients(), []);
        let doubler = Doubler::start(served.listening_on_tcp(8, Some(TOKEN)), transport);
        served.arrival();
        let pending = served.tasks.send(&name(), &1, LONG).unwrap();
        assert_eq!(served.runtime.block_on(pending.result()), Ok(2));
        doubler.end();
    }
}

#[test]
fn a_hook_sees_process_and_name_on_each_request() {
    let (_dir, path) = socket();
    let own = std::process::id();
    let hook = move |caller: &Caller<'_>| {
        let process = caller.peer.map(|peer| peer.pid.unsigned_abs());
        if process == Some(own) && caller.client.as_str() != "worker-1" {
            Ok(())
        } else {
            Err(ApiError::new(StatusCode::FORBIDDEN, format!("{} is not yours", caller.client)))
        }
    };
    let served = Served::new(short_keep_alive(), hook).listening(&path);
    let refused = run(Endpoint::Unix(path), Transport::LongPoll).unwrap_err();
    assert_eq!(refused.to_string(), "refused (403): worker-1 is not yours");
    assert_eq!(served.tasks.clients(), []);
}

#[test]
fn the_kernel_s_word_is_not_there_over_tcp() {
    let (_dir, path) = socket();
    let served = Served::new(short_keep_alive(), SameUser).listening(&path);
    let refused = run(served.listening_on_tcp(8, None), Transport::EventStream).unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 403, .. }), "{refused}");
    let doubler = Doubler::start(Endpoint::Unix(path), Transport::LongPoll);
    served.arrival();
    doubler.end();
}

#[test]
fn a_port_has_a_bound_on_its_connections() {
    let served = Served::new(short_keep_alive(), Anyone);
    let endpoint = served.listening_on_tcp(1, None);
    let first = Doubler::start(endpoint.clone(), Transport::EventStream);
    served.arrival();
    // Bringing results takes another connection than the stream: it is refused until one is free.
    let http = BlockingHttpClient::new(endpoint);
    let refused = http.reach("/tasks", LONG);
    assert!(matches!(refused, Ok(503) | Err(ClientError::Connect { .. })), "{refused:?}");
    first.end();
    let start = std::time::Instant::now();
    while !matches!(http.reach("/tasks", LONG), Ok(404)) {
        assert!(start.elapsed() < LONG);
        thread::sleep(Duration::from_millis(10));
    }
}

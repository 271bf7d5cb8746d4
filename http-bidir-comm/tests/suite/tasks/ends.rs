//! Clients that end, or take each other's place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use http_bidir_comm::Refusal;
use http_bidir_comm::server::TaskError;

use super::*;

#[test]
fn a_later_client_takes_the_place_of_an_earlier_one() {
    for transport in TRANSPORTS {
        let (_dir, path) = socket();
        let served = Served::at(&path, short_keep_alive());
        let endpoint = Endpoint::Unix(path);
        let (told, is_handling) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let earlier = endpoint.clone();
        let earlier = thread::spawn(move || {
            client(earlier, transport).run(&Stop::new(), |n| {
                told.send(()).unwrap();
                may_go_on.recv().unwrap();
                n
            })
        });
        served.arrival();
        let interrupted = served.tasks.send(&name(), &1, LONG).unwrap();
        is_handling.recv_timeout(LONG).unwrap();
        let later = Doubler::start(endpoint, transport);
        let ended = served.runtime.block_on(interrupted.result());
        assert_eq!(ended, Err(TaskError::ClientRestarted), "{transport:?}");
        let next = served.tasks.send(&name(), &2, LONG).unwrap();
        assert_eq!(served.runtime.block_on(next.result()), Ok(4));
        go_on.send(()).unwrap();
        let refused = earlier.join().unwrap().unwrap_err();
        assert!(matches!(refused, ClientError::Refused { status: 409, .. }), "{refused}");
        assert_eq!(later.end(), [2]);
    }
}

#[test]
fn a_panic_is_told_and_its_task_is_not_tried_again() {
    for transport in TRANSPORTS {
        let (_dir, path) = socket();
        let served = Served::at(&path, short_keep_alive());
        let stop = Stop::new();
        let stopping = stop.clone();
        let running = thread::spawn(move || {
            let mut client = client(Endpoint::Unix(path), transport);
            let mut panicked = 0;
            while !stopping.is_stopped() {
                let run = AssertUnwindSafe(|| {
                    client.run(&stopping, |n| if n == 1 { panic!("one") } else { n })
                });
                panicked += u32::from(catch_unwind(run).is_err());
            }
            panicked
        });
        served.arrival();
        let pending: Vec<_> =
            (0..3).map(|n| served.tasks.send(&name(), &n, LONG).unwrap()).collect();
        for (n, pending) in (0..).zip(pending) {
            let ended = served.runtime.block_on(pending.result());
            if n == 1 {
                assert_eq!(ended, Err(TaskError::Refused(Refusal::Panicked)));
            } else {
                assert_eq!(ended, Ok(n));
            }
        }
        stop.stop();
        assert_eq!(running.join().unwrap(), 1);
    }
}

#[test]
fn failures_are_told_and_followed_by_pauses() {
    let (_dir, path) = socket();
    let (told, failures) = mpsc::channel();
    let stop = Stop::new();
    let stopping = stop.clone();
    let endpoint = Endpoint::Unix(path.clone());
    let running = thread::spawn(move || {
        let client = client(endpoint, Transport::EventStream);
        let mut client = client.on_failure(move |error, pause| {
            told.send((error.to_string(), pause)).unwrap();
        });
        client.run(&stopping, |n| n)
    });
    for _ in 0..10 {
        let (error, pause) = failures.recv_timeout(LONG).unwrap();
        assert!(error.contains("cannot be reached"), "{error}");
        assert!(pause <= Duration::from_millis(50));
    }
    let served = Served::at(&path, short_keep_alive());
    served.arrival();
    stop.stop();
    running.join().unwrap().unwrap();
}

//! Every task is handled once, whatever happens to connections and to the server.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;

#[test]
fn a_task_is_handled_and_its_result_comes_back() {
    for transport in TRANSPORTS {
        let (_dir, path) = socket();
        let served = Served::at(&path, short_keep_alive());
        let over_tcp = served.listening_on_tcp(8, None);
        for endpoint in [Endpoint::Unix(path.clone()), over_tcp] {
            let doubler = Doubler::start(endpoint.clone(), transport);
            served.arrival();
            let pending: Vec<_> =
                (0..40).map(|n| served.tasks.send(&name(), &n, LONG).unwrap()).collect();
            for (n, pending) in (0..).zip(pending) {
                let result = served.runtime.block_on(pending.result());
                assert_eq!(result, Ok(n * 2), "{transport:?} over {endpoint}");
            }
            assert_eq!(doubler.end(), (0..40).collect::<Vec<_>>());
            served.tasks.remove(&name());
        }
    }
}

/// Passes connections on, and cuts each after some bytes, in the middle of whatever they are.
struct Cutter {
    path: PathBuf,
    cuts: Arc<AtomicUsize>,
}

impl Cutter {
    fn start(path: PathBuf, server: PathBuf) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let cuts = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&cuts);
        thread::spawn(move || {
            for (number, client) in (0usize..).zip(listener.incoming()) {
                let (client, server) = (client.unwrap(), UnixStream::connect(&server).unwrap());
                // Of 700 bytes a whole exchange comes through, sometimes not even its head.
                let after = number * 7919 % 1400;
                pass(&client, &server, after, &counting);
                pass(&server, &client, after * 2, &counting);
            }
        });
        Self { path, cuts }
    }
}

fn pass(from: &UnixStream, to: &UnixStream, mut left: usize, cuts: &Arc<AtomicUsize>) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    let cuts = Arc::clone(cuts);
    thread::spawn(move || {
        let mut piece = [0; 256];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            let passed = count.min(left);
            if to.write_all(&piece[..passed]).is_err() {
                break;
            }
            left -= passed;
            if left == 0 {
                cuts.fetch_add(1, Ordering::SeqCst);
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    });
}

#[test]
fn cut_connections_lose_nothing_and_repeat_nothing() {
    for transport in TRANSPORTS {
        let (_dir, path) = socket();
        let served = Served::at(&path, short_keep_alive());
        let cutter = Cutter::start(path.with_file_name("cut"), path);
        let doubler = Doubler::start(Endpoint::Unix(cutter.path), transport);
        served.arrival();
        let pending: Vec<_> =
            (0..100).map(|n| served.tasks.send(&name(), &n, LONG).unwrap()).collect();
        for (n, pending) in (0..).zip(pending) {
            assert_eq!(served.runtime.block_on(pending.result()), Ok(n * 2), "{transport:?}");
        }
        assert_eq!(doubler.end(), (0..100).collect::<Vec<_>>());
        assert!(cutter.cuts.load(Ordering::SeqCst) > 20, "{transport:?}");
    }
}

#[track_caller]
fn exchange(served: &Served, numbers: std::ops::Range<u64>) {
    served.arrival();
    for n in numbers {
        let pending = served.tasks.send(&name(), &n, LONG).unwrap();
        assert_eq!(served.runtime.block_on(pending.result()), Ok(n * 2));
    }
}

fn restarted(path: &Path, transport: Transport) {
    let first = Served::at(path, short_keep_alive());
    let doubler = Doubler::start(Endpoint::Unix(path.to_owned()), transport);
    exchange(&first, 0..20);
    first.shut_down();
    // Its numbers begin anew: they are all below what the client has handled.
    let second = Served::at(path, short_keep_alive());
    exchange(&second, 20..30);
    assert_eq!(doubler.end(), (0..30).collect::<Vec<_>>());
}

#[test]
fn a_server_that_was_started_again_is_found_and_begins_anew() {
    for transport in TRANSPORTS {
        restarted(&socket().1, transport);
    }
}

#[test]
fn a_client_that_was_forgotten_begins_anew() {
    for transport in TRANSPORTS {
        let (_dir, path) = socket();
        let served = Served::at(&path, short_keep_alive());
        let doubler = Doubler::start(Endpoint::Unix(path), transport);
        exchange(&served, 0..20);
        served.tasks.remove(&name());
        exchange(&served, 20..30);
        assert_eq!(doubler.end(), (0..30).collect::<Vec<_>>());
    }
}

#[test]
fn a_client_that_pauses_goes_on_where_it_was() {
    for transport in TRANSPORTS {
        let (_dir, path) = socket();
        let served = Served::at(&path, short_keep_alive());
        let mut client = client(Endpoint::Unix(path), transport);
        let handled = Mutex::new(Vec::new());
        for round in 0..3u64 {
            let stop = Stop::new();
            thread::scope(|scope| {
                // The handler stops the client in the middle of what has arrived together.
                let running = scope.spawn(|| {
                    client.run(&stop, |n| {
                        handled.lock().unwrap().push(n);
                        stop.stop();
                        n * 2
                    })
                });
                served.arrival();
                // Nobody waits for them: they stay in the queue.
                for n in round * 2..round * 2 + 2 {
                    drop(served.tasks.send(&name(), &n, LONG).unwrap());
                }
                running.join().unwrap().unwrap();
            });
        }
        assert_eq!(*handled.lock().unwrap(), [0, 1, 2], "{transport:?}");
    }
}

//! What is bounded, and what is said at the bound.

use std::thread;
use std::time::Instant;

use http_bidir_comm::server::{SendError, TaskError};
use http_bidir_comm::{Refusal, TASK_LIMIT};
use serde_json::{Value, json};

use super::*;

/// Makes the client known, without anybody who handles tasks.
fn introduce(served: &Served, endpoint: Endpoint) {
    let doubler = Doubler::start(endpoint, Transport::LongPoll);
    served.arrival();
    assert!(doubler.end().is_empty());
}

#[test]
fn a_full_queue_refuses_the_newest_and_keeps_the_rest() {
    let (_dir, path) = socket();
    let served = Served::at(&path, TaskSettings { queued: 3, ..short_keep_alive() });
    let endpoint = Endpoint::Unix(path);
    introduce(&served, endpoint.clone());
    let pending: Vec<_> = (0..3).map(|n| served.tasks.send(&name(), &n, LONG).unwrap()).collect();
    let full = served.tasks.send(&name(), &3, LONG).unwrap_err();
    assert!(matches!(full, SendError::Full { tasks: 3, most_tasks: 3, .. }), "{full:?}");
    let doubler = Doubler::start(endpoint, Transport::EventStream);
    for (n, pending) in (0..).zip(pending) {
        assert_eq!(served.runtime.block_on(pending.result()), Ok(n * 2));
    }
    // There is room again.
    let pending = served.tasks.send(&name(), &4, LONG).unwrap();
    assert_eq!(served.runtime.block_on(pending.result()), Ok(8));
    assert_eq!(doubler.end(), [0, 1, 2, 4]);
}

#[test]
fn what_can_not_be_sent_is_said_at_once() {
    let (_dir, path) = socket();
    let served = Served::at(&path, TaskSettings { queued_bytes: 40_000, ..short_keep_alive() });
    let unknown = served.tasks.send(&name(), &1, LONG).unwrap_err();
    assert_eq!(unknown, SendError::UnknownClient { client: name() });
    let texts = TaskServer::<String, ()>::new(Anyone);
    let unknown = texts.send(&name(), &"x".repeat(TASK_LIMIT), LONG).unwrap_err();
    assert!(matches!(unknown, SendError::TooLarge { most: TASK_LIMIT, .. }), "{unknown}");
    introduce(&served, Endpoint::Unix(path));
    // A number has one byte: the bound on bytes is for larger tasks.
    assert!((0..256).all(|_| served.tasks.send(&name(), &1, LONG).is_ok()));
}

#[test]
fn the_end_of_a_task_s_time_is_told_with_what_is_known() {
    let (_dir, path) = socket();
    let served = Served::at(&path, short_keep_alive());
    let endpoint = Endpoint::Unix(path);
    introduce(&served, endpoint.clone());
    let short = Duration::from_millis(50);
    let pending = served.tasks.send(&name(), &1, short).unwrap();
    let ended = served.runtime.block_on(pending.result());
    assert_eq!(ended, Err(TaskError::Expired { given: false }));
    // A handler that takes too long: its task was given, the one behind it was not handled either.
    let stop = Stop::new();
    let (told, is_handling) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let stopping = stop.clone();
    let slow = thread::spawn(move || {
        let mut handled = Vec::new();
        let run = client(endpoint, Transport::LongPoll).run(&stopping, |n| {
            handled.push(n);
            if n == 2 {
                told.send(()).unwrap();
                may_go_on.recv().unwrap();
            }
            n
        });
        run.map(|()| handled)
    });
    let first = served.tasks.send(&name(), &2, Duration::from_secs(5)).unwrap();
    is_handling.recv_timeout(LONG).unwrap();
    let second = served.tasks.send(&name(), &3, short).unwrap();
    let (first, second) =
        served.runtime.block_on(async { tokio::join!(first.result(), second.result()) });
    assert_eq!(first, Err(TaskError::Expired { given: true }));
    assert_eq!(second, Err(TaskError::Expired { given: false }));
    go_on.send(()).unwrap();
    let last = served.tasks.send(&name(), &4, LONG).unwrap();
    assert_eq!(served.runtime.block_on(last.result()), Ok(4));
    stop.stop();
    assert_eq!(slow.join().unwrap().unwrap(), [2, 4]);
}

#[test]
fn clients_are_bounded_and_silent_ones_are_forgotten() {
    let (_dir, path) = socket();
    let forget_after = Duration::from_millis(50);
    let served = Served::at(&path, TaskSettings { clients: 1, forget_after, ..short_keep_alive() });
    let http = BlockingHttpClient::new(Endpoint::Unix(path.clone()));
    let another = || {
        let body = json!({"client": "b", "client_epoch": "00000000000000aa", "wait_ms": 0});
        http.post::<_, Value>("/tasks/poll", &body, LONG)
    };
    // It reads its stream, however long nothing comes by it.
    let doubler = Doubler::start(Endpoint::Unix(path), Transport::EventStream);
    served.arrival();
    thread::sleep(forget_after * 4);
    let refused = another().unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 503, .. }), "{refused}");
    assert!(!refused.is_final());
    assert!(doubler.end().is_empty());
    let start = Instant::now();
    while another().is_err() {
        assert!(start.elapsed() < LONG, "the first client is not forgotten");
        thread::sleep(Duration::from_millis(20));
    }
    let unknown = served.tasks.send(&name(), &1, LONG).unwrap_err();
    assert_eq!(unknown, SendError::UnknownClient { client: name() });
}

#[test]
fn a_client_that_died_with_a_task_is_forgotten_when_the_task_s_time_is_over() {
    let (_dir, path) = socket();
    let forget_after = Duration::from_millis(50);
    let served = Served::at(&path, TaskSettings { forget_after, ..short_keep_alive() });
    let http = BlockingHttpClient::new(Endpoint::Unix(path));
    let body = json!({"client": name(), "client_epoch": "00000000000000aa", "wait_ms": 60_000});
    thread::scope(|scope| {
        let polling = scope.spawn(|| http.post::<_, Value>("/tasks/poll", &body, LONG).unwrap());
        served.arrival();
        // Nobody waits for it.
        drop(served.tasks.send(&name(), &1, Duration::from_secs(1)).unwrap());
        assert_eq!(polling.join().unwrap()[0]["task"], json!(1));
    });
    let start = Instant::now();
    while !served.tasks.clients().is_empty() {
        assert!(start.elapsed() < LONG, "it is not forgotten");
        thread::sleep(Duration::from_millis(20));
    }
}

/// By a long poll both arrive together. A stream's second task may be read only later.
#[test]
fn a_task_that_is_late_behind_another_is_not_handled() {
    let (_dir, path) = socket();
    let served = Served::at(&path, short_keep_alive());
    let endpoint = Endpoint::Unix(path);
    introduce(&served, endpoint.clone());
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let first = served.tasks.send(&name(), &1, LONG).unwrap();
    let second = served.tasks.send(&name(), &2, Duration::from_secs(1)).unwrap();
    let stop = Stop::new();
    let stopping = stop.clone();
    let running = thread::spawn(move || {
        let mut handled = Vec::new();
        let run = client(endpoint, Transport::LongPoll).run(&stopping, |n| {
            handled.push(n);
            if n == 1 {
                may_go_on.recv().unwrap();
            }
            n
        });
        run.map(|()| handled)
    });
    let ended = served.runtime.block_on(second.result());
    assert!(matches!(ended, Err(TaskError::Expired { .. })), "{ended:?}");
    go_on.send(()).unwrap();
    assert_eq!(served.runtime.block_on(first.result()), Ok(1));
    let third = served.tasks.send(&name(), &3, LONG).unwrap();
    assert_eq!(served.runtime.block_on(third.result()), Ok(3));
    stop.stop();
    assert_eq!(running.join().unwrap().unwrap(), [1, 3]);
}

#[test]
fn tasks_of_a_client_that_is_removed_end() {
    let (_dir, path) = socket();
    let served = Served::at(&path, short_keep_alive());
    introduce(&served, Endpoint::Unix(path));
    let pending = served.tasks.send(&name(), &1, LONG).unwrap();
    served.tasks.remove(&name());
    let gone = served.runtime.block_on(pending.result());
    assert_eq!(gone, Err(TaskError::ClientGone { given: false }));
}

#[test]
fn types_that_do_not_fit_are_told() {
    let (_dir, path) = socket();
    let served = Served::at(&path, short_keep_alive());
    let http = || BlockingHttpClient::new(Endpoint::Unix(path.clone()));
    let result = |stop: &Stop| {
        served.arrival();
        let pending = served.tasks.send(&name(), &1, LONG).unwrap();
        let result = served.runtime.block_on(pending.result());
        stop.stop();
        served.tasks.remove(&name());
        result
    };
    let settings = || quick(Transport::LongPoll);
    let ended = thread::scope(|scope| {
        let stop = Stop::new();
        let mut client =
            TaskClient::<String, u64>::with_settings(http(), "/tasks", name(), settings());
        let stopping = stop.clone();
        scope.spawn(move || client.run(&stopping, |_| panic!("the task is no text")));
        result(&stop)
    });
    let refused = matches!(ended, Err(TaskError::Refused(Refusal::NotUnderstood(_))));
    assert!(refused, "{ended:?}");
    for (text, too_large) in [("x".to_owned(), false), ("x".repeat(TASK_LIMIT), true)] {
        let ended = thread::scope(|scope| {
            let stop = Stop::new();
            let mut client =
                TaskClient::<u64, String>::with_settings(http(), "/tasks", name(), settings());
            let stopping = stop.clone();
            scope.spawn(move || client.run(&stopping, |_| text.clone()));
            result(&stop)
        });
        match ended {
            Err(TaskError::Refused(Refusal::ResultNotSent(_))) => assert!(too_large),
            Err(TaskError::ResultNotUnderstood { .. }) => assert!(!too_large),
            other => panic!("{other:?}"),
        }
    }
}

/// As many and as large tasks as an answer may have to hold.
#[test]
fn large_tasks_come_through_however_many_there_are() {
    let (_dir, path) = socket();
    let settings = TaskSettings { window: 1000, queued_bytes: 1 << 20, ..short_keep_alive() };
    let runtime = Served::new(settings.clone(), Anyone).runtime;
    let texts = TaskServer::<String, usize>::with_settings(Anyone, settings);
    let _context = runtime.enter();
    let listener = PeerListener::bind(&path, 0o600).unwrap();
    runtime.spawn(serve(listener, Route::new().nest("/", texts.routes())));
    for transport in TRANSPORTS {
        let stop = Stop::new();
        let http = BlockingHttpClient::new(Endpoint::Unix(path.clone()));
        let stopping = stop.clone();
        let running = thread::spawn(move || {
            let mut client = TaskClient::with_settings(http, "", name(), quick(transport));
            client.run(&stopping, |text: String| text.len())
        });
        runtime.block_on(texts.arrival(&name()));
        let sizes = [TASK_LIMIT - 2, 1, 3000, TASK_LIMIT - 2, 0, 9000];
        let pending: Vec<_> = sizes
            .iter()
            .cycle()
            .take(60)
            .map(|&size| (size, texts.send(&name(), &"x".repeat(size), LONG).unwrap()))
            .collect();
        for (size, pending) in pending {
            assert_eq!(runtime.block_on(pending.result()), Ok(size));
        }
        stop.stop();
        running.join().unwrap().unwrap();
        texts.remove(&name());
    }
}

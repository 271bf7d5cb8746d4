//! The stream of events, as any reader of server-sent events sees it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use super::*;

struct Reader {
    lines: BufReader<UnixStream>,
}

impl Reader {
    fn open(path: &Path, header: &str) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let query = "client=worker-1&client_epoch=00000000000000aa";
        write!(stream, "GET /tasks/stream?{query} HTTP/1.1\r\nhost: x\r\n{header}\r\n").unwrap();
        Self { lines: BufReader::new(stream) }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next line that begins like this.
    fn find(&mut self, beginning: &str) -> String {
        for _ in 0..200 {
            if let Some(rest) = self.line().strip_prefix(beginning) {
                return rest.to_owned();
            }
        }
        panic!("no line begins with {beginning:?}");
    }

    /// The next event, without what is left of its time.
    fn event(&mut self) -> (String, Value) {
        let id = self.find("id: ");
        let mut data: Value = serde_json::from_str(&self.find("data: ")).unwrap();
        assert!(data["expires_in_ms"].take().is_u64());
        (id, data)
    }
}

#[test]
fn a_stream_goes_on_behind_the_last_event() {
    let (_dir, path) = socket();
    let served = Served::at(&path, short_keep_alive());
    let mut reader = Reader::open(&path, "");
    assert_eq!(reader.line(), "HTTP/1.1 200 OK");
    assert_eq!(reader.find("content-type: "), "text/event-stream");
    reader.find(":"); // a comment that keeps it alive
    let _pending: Vec<_> =
        (0..3u64).map(|n| served.tasks.send(&name(), &(n + 10), LONG).unwrap()).collect();
    let events: Vec<_> = (0..3).map(|_| reader.event()).collect();
    let (first, data) = &events[0];
    assert_eq!((&data["after"], &data["id"], &data["task"]), (&json!(0), &json!(1), &json!(10)));
    assert!(first.ends_with("-1"), "{first}");
    // Another stream begins behind any of them; the one before it ends.
    let mut second = Reader::open(&path, &format!("last-event-id: {first}\r\n"));
    assert_eq!(second.event(), events[1]);
    assert_eq!(second.event().0, events[2].0);
    assert_eq!(reader.find("0"), "", "the end of the chunks");
    // A poll carries the same.
    let http = BlockingHttpClient::new(Endpoint::Unix(path.clone()));
    let poll = json!({"client": "worker-1", "client_epoch": "00000000000000aa", "cursor": first,
                      "wait_ms": 0});
    let polled: Vec<Value> = http.post("/tasks/poll", &poll, LONG).unwrap();
    let numbers: Vec<_> =
        polled.iter().map(|delivery| (&delivery["id"], &delivery["task"])).collect();
    assert_eq!(numbers, [(&json!(2), &json!(11)), (&json!(3), &json!(12))]);
}

#[test]
fn what_can_not_be_read_is_refused() {
    let (_dir, path) = socket();
    let served = Served::at(&path, short_keep_alive());
    for wrong in ["x", "00000000000000aa", "00000000000000aa--1", "aa-1"] {
        let mut reader = Reader::open(&path, &format!("last-event-id: {wrong}\r\n"));
        assert_eq!(reader.line(), "HTTP/1.1 400 Bad Request", "{wrong}");
    }
    let http = BlockingHttpClient::new(Endpoint::Unix(path));
    for query in ["", "?client=a", "?client=a%20b&client_epoch=00000000000000aa"] {
        let refused = http.get::<Value>(&format!("/tasks/stream{query}"), LONG).unwrap_err();
        assert!(matches!(refused, ClientError::Refused { status: 400, .. }), "{query}: {refused}");
    }
    assert_eq!(served.tasks.clients(), []);
}

#[test]
fn a_stream_ends_after_its_time_and_its_client_opens_another() {
    let (_dir, path) = socket();
    let settings = TaskSettings { stream_lasts: Duration::from_millis(250), ..short_keep_alive() };
    let served = Served::at(&path, settings);
    let mut reader = Reader::open(&path, "");
    reader.find("content-type: text/event-stream");
    reader.find("0");
    let doubler = Doubler::start(Endpoint::Unix(path), Transport::EventStream);
    served.arrival();
    for n in 0..5 {
        let pending = served.tasks.send(&name(), &n, LONG).unwrap();
        assert_eq!(served.runtime.block_on(pending.result()), Ok(n * 2));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(doubler.end(), [0, 1, 2, 3, 4]);
}

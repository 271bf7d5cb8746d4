//! Calls that are made by the API's own description: those that it allows, and others close to them.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::call::{call, send};
use crate::process::{Daemon, PATIENCE, admission, place, register};

/// Numbers that are the same in each run with the same seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) ^ (self.0 << 20)
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn any<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

struct Description(Value);

impl Description {
    fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        // A part with a description of its own.
        let schema = schema.pointer("/allOf/0").unwrap_or(schema);
        match schema["$ref"].as_str() {
            Some(name) => self.0.pointer(name.trim_start_matches('#')).unwrap(),
            None => schema,
        }
    }

    /// A value that fits a schema.
    fn value(&self, schema: &Value, dice: &mut Dice) -> Value {
        let schema = self.resolved(schema);
        if let Some(words) = schema["enum"].as_array() {
            return dice.any(words).clone();
        }
        match schema["type"].as_str() {
            Some("object") => {
                let required = schema["required"].as_array();
                let mut object = Map::new();
                for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                    let needed = required.is_some_and(|all| all.iter().any(|one| one == name));
                    if needed || dice.one_in(3) {
                        object.insert(name.clone(), self.value(schema, dice));
                    }
                }
                Value::Object(object)
            }
            Some("array") => {
                (0..dice.below(4)).map(|_| self.value(&schema["items"], dice)).collect()
            }
            Some("integer" | "number") => {
                let least = schema["minimum"].as_f64().unwrap_or(0.0) as u64;
                let most = schema["maximum"].as_f64().unwrap_or(1e12) as u64;
                Value::from(least + dice.next() % (most - least + 1))
            }
            Some("boolean") => dice.one_in(2).into(),
            _ => "x".repeat(dice.below(20)).into(),
        }
    }

    /// What is wrong with a value, by a schema.
    fn fault(&self, schema: &Value, value: &Value) -> Option<String> {
        let schema = self.resolved(schema);
        let fault = |what: &str| Some(format!("{what}: {value} by {schema}"));
        if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
            return fault("not one of the words");
        }
        let fits = match schema["type"].as_str() {
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("integer") => value.is_u64() || value.is_i64(),
            Some("number") => value.is_number(),
            Some("boolean") => value.is_boolean(),
            Some("string") => value.is_string(),
            _ => true,
        };
        if !fits {
            return fault("of another type");
        }
        if schema["format"].as_str().is_some_and(|f| f.starts_with("uint")) && !value.is_u64() {
            return fault("negative");
        }
        if let Some(items) = value.as_array() {
            return items.iter().find_map(|item| self.fault(&schema["items"], item));
        }
        let object = value.as_object()?;
        let known = schema["properties"].as_object();
        for name in schema["required"].as_array().into_iter().flatten() {
            if !object.contains_key(name.as_str().unwrap()) {
                return fault("a field is missing");
            }
        }
        object.iter().find_map(|(name, value)| match known.and_then(|known| known.get(name)) {
            Some(schema) => self.fault(schema, value),
            None => Some(format!("{name} is not described")),
        })
    }

    /// The schema of an operation's answer with a status.
    fn answer(&self, operation: &Value, status: u16) -> Option<Value> {
        let range = format!("{}XX", status / 100);
        let responses = &operation["responses"];
        let found = [status.to_string(), range].into_iter().find_map(|key| responses.get(key))?;
        Some(found["content"]["application/json"]["schema"].clone())
    }
}

/// Values that nobody expects.
fn odd(dice: &mut Dice) -> Value {
    let odd = [
        Value::Null,
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!(0.5),
        json!(""),
        json!("\u{0}\u{202e}\n"),
        json!("x".repeat(10_000)),
        json!([]),
        json!([[[[[[]]]]]]),
        json!({"a": {"b": {}}}),
        json!(true),
    ];
    dice.any(&odd).clone()
}

/// Spoils a part of a value.
fn spoil(value: &mut Value, dice: &mut Dice) {
    match value {
        Value::Object(all) if !all.is_empty() && !dice.one_in(4) => {
            let keys: Vec<String> = all.keys().cloned().collect();
            let key = dice.any(&keys).clone();
            match dice.below(3) {
                0 => _ = all.remove(&key),
                1 => _ = all.insert(format!("{key}_"), odd(dice)),
                _ => spoil(&mut all[&key], dice),
            }
        }
        other => *other = odd(dice),
    }
}

/// A text in a path or a query: mostly as it should be written.
fn written(value: &Value, dice: &mut Dice, spoilt: bool) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if !spoilt {
        return text;
    }
    let odd =
        ["%ff%fe", "%00", "%", "-1", "99999999999999999999999", "..", "%2e%2e%2f", "a b", "é", ""];
    match dice.below(3) {
        0 => (*dice.any(&odd[..])).to_owned(),
        1 => text + *dice.any(&odd[..]),
        _ => "9".repeat(dice.below(6_000)),
    }
}

/// The memory that the daemon has, in KiB.
fn memory(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The status alone, of an answer that does not end.
fn begun(socket: &Path, bytes: &[u8]) -> u16 {
    let mut connection = UnixStream::connect(socket).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = connection.write_all(bytes);
    let mut answer = [0; 12];
    match connection.read_exact(&mut answer) {
        Ok(()) => String::from_utf8_lossy(&answer[9..]).parse().unwrap(),
        Err(_) => 0,
    }
}

#[test]
fn calls_made_by_the_description() {
    let cases: usize =
        std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(64);
    let calls = if cases >= 512 { cases * 8 } else { cases };
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let worker = register(&daemon.client(), "a", 500_000).unwrap();
    let id = daemon.sessions()[0].id;
    let (_, text) = call(&socket, "GET", api::path::DESCRIPTION, None);
    let description = Description(serde_json::from_str(&text).unwrap());
    let problem = json!({"$ref": "#/components/schemas/Problem"});
    let mut operations = Vec::new();
    for (path, item) in description.0["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            operations.push((path.clone(), method.to_uppercase(), operation.clone()));
        }
    }
    assert!(operations.len() >= 12, "{operations:?}");
    let mut dice = Dice(7);
    let (mut accepted, mut before) = (0, None);
    for n in 0..calls {
        let (path, method, operation) = dice.any(&operations).clone();
        let spoilt = !dice.one_in(3);
        let (mut target, mut query, mut headers) = (path.clone(), String::new(), String::new());
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            let value = match name {
                "id" if !dice.one_in(4) => Value::from(id),
                "uuid" if !dice.one_in(4) => json!(crate::process::GPU_ID.to_string()),
                _ => description.value(&parameter["schema"], &mut dice),
            };
            let spoils = spoilt && dice.one_in(3);
            let value = written(&value, &mut dice, spoils);
            match parameter["in"].as_str().unwrap() {
                "path" => target = target.replace(&format!("{{{name}}}"), &value),
                "query" => query += &format!("?{name}={value}"),
                _ => headers += &format!("{name}: {value}\r\n"),
            }
        }
        let mut body = Vec::new();
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        if !schema.is_null() {
            let mut value = description.value(schema, &mut dice);
            if spoilt && dice.one_in(2) {
                spoil(&mut value, &mut dice);
            }
            body = value.to_string().into_bytes();
            if spoilt && dice.one_in(4) {
                let at = dice.below(body.len());
                body[at] = dice.next() as u8;
            }
            headers += "content-type: application/json\r\n";
        }
        let methods = ["DELETE", "PATCH", "HEAD", "BREW", "OPTIONS", "PUT"];
        let other = spoilt && dice.one_in(6);
        let method = if other { (*dice.any(&methods)).to_owned() } else { method };
        let length = body.len();
        let head = format!(
            "{method} {target}{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
        );
        let bytes = [head.into_bytes(), body].concat();
        let shown = || String::from_utf8_lossy(&bytes).chars().take(600).collect::<String>();
        if path.ends_with("/events") {
            let status = begun(&socket, &bytes);
            assert!(status < 500, "{status}: {}", shown());
            continue;
        }
        let (status, text) = send(&socket, &bytes);
        assert!(status < 500 || path == "/readyz", "{status} {text}: {}", shown());
        // What the server refuses before it knows the call has no body; nor has the answer to HEAD.
        if text.is_empty() {
            let bare = method == "HEAD" || (400..=431).contains(&status) || status == 0;
            assert!(bare, "{status}: {}", shown());
            continue;
        }
        if path == "/metrics" && status == 200 {
            assert!(text.contains("\nsluice_ready 1.0\n"), "{text}: {}", shown());
            accepted += 1;
            continue;
        }
        let answer: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {status} {text}: {}", shown()));
        let schema = match status {
            400.. => description.answer(&operation, status).unwrap_or_else(|| problem.clone()),
            _ => description.answer(&operation, status).unwrap(),
        };
        // Another path may have been called, or another method of it.
        if status >= 400 || !(spoilt || other) {
            let fault = description.fault(&schema, &answer);
            assert_eq!(fault, None, "{status} {text}: {}", shown());
        }
        accepted += usize::from(status == 200);
        if n == calls / 2 {
            before = Some(memory(&daemon));
        }
    }
    assert!(accepted >= calls / 8, "{accepted} of {calls} were accepted");
    let grown = memory(&daemon).saturating_sub(before.unwrap_or(0));
    println!("{accepted} of {calls} were accepted; {grown} KiB more");
    assert!(before.is_none() || grown < 32 << 10, "{grown} KiB more");
    let _ = call(&socket, "POST", &api::path::session(id, "/thaw"), None);
    let lease = admission(&daemon.client(), worker, None, Some(Duration::from_secs(10)));
    assert!(lease.unwrap().is_some());
}

//! Objects of kinds that are only read, created and replaced, without watches.

use std::collections::BTreeMap;

use poem::http::StatusCode;
use serde_json::Value;

use super::said;

const KINDS: [&str; 4] = [
    "secrets",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "resourceslices",
];

/// Objects by path.
#[derive(Debug, Default)]
pub(super) struct Others(BTreeMap<String, Value>);

impl Others {
    pub(super) fn get(&self, path: &str) -> Option<&Value> {
        self.0.get(path)
    }

    pub(super) fn put(&mut self, path: &str, mut object: Value, version: &mut u64) -> Value {
        *version += 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        self.0.insert(path.to_owned(), object.clone());
        object
    }

    pub(super) fn remove(&mut self, path: &str) {
        self.0.remove(path);
    }

    /// Creates (POST) or replaces (PUT) an object. `None`: the path is of no such kind.
    pub(super) fn write(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
        version: &mut u64,
    ) -> Option<(StatusCode, Value)> {
        let (parent, last) = path.rsplit_once('/')?;
        let kind = if method == "POST" { last } else { parent.rsplit('/').next()? };
        KINDS.contains(&kind).then_some(())?;
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let path = if method == "POST" { format!("{path}/{name}") } else { path.to_owned() };
        let asked = &body["metadata"]["resourceVersion"];
        Some(match (method, self.get(&path)) {
            ("POST", Some(_)) => said(StatusCode::CONFLICT, "AlreadyExists"),
            ("PUT", None) => said(StatusCode::NOT_FOUND, "NotFound"),
            ("PUT", Some(found))
                if !asked.is_null() && *asked != found["metadata"]["resourceVersion"] =>
            {
                said(StatusCode::CONFLICT, "Conflict")
            }
            ("POST" | "PUT", _) => (StatusCode::OK, self.put(&path, body.clone(), version)),
            _ => said(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        })
    }
}

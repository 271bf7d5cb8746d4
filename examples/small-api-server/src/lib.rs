//! As much of Kubernetes' API server as the node's part and the extender ask, for tests: pods, nodes, watches, and what is
//! written. It can be silent, and forget what it has told.

#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::stream::{self, Stream};
use poem::http::StatusCode;
use poem::listener::{Acceptor, Listener, TcpListener};
use poem::web::Data;
use poem::{Body, EndpointExt, Request, Response, Route, Server, handler};
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

/// As many events may be under way to one who watches.
const EVENTS: usize = 1024;

/// It serves until it is dropped.
#[derive(Debug)]
pub struct ApiServer {
    /// The file that says where it is.
    pub kubeconfig: PathBuf,
    /// What it has.
    pub objects: Objects,
    task: JoinHandle<()>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Something that was written: method, path, body.
type Written = (String, String, Value);

#[derive(Debug, Default)]
struct State {
    pods: Vec<Value>,
    nodes: Vec<Value>,
    written: Vec<Written>,
    lists: usize,
}

/// What it has, and what was written to it.
#[derive(Clone, Debug)]
pub struct Objects {
    state: Arc<Mutex<State>>,
    /// Lines for those who watch pods. `None`: what was told is forgotten.
    events: broadcast::Sender<Option<Value>>,
    /// Paths with this end are not answered.
    silent: watch::Sender<Option<String>>,
}

impl Default for Objects {
    fn default() -> Self {
        let (events, silent) = (broadcast::Sender::new(EVENTS), watch::Sender::new(None));
        Self { state: Arc::default(), events, silent }
    }
}

fn is_named(object: &Value, name: &str) -> bool {
    object["metadata"]["name"] == name
}

fn put(all: &mut Vec<Value>, object: Value) {
    let name = object["metadata"]["name"].clone();
    all.retain(|one| one["metadata"]["name"] != name);
    all.push(object);
}

impl Objects {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod is there, or has changed. Nobody who watches is told: they have to ask.
    pub fn put(&self, pod: Value) {
        put(&mut self.state().pods, pod);
    }

    /// The same, and those who watch are told.
    pub fn change(&self, pod: Value) {
        let event = json!({"type": "MODIFIED", "object": pod});
        self.put(pod);
        // Nobody may be watching.
        _ = self.events.send(Some(event));
    }

    /// A node is there.
    pub fn put_node(&self, node: Value) {
        put(&mut self.state().nodes, node);
    }

    /// What has happened is not known any more: whoever watches gets 410 Gone, and has to list again.
    pub fn forget_history(&self) {
        _ = self.events.send(None);
    }

    /// Calls of paths with this end are not answered, nor is anything told, until [`Self::speak`].
    pub fn be_silent(&self, end: &str) {
        self.silent.send_replace(Some(end.to_owned()));
    }

    /// All are answered, also those that wait.
    pub fn speak(&self) {
        self.silent.send_replace(None);
    }

    /// How often pods were listed.
    #[must_use]
    pub fn lists(&self) -> usize {
        self.state().lists
    }

    /// What was written to paths with this end.
    #[must_use]
    pub fn written(&self, method: &str, end: &str) -> Vec<Value> {
        let state = self.state();
        let meant =
            state.written.iter().filter(|(how, path, _)| how == method && path.ends_with(end));
        meant.map(|(.., body)| body.clone()).collect()
    }

    async fn wait_for_speech(&self, path: &str) {
        let is_meant =
            |silent: &Option<String>| silent.as_ref().is_none_or(|end| !path.ends_with(end));
        // The sender is this one.
        _ = self.silent.subscribe().wait_for(is_meant).await;
    }

    fn watch(&self, path: String) -> impl Stream<Item = io::Result<Vec<u8>>> + use<> {
        let state = (self.clone(), self.events.subscribe(), path, false);
        stream::unfold(state, |(objects, mut events, path, is_over)| async move {
            if is_over {
                return None;
            }
            let event = events.recv().await.ok()?;
            objects.wait_for_speech(&path).await;
            let is_over = event.is_none();
            let gone = || {
                let said = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "reason": "Expired", "code": 410, "message": "too old resource version"});
                json!({"type": "ERROR", "object": said})
            };
            let line = format!("{}\n", event.unwrap_or_else(gone));
            Some((Ok(line.into_bytes()), (objects, events, path, is_over)))
        })
    }

    /// What API servers do with a binding: the pod is on its node, and has its annotations.
    fn bind(&self, path: &str, binding: &Value) {
        let Some(path) = path.strip_suffix("/binding") else { return };
        for pod in &mut self.state().pods {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            if path.ends_with(&format!("/pods/{name}")) {
                pod["spec"]["nodeName"] = binding["target"]["name"].clone();
                pod["metadata"]["annotations"] = binding["metadata"]["annotations"].clone();
            }
        }
    }

    fn get(&self, path: &str, query: &str) -> Option<Value> {
        let (parent, name) = path.rsplit_once('/')?;
        let mut state = self.state();
        let list = |kind: &str, items: Vec<&Value>| {
            let metadata = json!({"resourceVersion": "1"});
            Some(json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "items": items}))
        };
        let named = |all: &[Value]| all.iter().find(|one| is_named(one, name)).cloned();
        match (parent, name) {
            ("/api/v1", "pods") => {
                state.lists += 1;
                let of = query.split_once("spec.nodeName%3D").map(|(_, rest)| rest);
                let of = of.map(|rest| rest.split('&').next().unwrap_or_default());
                let is_its = |pod: &&Value| of.is_none_or(|node| pod["spec"]["nodeName"] == node);
                list("PodList", state.pods.iter().filter(is_its).collect())
            }
            ("/api/v1", "nodes") => list("NodeList", state.nodes.iter().collect()),
            ("/api/v1/nodes", _) => named(&state.nodes),
            _ => named(&state.pods),
        }
    }

    fn write(&self, method: String, path: &str, body: Value) -> Value {
        self.state().written.push((method, path.to_owned(), body.clone()));
        self.bind(path, &body);
        if path.ends_with("/events") {
            return body;
        }
        json!({"apiVersion": "v1", "kind": "Status", "status": "Success", "metadata": {}})
    }
}

#[handler]
async fn answer(request: &Request, body: Body, objects: Data<&Objects>) -> Response {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    objects.wait_for_speech(&path).await;
    if request.method() != "GET" {
        let sent = body.into_vec().await.unwrap_or_default();
        let sent = serde_json::from_slice(&sent).unwrap_or_default();
        return json_of(StatusCode::OK, &objects.write(request.method().to_string(), &path, sent));
    }
    if query.contains("watch=true") {
        return Response::builder().body(Body::from_bytes_stream(objects.watch(path)));
    }
    match objects.get(&path, query) {
        Some(found) => json_of(StatusCode::OK, &found),
        None => {
            let none = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "none"});
            json_of(StatusCode::NOT_FOUND, &none)
        }
    }
}

fn json_of(status: StatusCode, body: &Value) -> Response {
    Response::builder().status(status).content_type("application/json").body(body.to_string())
}

impl ApiServer {
    /// Starts it with a node `here`, and writes how it is found into a folder.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn start(folder: &Path) -> io::Result<Self> {
        let acceptor = TcpListener::bind("127.0.0.1:0").into_acceptor().await?;
        let bound = acceptor.local_addr();
        let address = bound.iter().find_map(|address| address.as_socket_addr());
        let address = *address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let objects = Objects::default();
        objects.put_node(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"}}));
        let routes = Route::new().at("/*path", answer).data(objects.clone());
        let task = tokio::spawn(async move {
            // It ends with its task.
            _ = Server::new_with_acceptor(acceptor).run(routes).await;
        });
        let kubeconfig = folder.join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&kubeconfig, text.to_string())?;
        Ok(Self { kubeconfig, objects, task })
    }
}

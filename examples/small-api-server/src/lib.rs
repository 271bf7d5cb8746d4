//! The part of Kubernetes' API server that the node agent, the extender and the webhook use, for their tests: pods,
//! nodes, leases, watches, Secrets, webhook configurations, and a record of what was written. It can hang, disappear,
//! and forget its history.

#![forbid(unsafe_code)]

mod others;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use poem::http::StatusCode;
use poem::listener::{Acceptor, Listener, TcpListener};
use poem::web::Data;
use poem::{Body, EndpointExt, Request, Response, Route, Server, handler};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use self::others::Others;

/// A running API server; ends on drop.
#[derive(Debug)]
pub struct ApiServer {
    /// A kubeconfig file that points to the server.
    pub kubeconfig: PathBuf,
    /// The server's objects.
    pub objects: Objects,
    address: SocketAddr,
    /// The server's own runtime: its connections end with it.
    runtime: Option<Runtime>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A write: method, path, body.
type Written = (String, String, Value);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pod,
    Node,
    Lease,
    Quota,
}

/// A change of an object, for watches.
#[derive(Debug)]
struct Change {
    version: u64,
    kind: Kind,
    how: &'static str,
    object: Value,
}

/// Objects by name.
type Named = BTreeMap<String, Value>;

#[derive(Debug, Default)]
struct State {
    pods: Named,
    nodes: Named,
    leases: Named,
    quotas: Named,
    others: Others,
    written: Vec<Written>,
    lists: usize,
    /// Number of changes so far: the resource version.
    version: u64,
    history: Vec<Change>,
    /// Changes up to this version are forgotten.
    forgotten: u64,
}

/// A moment in the handling of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The request has arrived, and nothing has been done.
    Asked,
    /// The request is done, but not answered.
    Done,
}

/// A one-time action during a request.
struct Act {
    number: usize,
    moment: Moment,
    act: Box<dyn FnOnce() + Send>,
}

/// Number of requests so far, and an action at one of them.
#[derive(Default)]
struct Requests {
    count: usize,
    act: Option<Act>,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Requests that are not answered.
#[derive(Clone, Debug)]
struct Silence {
    end: String,
    also_reads: bool,
}

/// The objects, and what was written to the server.
#[derive(Clone, Debug)]
pub struct Objects {
    state: Arc<Mutex<State>>,
    /// Signals a change.
    news: watch::Sender<()>,
    /// Unanswered paths, by suffix: all requests, or only writes.
    silent: watch::Sender<Option<Silence>>,
    requests: Arc<Mutex<Requests>>,
}

impl Default for Objects {
    fn default() -> Self {
        // Version 0 means any version.
        let state = State { version: 1, ..State::default() };
        let (news, silent) = (watch::Sender::new(()), watch::Sender::new(None));
        let requests = Arc::default();
        Self { state: Arc::new(Mutex::new(state)), news, silent, requests }
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

impl State {
    fn all(&mut self, kind: Kind) -> &mut Named {
        match kind {
            Kind::Pod => &mut self.pods,
            Kind::Node => &mut self.nodes,
            Kind::Lease => &mut self.leases,
            Kind::Quota => &mut self.quotas,
        }
    }

    /// Stores an object without telling watches. Returns whether it is new.
    fn put(&mut self, kind: Kind, mut object: Value) -> bool {
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.all(kind).insert(name_of(&object), object).is_none()
    }

    /// Stores an object and tells watches.
    fn change(&mut self, kind: Kind, mut object: Value) {
        self.version += 1;
        let version = self.version;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let how = if self.put(kind, object.clone()) { "ADDED" } else { "MODIFIED" };
        self.history.push(Change { version, kind, how, object });
    }

    fn remove(&mut self, kind: Kind, name: &str) {
        self.version += 1;
        let version = self.version;
        let Some(mut object) = self.all(kind).remove(name) else { return };
        object["metadata"]["resourceVersion"] = version.to_string().into();
        self.history.push(Change { version, kind, how: "DELETED", object });
    }

    /// The next change after `seen`, for a watch of this kind; 410 Gone if it is forgotten.
    fn after(&self, seen: &mut u64, kind: Kind, node: Option<&str>) -> Option<Value> {
        if *seen < self.forgotten {
            let said = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "reason": "Expired", "code": 410, "message": "too old resource version"});
            return Some(json!({"type": "ERROR", "object": said}));
        }
        let is_next = |change: &&Change| change.kind == kind && is_on(&change.object, node);
        let later = self.history.partition_point(|change| change.version <= *seen);
        let change = self.history[later..].iter().find(is_next)?;
        *seen = change.version;
        Some(json!({"type": change.how, "object": change.object}))
    }
}

/// Whether a pod is on this node; any pod without a node.
fn is_on(object: &Value, node: Option<&str>) -> bool {
    node.is_none_or(|node| object["spec"]["nodeName"] == node)
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|one| one.strip_prefix(name)?.strip_prefix('='))
}

fn node_of(query: &str) -> Option<&str> {
    parameter(query, "fieldSelector")?.strip_prefix("spec.nodeName%3D")
}

/// Applies a JSON merge patch (RFC 7396).
fn merge(into: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        into.clone_from(patch);
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in patch {
        if value.is_null() {
            if let Some(object) = into.as_object_mut() {
                object.remove(name);
            }
        } else {
            merge(&mut into[name], value);
        }
    }
}

impl Objects {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an action once, at the request with this number from now on.
    pub fn at(&self, number: usize, moment: Moment, act: impl FnOnce() + Send + 'static) {
        let mut requests = self.requests();
        let number = requests.count + number;
        requests.act = Some(Act { number, moment, act: Box::new(act) });
    }

    fn come_to(&self, number: usize, moment: Moment) {
        let mut requests = self.requests();
        let is_it = |act: &mut Act| act.number == number && act.moment == moment;
        let due = requests.act.take_if(is_it);
        drop(requests);
        if let Some(due) = due {
            (due.act)();
        }
    }

    fn one_more(&self) -> usize {
        let mut requests = self.requests();
        requests.count += 1;
        requests.count
    }

    fn tell(&self) {
        self.news.send_replace(());
    }

    /// Stores a pod without telling watches: clients notice it only by listing.
    pub fn put(&self, pod: Value) {
        self.state().put(Kind::Pod, pod);
    }

    /// Stores a pod and tells watches.
    pub fn change(&self, pod: Value) {
        self.state().change(Kind::Pod, pod);
        self.tell();
    }

    /// Removes a pod and tells watches.
    pub fn remove(&self, pod: &str) {
        self.state().remove(Kind::Pod, pod);
        self.tell();
    }

    /// The pod of this name.
    #[must_use]
    pub fn pod(&self, name: &str) -> Option<Value> {
        self.state().pods.get(name).cloned()
    }

    /// The node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<Value> {
        self.state().nodes.get(name).cloned()
    }

    /// The lease of this name.
    #[must_use]
    pub fn lease(&self, name: &str) -> Option<Value> {
        self.state().leases.get(name).cloned()
    }

    /// Stores a node and tells watches.
    pub fn change_node(&self, node: Value) {
        self.state().change(Kind::Node, node);
        self.tell();
    }

    /// Stores a ResourceQuota and tells watches.
    pub fn change_quota(&self, quota: Value) {
        self.state().change(Kind::Quota, quota);
        self.tell();
    }

    /// Stores a node without telling watches.
    pub fn put_node(&self, node: Value) {
        self.state().put(Kind::Node, node);
    }

    /// The object of another kind at this path.
    #[must_use]
    pub fn other(&self, path: &str) -> Option<Value> {
        self.state().others.get(path).cloned()
    }

    /// Stores an object of another kind.
    pub fn put_other(&self, path: &str, object: Value) {
        let mut state = self.state();
        let State { others, version, .. } = &mut *state;
        others.put(path, object, version);
    }

    /// Removes an object of another kind.
    pub fn remove_other(&self, path: &str) {
        self.state().others.remove(path);
    }

    /// Forgets all changes so far: watches get 410 Gone and must list again.
    pub fn forget_history(&self) {
        let mut state = self.state();
        state.version += 1;
        state.forgotten = state.version;
        state.history.clear();
        drop(state);
        self.tell();
    }

    /// Leaves requests for paths with this suffix unanswered, and watches without news, until [`Self::speak`].
    pub fn be_silent(&self, end: &str) {
        self.silent.send_replace(Some(Silence { end: end.to_owned(), also_reads: true }));
    }

    /// Like [`Self::be_silent`], for writes only.
    pub fn be_silent_to_writes(&self, end: &str) {
        self.silent.send_replace(Some(Silence { end: end.to_owned(), also_reads: false }));
    }

    /// Answers all requests again, including those that wait.
    pub fn speak(&self) {
        self.silent.send_replace(None);
    }

    /// How often pods were listed.
    #[must_use]
    pub fn lists(&self) -> usize {
        self.state().lists
    }

    /// Bodies written to paths with this suffix.
    #[must_use]
    pub fn written(&self, method: &str, end: &str) -> Vec<Value> {
        let state = self.state();
        let meant =
            state.written.iter().filter(|(how, path, _)| how == method && path.ends_with(end));
        meant.map(|(.., body)| body.clone()).collect()
    }

    async fn wait_for_speech(&self, path: &str, writes: bool) {
        let is_meant = |silent: &Option<Silence>| {
            let is_its =
                |silence: &Silence| path.ends_with(&silence.end) && (writes || silence.also_reads);
            !silent.as_ref().is_some_and(is_its)
        };
        // `self` holds the sender.
        _ = self.silent.subscribe().wait_for(is_meant).await;
    }

    fn watch(&self, path: String, query: &str) -> impl Stream<Item = io::Result<Vec<u8>>> + use<> {
        let kind = match path.rsplit('/').next() {
            Some("nodes") => Kind::Node,
            Some("resourcequotas") => Kind::Quota,
            _ => Kind::Pod,
        };
        let node = node_of(query).map(ToOwned::to_owned);
        let seen = parameter(query, "resourceVersion").and_then(|text| text.parse().ok());
        let seen: u64 = seen.unwrap_or_else(|| self.state().version);
        let state = (self.clone(), self.news.subscribe(), path, seen, false);
        stream::unfold(state, move |(objects, mut news, path, mut seen, is_over)| {
            let node = node.clone();
            async move {
                if is_over {
                    return None;
                }
                let event = loop {
                    let next = objects.state().after(&mut seen, kind, node.as_deref());
                    match next {
                        Some(event) => break event,
                        None => news.changed().await.ok()?,
                    }
                };
                objects.wait_for_speech(&path, false).await;
                let is_over = event["type"] == "ERROR";
                let line = format!("{event}\n");
                Some((Ok(line.into_bytes()), (objects, news, path, seen, is_over)))
            }
        })
    }

    fn get(&self, path: &str, query: &str) -> Option<Value> {
        let (parent, name) = path.rsplit_once('/')?;
        let mut state = self.state();
        let version = state.version.to_string();
        let list = |kind: &str, items: Vec<&Value>| {
            let metadata = json!({"resourceVersion": version});
            Some(json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "items": items}))
        };
        let named = |all: &Named| all.get(name).cloned();
        if let Some(other) = state.others.get(path) {
            return Some(other.clone());
        }
        match (parent, name) {
            ("/api/v1", "pods") => {
                state.lists += 1;
                let node = node_of(query);
                list("PodList", state.pods.values().filter(|pod| is_on(pod, node)).collect())
            }
            ("/api/v1", "resourcequotas") => {
                list("ResourceQuotaList", state.quotas.values().collect())
            }
            ("/api/v1", "nodes") => list("NodeList", state.nodes.values().collect()),
            ("/api/v1/nodes", _) => named(&state.nodes),
            _ if parent.ends_with("/leases") => named(&state.leases),
            _ => named(&state.pods),
        }
    }

    fn write(&self, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
        let mut state = self.state();
        state.written.push((method.to_owned(), path.to_owned(), body.clone()));
        let State { others, version, .. } = &mut *state;
        if let Some(written) = others.write(method, path, &body, version) {
            return written;
        }
        if path.ends_with("/leases") {
            if state.leases.contains_key(&name_of(&body)) {
                return said(StatusCode::CONFLICT, "AlreadyExists");
            }
            state.change(Kind::Lease, body.clone());
            return (StatusCode::CREATED, body);
        }
        let object = path.strip_suffix("/binding").unwrap_or(path);
        let (parent, name) = object.rsplit_once('/').unwrap_or_default();
        let kind = match parent.rsplit('/').next() {
            Some("pods") => Kind::Pod,
            Some("nodes") => Kind::Node,
            Some("leases") => Kind::Lease,
            // Events, and reviews of permissions.
            _ => return (StatusCode::OK, body),
        };
        let Some(mut found) = state.all(kind).get(name).cloned() else {
            return said(StatusCode::NOT_FOUND, "NotFound");
        };
        let is_other = |uid: &Value| !uid.is_null() && *uid != found["metadata"]["uid"];
        let (asked, now) =
            (&body["metadata"]["resourceVersion"], &found["metadata"]["resourceVersion"]);
        let is_old = !asked.is_null() && asked != now;
        if is_other(&body["metadata"]["uid"]) || is_other(&body["preconditions"]["uid"]) || is_old {
            return said(StatusCode::CONFLICT, "Conflict");
        }
        if object != path {
            if found["spec"]["nodeName"].is_string() {
                return said(StatusCode::CONFLICT, "Conflict");
            }
            // Like an API server on a binding: sets the pod's node and annotations.
            found["spec"]["nodeName"] = body["target"]["name"].clone();
            merge(&mut found["metadata"]["annotations"], &body["metadata"]["annotations"]);
            state.change(kind, found);
        } else if method == "PATCH" {
            merge(&mut found, &body);
            state.change(kind, found);
        } else if method == "PUT" {
            state.change(kind, body);
        } else if method == "DELETE" {
            state.remove(kind, name);
        }
        let now = state.all(kind).get(name).cloned();
        drop(state);
        self.tell();
        match now.filter(|_| matches!(method, "PATCH" | "PUT")) {
            Some(now) => (StatusCode::OK, now),
            None => said(StatusCode::OK, "Success"),
        }
    }
}

/// A Status object as the answer.
fn said(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    let status = if code.is_success() { "Success" } else { "Failure" };
    let body = json!({"apiVersion": "v1", "kind": "Status", "status": status, "metadata": {},
        "code": code.as_u16(), "reason": reason, "message": reason});
    (code, body)
}

#[handler]
async fn answer(request: &Request, body: Body, objects: Data<&Objects>) -> Response {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    objects.wait_for_speech(&path, request.method() != "GET").await;
    let number = objects.one_more();
    objects.come_to(number, Moment::Asked);
    if request.method() != "GET" {
        let sent = body.into_vec().await.unwrap_or_default();
        let sent = serde_json::from_slice(&sent).unwrap_or_default();
        let (status, answer) = objects.write(request.method().as_str(), &path, sent);
        objects.come_to(number, Moment::Done);
        return json_of(status, &answer);
    }
    if query.contains("watch=true") {
        objects.come_to(number, Moment::Done);
        return Response::builder().body(Body::from_bytes_stream(objects.watch(path, query)));
    }
    let found = objects.get(&path, query);
    objects.come_to(number, Moment::Done);
    match found {
        Some(found) => json_of(StatusCode::OK, &found),
        None => {
            let (status, none) = said(StatusCode::NOT_FOUND, "NotFound");
            json_of(status, &none)
        }
    }
}

fn json_of(status: StatusCode, body: &Value) -> Response {
    Response::builder().status(status).content_type("application/json").body(body.to_string())
}

impl ApiServer {
    /// Starts a server with a node `here`, and writes its kubeconfig into the folder.
    ///
    /// # Errors
    /// The system's.
    pub async fn start(folder: &Path) -> io::Result<Self> {
        // A loopback address of this process's own: nobody else takes the port while the server is away.
        let [_, third, high, low] = std::process::id().to_be_bytes();
        let own = Ipv4Addr::new(127, 2 + third, high, low);
        let objects = Objects::default();
        objects.put_node(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"}}));
        let (runtime, address) = serve((own, 0).into(), objects.clone()).await?;
        let kubeconfig = folder.join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&kubeconfig, text.to_string())?;
        Ok(Self { kubeconfig, objects, address, runtime: Some(runtime) })
    }

    /// Ends the server and its connections, and returns when no request is handled any more.
    pub fn leave(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On a thread of its own: callers may be asynchronous, and those may not wait for a runtime.
            let ended = thread::spawn(|| runtime.shutdown_timeout(Duration::from_secs(10)));
            _ = ended.join();
        }
    }

    /// Starts the server again, with its objects.
    ///
    /// # Errors
    /// The system's.
    pub async fn come_back(&mut self) -> io::Result<()> {
        let (runtime, _) = serve(self.address, self.objects.clone()).await?;
        self.runtime = Some(runtime);
        Ok(())
    }
}

/// Serves at the address until the returned runtime is dropped.
async fn serve(address: SocketAddr, objects: Objects) -> io::Result<(Runtime, SocketAddr)> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let bound = runtime.spawn(async move {
        let acceptor = TcpListener::bind(address).into_acceptor().await?;
        let bound = acceptor.local_addr();
        let address = bound.iter().find_map(|address| address.as_socket_addr()).copied();
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let routes = Route::new().at("/*path", answer).data(objects);
        // Ends with the runtime.
        tokio::spawn(Server::new_with_acceptor(acceptor).run(routes));
        Ok::<_, io::Error>(address)
    });
    let bound = match bound.await {
        Ok(bound) => bound,
        Err(ended) => Err(io::Error::other(ended)),
    };
    match bound {
        Ok(address) => Ok((runtime, address)),
        Err(error) => {
            runtime.shutdown_background();
            Err(error)
        }
    }
}

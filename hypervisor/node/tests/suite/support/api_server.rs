//! As much of an API server as the node's part and the extender ask: pods, nodes, and what is written.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures_util::stream;
use poem::listener::{Acceptor, Listener, TcpListener};
use poem::{Body, EndpointExt, Request, Response, Server, handler};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// What it has, and what was written to it: method, path, body.
#[derive(Clone, Default)]
pub(crate) struct Objects {
    pods: Arc<Mutex<Vec<Value>>>,
    nodes: Arc<Mutex<Vec<Value>>>,
    written: Arc<Mutex<Vec<(String, String, Value)>>>,
}

pub(crate) struct ApiServer {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) objects: Objects,
    task: JoinHandle<()>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Objects {
    /// A pod is created or changed. Nobody who watches is told: they have to ask.
    pub(crate) fn put(&self, pod: Value) {
        self.pods.lock().unwrap().push(pod);
    }

    /// A node is there.
    #[allow(dead_code, reason = "the node's own tests have one node")]
    pub(crate) fn put_node(&self, node: Value) {
        self.nodes.lock().unwrap().push(node);
    }

    /// What API servers do with a binding: the pod is on its node, and has its annotations.
    fn bind(&self, path: &str, binding: &Value) {
        let Some(path) = path.strip_suffix("/binding") else { return };
        for pod in self.pods.lock().unwrap().iter_mut() {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            if path.ends_with(&format!("/pods/{name}")) {
                pod["spec"]["nodeName"] = binding["target"]["name"].clone();
                pod["metadata"]["annotations"] = binding["metadata"]["annotations"].clone();
            }
        }
    }

    /// What was written to a path with this end.
    pub(crate) fn written(&self, method: &str, end: &str) -> Vec<Value> {
        let all = self.written.lock().unwrap();
        let meant = all.iter().filter(|(how, path, _)| how == method && path.ends_with(end));
        meant.map(|(.., body)| body.clone()).collect()
    }
}

#[handler]
async fn answer(request: &Request, body: Body, objects: poem::web::Data<&Objects>) -> Response {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    let method = request.method().to_string();
    if method == "GET" && query.contains("watch=true") {
        let nothing = stream::pending::<Result<Vec<u8>, std::io::Error>>();
        return Response::builder().body(Body::from_bytes_stream(nothing));
    }
    let found = if method == "GET" {
        get(&path, query, objects.0)
    } else {
        let body: Value =
            serde_json::from_slice(&body.into_vec().await.unwrap()).unwrap_or_default();
        objects.written.lock().unwrap().push((method, path.clone(), body.clone()));
        objects.bind(&path, &body);
        match path.ends_with("/events") {
            true => Some(body),
            false => Some(
                json!({"apiVersion": "v1", "kind": "Status", "status": "Success", "metadata": {}}),
            ),
        }
    };
    let none = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "none"});
    let status = if found.is_some() {
        poem::http::StatusCode::OK
    } else {
        poem::http::StatusCode::NOT_FOUND
    };
    let text = found.unwrap_or(none).to_string();
    Response::builder().status(status).content_type("application/json").body(text)
}

fn get(path: &str, query: &str, objects: &Objects) -> Option<Value> {
    let (parent, name) = path.rsplit_once('/')?;
    let (pods, nodes) = (objects.pods.lock().unwrap(), objects.nodes.lock().unwrap());
    let list = |kind: &str, items: Vec<&Value>| {
        let metadata = json!({"resourceVersion": "1"});
        Some(json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "items": items}))
    };
    let named = |all: &[Value]| all.iter().find(|one| one["metadata"]["name"] == name).cloned();
    match (parent, name) {
        ("/api/v1", "pods") => {
            let of = query.split_once("spec.nodeName%3D").map(|(_, rest)| rest);
            let of = of.map(|rest| rest.split('&').next().unwrap_or_default());
            let is_its = |pod: &&Value| of.is_none_or(|node| pod["spec"]["nodeName"] == node);
            list("PodList", pods.iter().filter(is_its).collect())
        }
        ("/api/v1", "nodes") => list("NodeList", nodes.iter().collect()),
        ("/api/v1/nodes", "here") => {
            Some(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"}}))
        }
        ("/api/v1/nodes", _) => named(&nodes),
        _ => named(&pods),
    }
}

impl ApiServer {
    pub(crate) async fn start(folder: &Path) -> Self {
        let acceptor = TcpListener::bind("127.0.0.1:0").into_acceptor().await.unwrap();
        let address = acceptor.local_addr()[0].as_socket_addr().copied().unwrap();
        let objects = Objects::default();
        let routes = poem::Route::new().at("/*path", answer).data(objects.clone());
        let task = tokio::spawn(async move {
            Server::new_with_acceptor(acceptor).run(routes).await.unwrap();
        });
        let kubeconfig = folder.join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        Self { kubeconfig, objects, task }
    }
}

//! As much of an API server as the node's part asks: one list of pods, one node, and what is written.

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
        get(&path, &objects.pods.lock().unwrap())
    } else {
        let body: Value =
            serde_json::from_slice(&body.into_vec().await.unwrap()).unwrap_or_default();
        objects.written.lock().unwrap().push((method, path.clone(), body.clone()));
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

fn get(path: &str, pods: &[Value]) -> Option<Value> {
    let (_, name) = path.rsplit_once('/')?;
    if path == "/api/v1/pods" {
        return Some(
            json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": pods}),
        );
    }
    if path == "/api/v1/nodes/here" {
        return Some(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"}}));
    }
    pods.iter().find(|pod| pod["metadata"]["name"] == name).cloned()
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

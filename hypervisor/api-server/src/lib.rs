//! The client for a cluster's API server: connection, timeouts, retries and watches. Used by the node agent, the
//! extender and the webhook.
//!
//! kube's client waits for answers without a timeout, so every call goes through [`answered`].

#![forbid(unsafe_code)]

mod bounds;

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Config};

use self::bounds::{Bounded, Bounds};

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read.
    #[error("--kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// This program does not run in a pod.
    #[error(
        "without --kubeconfig this has to run in a pod, which is told where the API server is: {0}"
    )]
    InCluster(#[from] kube::config::InClusterError),
    /// The configuration is not usable.
    #[error("the API server: {0}")]
    Unusable(#[from] kube::Error),
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server refused the call, or cannot be reached.
    #[error("the API server: {0}")]
    Failed(#[from] kube::Error),
    /// The timeout has passed.
    #[error("the API server: no answer within {} s", .0.as_secs())]
    Silent(Duration),
}

impl CallError {
    /// Whether a retry would fail the same way: the object is gone or replaced, or the call is not permitted.
    #[must_use]
    pub fn is_final(&self) -> bool {
        const BUSY: u16 = 429;
        matches!(self, Self::Failed(kube::Error::Api(said)) if (400..500).contains(&said.code) && said.code != BUSY)
    }
}

/// Whether the API server found the object different from what the call assumed.
#[must_use]
pub fn is_conflict(error: &kube::Error) -> bool {
    const CONFLICT: u16 = 409;
    matches!(error, kube::Error::Api(said) if said.code == CONFLICT)
}

/// Creates a client. `kubeconfig`: `None` for the service account mounted into the pod.
///
/// # Errors
/// [`ConnectError`]. An unreachable API server is no error here; calls report it.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let config = match kubeconfig {
        Some(file) => {
            let file = Kubeconfig::read_from(file)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        None => Config::incluster()?,
    };
    Ok(ClientBuilder::try_from(config)?.with_layer(&Bounded::by(Bounds::DEFAULT)).build())
}

/// An object's name as one path segment: kube does not escape names.
#[must_use]
pub fn segment(name: &str) -> String {
    let is_dots = name.bytes().all(|byte| byte == b'.');
    name.bytes().fold(String::with_capacity(name.len()), |mut text, byte| {
        match byte {
            b'.' if !is_dots => text.push('.'),
            b'-' | b'_' => text.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => text.push(byte.into()),
            // Writing to a string does not fail.
            _ => _ = write!(text, "%{byte:02X}"),
        }
        text
    })
}

/// The field selector for the pods of a node.
#[must_use]
pub fn on_node(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for letter in name.chars() {
        if matches!(letter, '\\' | ',' | '=') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    format!("spec.nodeName={escaped}")
}

/// Awaits a call with a timeout.
///
/// # Errors
/// [`CallError`]
pub async fn answered<T>(
    within: Duration,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, CallError> {
    let answer = tokio::time::timeout(within, call).await;
    Ok(answer.map_err(|_| CallError::Silent(within))??)
}

/// First and longest pause between retries.
const AGAIN: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Like [`answered`], but retries for `so_long`, unless the failure is final. `told` is called for the first failure
/// only.
///
/// # Errors
/// [`CallError`] of the last attempt.
pub async fn insisted<T, F>(
    within: Duration,
    so_long: Duration,
    call: impl Fn() -> F,
    told: impl FnOnce(&CallError),
) -> Result<T, CallError>
where
    F: Future<Output = kube::Result<T>>,
{
    let (begun, (mut pause, longest)) = (Instant::now(), AGAIN);
    let mut told = Some(told);
    loop {
        match answered(within, call()).await {
            Err(error) if !error.is_final() && begun.elapsed() + pause < so_long => {
                if let Some(told) = told.take() {
                    told(&error);
                }
            }
            answer => return answer,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// Watches the objects that `which` selects, forever. After an interruption, or if the API server has lost the history,
/// all objects are listed again. An interruption is logged once.
pub fn watched<K>(
    objects: Api<K>,
    kind: &'static str,
    which: watcher::Config,
) -> impl Stream<Item = watcher::Event<K>> + Send + use<K>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut is_lost = false;
    let events = watcher(objects, which)
        .default_backoff()
        // Usually the largest part of an object.
        .modify(|object| object.meta_mut().managed_fields = None);
    events.filter_map(move |event| {
        let before = std::mem::replace(&mut is_lost, event.is_err());
        if let Err(error) = &event
            && !before
        {
            tracing::warn!(%error, kind, "the API server does not tell of them");
        }
        std::future::ready(event.ok())
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use kube::core::Status;

    #[tokio::test]
    async fn a_client_needs_a_file_or_a_pod() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("none");
        let said = client(Some(&file)).await.err().unwrap().to_string();
        assert!(said.starts_with("--kubeconfig: "), "{said}");
        let said = client(None).await.err().unwrap().to_string();
        assert!(said.starts_with("without --kubeconfig this has to run in a pod"), "{said}");
    }

    #[test]
    fn a_name_is_one_segment_of_a_path_and_one_value_of_a_selector() {
        assert_eq!(segment("train-0.of_x"), "train-0.of_x");
        assert_eq!(segment("../a?b#c%2f"), "..%2Fa%3Fb%23c%252f");
        assert_eq!((segment(".."), segment("é ")), ("%2E%2E".to_owned(), "%C3%A9%20".to_owned()));
        assert_eq!(on_node("here-1.x"), "spec.nodeName=here-1.x");
        assert_eq!(on_node(r"a,b=c\"), r"spec.nodeName=a\,b\=c\\");
    }

    #[tokio::test]
    async fn an_answer_that_does_not_come_is_not_waited_for() {
        let within = Duration::from_millis(10);
        let said = answered(within, std::future::pending::<kube::Result<()>>()).await.unwrap_err();
        assert!(matches!(said, CallError::Silent(after) if after == within));
        assert!(!said.is_final());
        assert_eq!(answered(within, async { Ok(7) }).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn it_is_insisted_on_an_answer_and_not_on_another_one() {
        let (within, so_long) = (Duration::from_millis(10), Duration::from_secs(60));
        let calls = Cell::new(0);
        let told = Cell::new(0);
        let tell = |_: &CallError| told.set(told.get() + 1);
        let third = || {
            calls.set(calls.get() + 1);
            let is_third = calls.get() == 3;
            async move { if is_third { Ok(7) } else { std::future::pending().await } }
        };
        assert_eq!(insisted(within, so_long, third, tell).await.unwrap(), 7);
        assert_eq!((calls.take(), told.take()), (3, 1));
        let gone = || {
            calls.set(calls.get() + 1);
            let said = Status { code: 404, ..Status::default() };
            async { Err::<(), _>(kube::Error::Api(Box::new(said))) }
        };
        assert!(insisted(within, so_long, gone, tell).await.unwrap_err().is_final());
        assert_eq!((calls.take(), told.take()), (1, 0));
        let never = || std::future::pending::<kube::Result<()>>();
        let said = insisted(within, Duration::from_millis(500), never, tell).await.unwrap_err();
        assert!(matches!(said, CallError::Silent(_)));
    }

    #[test]
    fn what_would_be_said_again_is_final() {
        let said = |code| {
            CallError::from(kube::Error::Api(Box::new(Status { code, ..Status::default() })))
        };
        for (code, is_final) in [(403, true), (404, true), (409, true), (429, false), (500, false)]
        {
            assert_eq!(said(code).is_final(), is_final, "{code}");
        }
    }
}

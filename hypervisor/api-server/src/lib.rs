//! A cluster's API server: how it is found, how long it may take, and what it tells of objects while it comes and goes.
//!
//! Its client waits for answers without an end. Everything that is asked goes through [`answered`], which does not.

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
    /// The file is none.
    #[error("--kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// This is no pod.
    #[error(
        "without --kubeconfig this has to run in a pod, which is told where the API server is: {0}"
    )]
    InCluster(#[from] kube::config::InClusterError),
    /// What is said of it cannot be used.
    #[error("the API server: {0}")]
    Unusable(#[from] kube::Error),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// It says no, or cannot be reached.
    #[error("the API server: {0}")]
    Failed(#[from] kube::Error),
    /// It does not answer.
    #[error("the API server: no answer within {} s", .0.as_secs())]
    Silent(Duration),
}

impl CallError {
    /// Whether it would say the same again: the object has gone, is another one, or this is not permitted.
    #[must_use]
    pub fn is_final(&self) -> bool {
        const BUSY: u16 = 429;
        matches!(self, Self::Failed(kube::Error::Api(said)) if (400..500).contains(&said.code) && said.code != BUSY)
    }
}

/// Whether the object is not as a call supposed, or another one.
#[must_use]
pub fn is_conflict(error: &kube::Error) -> bool {
    const CONFLICT: u16 = 409;
    matches!(error, kube::Error::Api(said) if said.code == CONFLICT)
}

/// A client. `kubeconfig`: the file that says where the API server is. `None`: as every pod is told.
///
/// # Errors
/// [`ConnectError`]. An API server that is not there is none: that is seen when it is asked.
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

/// An object's name as one segment of a path: kube writes names there as they are.
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

/// What a call is answered in this time.
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

/// How soon a call is made again, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// The same, again and again for so long, unless it would be said again. `told`: of the first failure, since this may go on
/// for long.
///
/// # Errors
/// [`CallError`], the last one.
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

/// What becomes of the objects that `which` selects, without an end. After a time without the API server, or when it does
/// not know any more what has happened since, all of them are told anew. That it does not tell is logged once.
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
        // The larger part of many objects.
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

//! Kubernetes events for people, shown by `kubectl describe`. Repeated events are counted in a series.
//!
//! kube's own recorder identifies a series by its reason alone, and would report a second text under the first one's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api_server::{answered, segment};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::cluster::ANSWERS_WITHIN;

/// The reporting controller of events.
const CONTROLLER: &str = "sluice.dev/node";
/// The longest note that Kubernetes accepts.
const MOST_NOTE: usize = 1000;
/// How long after its last event a series continues.
const SERIES: Duration = Duration::from_secs(360);

/// Whether people have to act on an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Warning,
}

/// The content of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) kind: Kind,
    /// Machine-readable, one word.
    pub(crate) reason: &'static str,
    /// The action during which it happened.
    pub(crate) action: &'static str,
    pub(crate) note: String,
    /// Distinguishes series that share a reason and an object.
    pub(crate) series: String,
    /// How often it happened since the last event.
    pub(crate) count: u64,
}

impl Told {
    /// An event that happened once, in a series with all events of the same note.
    pub(crate) fn once(
        kind: Kind,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) -> Self {
        Self { kind, reason, action, series: note.clone(), note, count: 1 }
    }
}

/// Object, reason and series.
type Key = (String, &'static str, String);

#[derive(Clone, Debug)]
struct Series {
    name: String,
    count: u64,
    last: Instant,
}

/// Writes events to the API server.
#[derive(Clone)]
pub(crate) struct Events {
    client: Client,
    node: Arc<str>,
    series: Arc<Mutex<BTreeMap<Key, Series>>>,
}

impl Events {
    /// For events of this node.
    pub(crate) fn new(client: Client, node: Arc<str>) -> Self {
        Self { client, node, series: Arc::default() }
    }

    fn series(&self) -> MutexGuard<'_, BTreeMap<Key, Series>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an event. Failures are only logged.
    pub(crate) async fn tell(&self, about: &ObjectReference, told: Told) {
        let namespace = about.namespace.as_deref().unwrap_or("default");
        let events: Api<Event> = Api::namespaced(self.client.clone(), &segment(namespace));
        let whose = about.uid.clone().or_else(|| about.name.clone()).unwrap_or_default();
        let key = (whose, told.reason, told.series.clone());
        self.series().retain(|_, series| series.last.elapsed() < SERIES);
        let begun = self.series().get(&key).cloned();
        let writes = async {
            match begun {
                Some(mut series) => {
                    series.count = series.count.saturating_add(told.count);
                    series.last = Instant::now();
                    let patch = Patch::Merge(json!({"series": counted(series.count)}));
                    events.patch(&segment(&series.name), &PatchParams::default(), &patch).await?;
                    Ok(series)
                }
                None => {
                    let event = self.event(about, namespace, &told);
                    events.create(&PostParams::default(), &event).await?;
                    let name = event.metadata.name.unwrap_or_default();
                    Ok(Series { name, count: told.count, last: Instant::now() })
                }
            }
        };
        let written = answered(ANSWERS_WITHIN, writes).await;
        match written {
            Ok(series) => {
                self.series().insert(key, series);
            }
            Err(error) => {
                if error.is_final() {
                    // The event may have been deleted: the next one begins a new series.
                    self.series().remove(&key);
                }
                tracing::warn!(%error, reason = told.reason, "an event is not written");
            }
        }
    }

    fn event(&self, about: &ObjectReference, namespace: &str, told: &Told) -> Event {
        let now = Timestamp::now();
        let name = about.name.as_deref().unwrap_or_default();
        let kind = match told.kind {
            Kind::Normal => "Normal",
            Kind::Warning => "Warning",
        };
        Event {
            action: Some(told.action.to_owned()),
            event_time: Some(MicroTime(now)),
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            note: Some(told.note.chars().take(MOST_NOTE).collect()),
            reason: Some(told.reason.to_owned()),
            regarding: Some(about.clone()),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.node.to_string()),
            series: (told.count > 1).then(|| counted(told.count)),
            type_: Some(kind.to_owned()),
            ..Event::default()
        }
    }
}

fn counted(count: u64) -> EventSeries {
    EventSeries {
        count: i32::try_from(count).unwrap_or(i32::MAX),
        last_observed_time: MicroTime(Timestamp::now()),
    }
}

//! `/api/v1/events`: a stream of events.

use std::sync::Arc;
use std::time::Duration;

use api::{Event, ProblemCode};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use poem::web::sse;
use poem_openapi::OpenApi;
use poem_openapi::param::Header;
use poem_openapi::payload::EventStream;

use super::problem::Refused;
use crate::core::Core;
use crate::identity::Caller;

/// Longest silence of the stream: the periodic line reveals a reader that has disconnected.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) struct Events(pub(super) Arc<Core>);

#[OpenApi]
impl Events {
    /// Streams events from now on, or after the event in Last-Event-ID. The daemon keeps the last 4096 events. A slower
    /// reader gets an event `lost` with the number of missing events.
    #[oai(path = "/api/v1/events", method = "get")]
    async fn events(
        &self,
        caller: Caller,
        /// Id of the last event that was read.
        #[oai(name = "Last-Event-ID")]
        last_event_id: Header<Option<String>>,
    ) -> Result<EventStream<BoxStream<'static, Event>>, Refused> {
        let place = self.0.events_place(&caller)?;
        let reader = self.0.read_events(&caller, place, last_event_id.0.as_deref());
        let reader = reader.map_err(|wrong| {
            let message = format!("{:?} is not an event id", wrong.0);
            Refused::new(ProblemCode::BadRequest, message, "an event id from this stream")
        })?;
        let events = stream::unfold(reader, |mut reader| async {
            let event = reader.next().await;
            Some((event, reader))
        });
        Ok(EventStream::new(events.boxed()).to_event(written).keep_alive(KEEP_ALIVE))
    }
}

fn written(event: Event) -> sse::Event {
    let kind = serde_json::to_value(event.kind).ok();
    let kind = kind.as_ref().and_then(|kind| kind.as_str()).unwrap_or_default().to_owned();
    let id = event.id.clone();
    let text = serde_json::to_string(&event).unwrap_or_default();
    sse::Event::message(text).id(id).event_type(kind)
}

//! An open stream of tasks.

use std::io::Read;
use std::time::Duration;

use serde_json::value::RawValue;

use super::events::EventReader;
use crate::BODY_LIMIT;
use crate::client::{BlockingHttpClient, ClientError};
use crate::delivery::Cursor;
use crate::delivery::message::Delivery;

/// A stream of tasks, until the server ends it or it breaks.
pub(super) struct OpenStream {
    reader: Box<dyn Read + Send>,
    events: EventReader,
    something_came: bool,
    quiet: Duration,
}

impl OpenStream {
    /// Opens the stream at `path` behind `cursor`.
    pub(super) fn open(
        http: &BlockingHttpClient,
        path: &str,
        cursor: Option<Cursor>,
        timeout: Duration,
        quiet: Duration,
    ) -> Result<Self, ClientError> {
        let last_event = cursor.map(|cursor| cursor.to_string());
        let reader = http.stream(path, last_event.as_deref(), timeout, quiet)?;
        let events = EventReader::new(BODY_LIMIT);
        Ok(Self { reader, events, something_came: false, quiet })
    }

    /// The tasks of the next piece that arrives; there may be none in it. `None`: the server ended
    /// the stream.
    pub(super) fn read(
        &mut self,
        http: &BlockingHttpClient,
    ) -> Result<Option<Vec<Delivery<Box<RawValue>>>>, ClientError> {
        let mut piece = [0; 4096];
        let count = self.reader.read(&mut piece).map_err(|error| http.broken(error, self.quiet))?;
        if count == 0 {
            // A server that ends each stream at once would be called without pause.
            return match self.something_came {
                true => Ok(None),
                false => Err(http.protocol("the stream ended before anything came".to_owned())),
            };
        }
        self.something_came = true;
        let mut events = Vec::new();
        let arrived = piece.get(..count).unwrap_or_default();
        self.events
            .read(arrived, &mut events)
            .map_err(|_| http.protocol(format!("an event has more than {BODY_LIMIT} bytes")))?;
        events
            .iter()
            .map(|data| serde_json::from_slice(data))
            .collect::<Result<_, _>>()
            .map(Some)
            .map_err(|error| http.protocol(format!("an event is not understood: {error}")))
    }
}

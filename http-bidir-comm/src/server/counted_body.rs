//! Bodies of calls that wait until there is memory for them.

use std::sync::Arc;
use std::time::Duration;

use poem::http::StatusCode;
use poem::web::Data;
use poem::web::headers::{ContentLength, HeaderMapExt};
use poem::{FromRequest, Request, RequestBody};
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::json::{ApiError, read_json};

/// Time for a body to arrive, and for it to wait for the bodies of other calls.
const BODY_WITHIN: Duration = Duration::from_secs(5);

/// Memory for the bodies of all calls. A route with [`CountedBody`] has it as its data.
#[derive(Clone, Debug)]
pub struct BodyMemory {
    /// A permit for each byte.
    free: Arc<Semaphore>,
    all: u32,
    each: u32,
}

impl BodyMemory {
    /// For so many bytes of all bodies at once, and of each of them.
    #[must_use]
    pub fn new(all: u32, each: u32) -> Self {
        Self { free: Arc::new(Semaphore::new(all as usize)), all, each: each.min(all) }
    }

    /// Waits until all calls with a body have been answered.
    pub async fn all_free(&self) {
        _ = self.free.acquire_many(self.all).await;
    }
}

/// A call's body, read as JSON, and its memory. For [`AnswerKept`](super::AnswerKept), which keeps the memory until the
/// answer has been sent.
#[derive(Debug)]
pub struct CountedBody<T>(pub T, pub OwnedSemaphorePermit);

impl<'a, T: DeserializeOwned> FromRequest<'a> for CountedBody<T> {
    async fn from_request(request: &'a Request, body: &mut RequestBody) -> poem::Result<Self> {
        let refused = |status, problem: String| ApiError::new(status, problem);
        let Data(memory) = Data::<&BodyMemory>::from_request(request, body).await?;
        let Some(ContentLength(length)) = request.headers().typed_get() else {
            let problem = "a call without content-length; expected the body's length".to_owned();
            return Err(refused(StatusCode::LENGTH_REQUIRED, problem).into());
        };
        let bytes = u32::try_from(length).ok().filter(|bytes| *bytes <= memory.each);
        let bytes = bytes.ok_or_else(|| {
            let problem = format!("a body of {length} bytes; expected at most {}", memory.each);
            refused(StatusCode::PAYLOAD_TOO_LARGE, problem)
        })?;
        let place = Arc::clone(&memory.free).acquire_many_owned(bytes.max(1));
        let place = timeout(BODY_WITHIN, place).await.ok().and_then(Result::ok);
        let place = place.ok_or_else(|| {
            let problem = "bodies of other calls take all memory; expected the same call later";
            refused(StatusCode::SERVICE_UNAVAILABLE, problem.to_owned())
        })?;
        Ok(Self(read_json(body.take()?, bytes as usize, BODY_WITHIN).await?, place))
    }
}

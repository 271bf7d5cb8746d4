//! What clients call.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use poem::endpoint::BoxEndpoint;
use poem::http::StatusCode;
use poem::web::sse::{Event, SSE};
use poem::web::{Data, Query};
use poem::{EndpointExt, Request, Response, Route, get, handler, post};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use super::exchange::{Exchange, Next};
use crate::delivery::message::{Delivery, PollRequest, ResultRequest, ResultTaken};
use crate::delivery::{Cursor, Epoch};
use crate::server::authenticate::Caller;
use crate::server::json::{Answer, ApiError, Body, error_to_json};
use crate::server::peer::Peer;
use crate::server::waiting::wait_up_to;
use crate::{BODY_LIMIT, ClientName, TASK_LIMIT};

/// One more task fits into an answer that has less than this.
const ROOM_IN_ANSWER: usize = BODY_LIMIT / 2 - TASK_LIMIT / 2;

pub(super) fn routes(exchange: Arc<Exchange>) -> BoxEndpoint<'static, Response> {
    Route::new()
        .at("/poll", post(poll))
        .at("/results", post(results))
        .at("/stream", get(event_stream))
        .data(exchange)
        .catch_all_error(error_to_json)
        .boxed()
}

fn authenticate(
    exchange: &Exchange,
    request: &Request,
    client: &ClientName,
) -> Result<(), ApiError> {
    let caller = Caller { peer: Peer::from_address(request.remote_addr()), request, client };
    exchange.authenticate.authenticate(&caller)
}

#[handler]
async fn poll(
    request: &Request,
    asked: Body<PollRequest>,
    exchange: Data<&Arc<Exchange>>,
) -> Result<Answer<Vec<Delivery<Box<RawValue>>>>, ApiError> {
    let Body(asked) = asked;
    authenticate(&exchange, request, &asked.client)?;
    let mut attendance = exchange.attend(asked.client, asked.client_epoch, asked.cursor)?;
    let wait = Duration::from_millis(asked.wait_ms);
    let first = wait_up_to(wait, exchange.settings.longest_wait, attendance.next()).await;
    let mut tasks: Vec<_> = first.flatten().into_iter().collect();
    let mut bytes: usize = tasks.iter().map(|delivery| delivery.task.get().len()).sum();
    while !tasks.is_empty() && bytes < ROOM_IN_ANSWER {
        let Next::Task(delivery) = attendance.try_next() else { break };
        bytes += delivery.task.get().len();
        tasks.push(delivery);
    }
    Ok(Answer(tasks))
}

#[handler]
async fn results(
    request: &Request,
    result: Body<ResultRequest<Box<RawValue>>>,
    exchange: Data<&Arc<Exchange>>,
) -> Result<Answer<ResultTaken>, ApiError> {
    authenticate(&exchange, request, &result.0.client)?;
    exchange.take(result.0).map(Answer)
}

/// Who asks for a stream.
#[derive(Deserialize)]
struct StreamQuery {
    client: ClientName,
    client_epoch: Epoch,
}

#[handler]
async fn event_stream(
    request: &Request,
    query: Query<StreamQuery>,
    exchange: Data<&Arc<Exchange>>,
) -> Result<SSE, ApiError> {
    let Query(StreamQuery { client, client_epoch }) = query;
    authenticate(&exchange, request, &client)?;
    let attendance = exchange.attend(client, client_epoch, last_event(request)?)?;
    let end = Instant::now() + exchange.settings.stream_lasts;
    let events = stream::unfold(attendance, move |mut attendance| async move {
        let delivery = timeout_at(end, attendance.next()).await.ok().flatten()?;
        let cursor = Cursor { epoch: delivery.epoch, after: delivery.id };
        let data = serde_json::to_string(&delivery).ok()?;
        Some((Event::message(data).id(cursor.to_string()), attendance))
    });
    Ok(SSE::new(events).keep_alive(exchange.settings.keep_alive))
}

fn last_event(request: &Request) -> Result<Option<Cursor>, ApiError> {
    let Some(value) = request.headers().get("last-event-id") else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes());
    // Browsers send an empty one before the first event.
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| {
        let shown: String = text.chars().take(40).collect();
        ApiError::new(StatusCode::BAD_REQUEST, format!("Last-Event-ID {shown:?}: {error}"))
    })
}

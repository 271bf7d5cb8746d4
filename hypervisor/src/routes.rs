//! The calls, each handed to the core.

use std::sync::Arc;

use http_bidir_comm::server::{Answer, ApiError, Body, Peer, error_to_json};
use poem::web::Data;
use poem::{Endpoint, EndpointExt, Route, get, handler, post};
use protocol::status::Status;
use protocol::{Admission, Decision, Register, Registered, path};

use super::core::Core;

pub(super) fn routes(core: Arc<Core>) -> impl Endpoint {
    Route::new()
        .at(path::REGISTER, post(register))
        .at(path::ADMISSION, post(admission))
        .at(path::REPORT, post(report))
        .at(path::STATUS, get(show))
        .data(core)
        .catch_all_error(error_to_json)
}

#[handler]
async fn register(
    peer: Peer,
    body: Body<Register>,
    core: Data<&Arc<Core>>,
) -> poem::Result<Answer<Registered>> {
    Ok(Answer(core.register(peer, &body.0).map_err(ApiError::from)?))
}

#[handler]
async fn admission(
    peer: Peer,
    body: Body<Admission>,
    core: Data<&Arc<Core>>,
) -> poem::Result<Answer<Decision>> {
    Ok(Answer(core.admission(peer, body.0).await.map_err(ApiError::from)?))
}

#[handler]
async fn report(
    peer: Peer,
    body: Body<Admission>,
    core: Data<&Arc<Core>>,
) -> poem::Result<Answer<Decision>> {
    let only_report = Admission { ask: None, ..body.0 };
    Ok(Answer(core.admission(peer, only_report).await.map_err(ApiError::from)?))
}

#[handler]
async fn show(peer: Peer, core: Data<&Arc<Core>>) -> Answer<Status> {
    Answer(core.status(peer))
}

//! The routes; each hands its call to the core.

use std::sync::Arc;

use http_bidir_comm::server::{Answer, AnswerKept, ApiError, Body, Peer, error_to_json};
use poem::web::Data;
use poem::{Endpoint, EndpointExt, Route, get, handler, post};
use protocol::status::NodeStatus;
use protocol::{Admission, Decision, Register, Registered, path};

use super::core::Core;
use super::status_quota::StatusPermit;

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
    let caller = core.caller(peer)?;
    Ok(Answer(core.register(&caller, &body.0).await.map_err(ApiError::from)?))
}

#[handler]
async fn admission(
    peer: Peer,
    body: Body<Admission>,
    core: Data<&Arc<Core>>,
) -> poem::Result<Answer<Decision>> {
    let caller = core.caller(peer)?;
    Ok(Answer(core.admission(&caller, body.0).await.map_err(ApiError::from)?))
}

#[handler]
async fn report(
    peer: Peer,
    body: Body<Admission>,
    core: Data<&Arc<Core>>,
) -> poem::Result<Answer<Decision>> {
    let caller = core.caller(peer)?;
    let only_report = Admission { ask: None, ..body.0 };
    Ok(Answer(core.admission(&caller, only_report).await.map_err(ApiError::from)?))
}

#[handler]
async fn show(
    peer: Peer,
    core: Data<&Arc<Core>>,
) -> poem::Result<AnswerKept<NodeStatus, StatusPermit>> {
    let (status, permit) = core.status(&core.caller(peer)?).await.map_err(ApiError::from)?;
    Ok(AnswerKept(status, permit))
}

//! The limiter's routes, each a call of [`Core`]. The [API](super::api) is separate.

use std::sync::Arc;

use http_bidir_comm::server::{Answer, ApiError, Body, error_to_json};
use poem::web::Data;
use poem::{Endpoint, EndpointExt, Route, handler, post};
use protocol::{Admission, Decision, Register, Registered, path};

use super::api;
use super::core::Core;
use super::identity::Caller;
use super::refused::CallRefused;

pub(super) fn routes(core: Arc<Core>) -> impl Endpoint {
    let limiter = Route::new()
        .at(path::REGISTER, post(register))
        .at(path::ADMISSION, post(admission))
        .at(path::REPORT, post(report))
        .data(Arc::clone(&core))
        .catch_all_error(error_to_json);
    // Outermost, because an undecodable path is refused before a route is found.
    Route::new()
        .nest_no_strip(path::ROOT, limiter)
        .nest("/", api::routes(&core))
        .catch_all_error(api::error_to_problem)
}

/// Counts a refused call and converts it to an answer.
fn refuse(core: &Core, caller: &Caller, refused: CallRefused) -> ApiError {
    core.tell_refused(caller, &refused);
    ApiError::from(refused)
}

#[handler]
async fn register(
    caller: Caller,
    body: Body<Register>,
    core: Data<&Arc<Core>>,
) -> poem::Result<Answer<Registered>> {
    Ok(Answer(
        core.register(&caller, &body.0).await.map_err(|refused| refuse(&core, &caller, refused))?,
    ))
}

#[handler]
async fn admission(
    caller: Caller,
    body: Body<Admission>,
    core: Data<&Arc<Core>>,
) -> poem::Result<Answer<Decision>> {
    Ok(Answer(
        core.admission(&caller, body.0).await.map_err(|refused| refuse(&core, &caller, refused))?,
    ))
}

#[handler]
async fn report(
    caller: Caller,
    body: Body<Admission>,
    core: Data<&Arc<Core>>,
) -> poem::Result<Answer<Decision>> {
    let only_report = Admission { ask: None, ..body.0 };
    Ok(Answer(
        core.admission(&caller, only_report)
            .await
            .map_err(|refused| refuse(&core, &caller, refused))?,
    ))
}

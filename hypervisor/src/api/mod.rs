//! The daemon's HTTP API: `/api/v1`, `/healthz`, `/readyz` and `/metrics`. Handlers call [`Core`]; the messages are in
//! the crate `api`.

mod devices;
mod events;
mod health;
mod leases;
mod limits;
mod metrics;
mod payload;
mod problem;
mod sessions;

use std::sync::Arc;

use poem::{Endpoint, Route};
use poem_openapi::OpenApiService;

use crate::core::Core;

pub(crate) use problem::{error_to_problem, turned_away};

const TITLE: &str = "Sluice: the node's daemon";

type Apis = (
    devices::Devices,
    sessions::Sessions,
    limits::Limits,
    leases::Leases,
    events::Events,
    health::Health,
    metrics::Metrics,
);

fn service(core: &Arc<Core>) -> OpenApiService<Apis, ()> {
    let core = || Arc::clone(core);
    let apis = (
        devices::Devices(core()),
        sessions::Sessions(core()),
        limits::Limits(core()),
        leases::Leases(core()),
        events::Events(core()),
        health::Health(core()),
        metrics::Metrics(core()),
    );
    OpenApiService::new(apis, TITLE, api::VERSION)
}

/// The API's routes and their OpenAPI description. The caller turns errors outside the handlers into a
/// [`Problem`](api::Problem) by [`error_to_problem`].
pub(crate) fn routes(core: &Arc<Core>) -> impl Endpoint + use<> {
    let service = service(core);
    let description = service.spec_endpoint();
    Route::new().at(api::path::DESCRIPTION, description).nest("/", service)
}

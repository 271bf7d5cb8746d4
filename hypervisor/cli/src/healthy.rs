//! `sluice healthy`: the operator has looked at a GPU, and it may be used again.

use std::io::{self, Write};

use ::limits::GpuId;
use ::limits::gpu::GpuChoice;
use api::{Device, DeviceDeclared, DeviceList};
use http_bidir_comm::client::ClientError;

use super::cli::HealthyArgs;
use super::{Error, daemon_link};

/// Has the daemon take a GPU for healthy.
///
/// # Errors
/// [`Error::Usage`] for an unknown GPU, and where the daemon refuses; [`Error::Daemon`] without one.
pub(crate) fn run(arguments: &HealthyArgs) -> Result<u8, Error> {
    let daemon = daemon_link::connect(arguments.daemon.as_deref())?;
    let list: DeviceList = said(daemon.get(api::path::DEVICES, daemon_link::PATIENCE))?;
    let uuid = chosen(&list.devices, &arguments.device)?;
    let path = api::path::device(&uuid, "/healthy");
    let done: DeviceDeclared = said(daemon.post(&path, &(), daemon_link::PATIENCE))?;
    let word = if done.changed {
        "is healthy again: the daemon grants leases on it"
    } else {
        "was already healthy"
    };
    let _ = writeln!(io::stdout(), "{uuid} {word}");
    Ok(0)
}

fn said<T>(answer: Result<T, ClientError>) -> Result<T, Error> {
    answer.map_err(|error| match error {
        ClientError::Refused { message, .. } => Error::Usage(message),
        other => Error::Daemon(other.to_string()),
    })
}

fn chosen(devices: &[Device], wanted: &str) -> Result<String, Error> {
    let choice: Option<GpuChoice> = wanted.parse().ok();
    let fits = |device: &&Device| {
        let index = device.figures.as_ref().map(|figures| figures.index);
        let uuid: Option<GpuId> = device.uuid.parse().ok();
        choice.as_ref().zip(uuid).is_some_and(|(choice, uuid)| choice.fits(index, &uuid))
    };
    let mut fitting = devices.iter().filter(fits);
    if let (Some(one), None) = (fitting.next(), fitting.next()) {
        return Ok(one.uuid.clone());
    }
    let known: Vec<_> = devices.iter().map(|device| device.uuid.as_str()).collect();
    Err(Error::Usage(format!(
        "'{wanted}' does not name exactly one GPU of the daemon's; expected one of {}",
        known.join(", ")
    )))
}

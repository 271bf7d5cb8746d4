//! `/api/v1/sessions/{id}/limits`: changes a session's limits.
//!
//! Limits live in the session's pages. The daemon changes them there, like `sluice limit`, and reads in the page which
//! processes have applied the change. The session's processes then report the new limits to the daemon's schedulers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::limits::memory::Part;
use ::limits::named::Names;
use ::limits::request::{Device, MemoryRequest, Unused};
use ::limits::units::Amount;
use ::limits::{GpuId, Named, Policy, Request};
use api::{DeviceLimits, LimitChange, LimitsChanged, ProblemCode, ProcessTook};
use poem_openapi::OpenApi;
use poem_openapi::param::{Path, Query};
use session::PageError;
use session::directory::{self, Found};
use session::process::ProcessIdentity;
use session::taken::{Changed, Took, wait_until_taken};

use super::payload::{Call, Sent};
use super::problem::Refused;
use crate::core::{Core, SessionToChange};
use crate::elsewhere;
use crate::identity::Caller;

/// How long to wait for a concurrent change of the same limits.
const PATIENCE: Duration = Duration::from_secs(1);
/// Default of `wait_ms`.
const WAIT_MS: u32 = 100;

const NAMES: Names = Names {
    memory: "memory_bytes",
    real: "memory_real_bytes",
    share: "share_ppm",
    balance: "policy balance or soft_ppm",
};

pub(super) struct Limits(pub(super) Arc<Core>);

#[OpenApi]
impl Limits {
    /// Changes a session's limits on all devices that it has used, or on one. If one device cannot be changed, none is.
    /// The answer says which of the session's processes have applied the change.
    #[oai(path = "/api/v1/sessions/:id/limits", method = "put")]
    async fn change(
        &self,
        caller: Caller,
        id: Path<u64>,
        /// How long to wait until all of the session's processes have applied the change, in milliseconds; 100 if
        /// omitted.
        #[oai(validator(maximum(value = "1000")))]
        wait_ms: Query<Option<u32>>,
        change: Call<LimitChange>,
    ) -> Result<Sent<LimitsChanged>, Refused> {
        let session = self.0.session_to_change(&caller, id.0)?;
        let name = &session.name;
        if session.is_frozen && change.0.policy == Some(api::Policy::None) {
            let message =
                format!("session {name:?} is frozen, and without a compute share it would run");
            let accepted = "the same call after POST /api/v1/sessions/{id}/thaw";
            return Err(Refused::new(ProblemCode::Frozen, message, accepted));
        }
        let permit = self.0.permit(&caller).await?;
        let wait = Duration::from_millis(wait_ms.0.unwrap_or(WAIT_MS).into());
        let changing =
            move || change_session(&session, &change.0, wait).map(|devices| (devices, permit));
        let made = tokio::task::spawn_blocking(changing).await;
        let (devices, permit) = made.map_err(|error| {
            Refused::new(ProblemCode::Internal, error.to_string(), "another try")
        })??;
        let all = |device: &DeviceLimits| device.processes.iter().all(|process| process.taken);
        let taken_by_all = devices.iter().all(all);
        Ok(Sent::with((LimitsChanged { id: id.0, taken_by_all, devices }, permit)))
    }
}

fn change_session(
    wanted: &SessionToChange,
    change: &LimitChange,
    wait: Duration,
) -> Result<Vec<DeviceLimits>, Refused> {
    let request = request(change)?;
    let (session, process) = found(wanted)?;
    let (mut changes, mut locks) = (Vec::new(), Vec::new());
    let until = Instant::now() + PATIENCE;
    for path in session.pages.iter().filter(|path| is_chosen(path, change)) {
        let page = session.open(path).map_err(|error| no_page(&error))?;
        let uuid = page.device();
        // A lock that is held forever times out: it does not protect from the session itself.
        locks.push(page.lock_limits(until));
        let before = page.look().map_err(|error| no_page(&error))?.limits();
        let title = uuid.to_string();
        let device = Device { name: &title, total: None };
        let after = request.over(&before, device, Unused::Refused);
        let after = after.map_err(|error| Refused::limits(&error))?;
        after.compute.check().map_err(|problem| {
            let message = format!("device {uuid}: {problem}");
            Refused::new(ProblemCode::BadLimits, message, "values as described for LimitChange")
        })?;
        let used = page.summary().map_err(|error| no_page(&error))?.total();
        changes.push((page, before, after, used));
    }
    if process.is_some_and(|process| !process.is_running()) {
        // The process id may have been reused, in another container.
        return Err(out_of_reach(&wanted.name, "its process has just ended"));
    }
    if changes.is_empty() {
        let message = "the session has not used that device";
        let accepted = "the UUID of a device that the session has used, or no device";
        return Err(Refused::new(ProblemCode::NotFound, message, accepted));
    }
    let (mut changed, mut figures) = (Vec::new(), Vec::new());
    for (page, before, after, used) in changes {
        changed.push(Changed::make(page, &after).map_err(|error| no_page(&error))?);
        figures.push((before, after, used));
    }
    drop(locks);
    let took =
        wait_until_taken(&changed, Instant::now() + wait).map_err(|error| no_page(&error))?;
    let devices = changed.iter().zip(&figures).zip(took);
    Ok(devices
        .map(|((changed, figures), took)| told(changed.page().device(), figures, &took))
        .collect())
}

/// Whether a session's pages limit its time on a device. Its processes may not have reported that limit to the daemon.
pub(super) fn limits_time(wanted: &SessionToChange, device: GpuId) -> bool {
    let Ok((session, _)) = found(wanted) else { return false };
    let limits = |path: &std::path::Path| {
        let look = session.open(path).and_then(|page| page.look().map(|look| look.limits()));
        look.is_ok_and(|limits| limits.compute.policy != Policy::None)
    };
    session.pages.iter().any(|path| named(path) == Some(device) && limits(path))
}

/// The device that a page's file name denotes.
fn named(page: &std::path::Path) -> Option<GpuId> {
    page.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok())
}

/// Whether a page belongs to a device to be changed. Decided by file name, so a damaged page of another device does not
/// matter.
fn is_chosen(page: &std::path::Path, change: &LimitChange) -> bool {
    let wanted = change.device.as_ref().map(|wanted| wanted.parse::<GpuId>());
    wanted.is_none_or(|wanted| wanted.is_ok_and(|wanted| named(page) == Some(wanted)))
}

/// Converts the body to a request of crate `limits`.
fn request(change: &LimitChange) -> Result<Request, Refused> {
    let mut request = Request {
        memory: change
            .memory_bytes
            .map(|bytes| Named::new(MemoryRequest::Limit(Amount::Bytes(bytes)), NAMES.memory)),
        real: change
            .memory_real_bytes
            .map(|bytes| Named::new(Part::Amount(Amount::Bytes(bytes)), NAMES.real)),
        share: change.share_ppm.map(|share| Named::new(share, NAMES.share)),
        policy: change.policy.map(|policy| Named::new(Policy::from(policy), "policy")),
        soft: change.soft_ppm.map(|soft| Named::new(soft, "soft_ppm")),
        weight: change.weight.map(|weight| Named::new(weight, "weight")),
        priority: change.priority.map(|priority| Named::new(priority.into(), "priority")),
        ..Request::nothing(NAMES)
    };
    if change.no_memory_limit == Some(true) {
        if request.memory.is_some() || request.real.is_some() {
            let message = "no_memory_limit excludes memory_bytes and memory_real_bytes";
            return Err(Refused::new(ProblemCode::BadLimits, message, "only one of them"));
        }
        request.memory = Some(Named::new(MemoryRequest::NoLimit, "no_memory_limit"));
    }
    if request.is_empty() {
        let accepted = "at least one of memory_bytes, memory_real_bytes, no_memory_limit, share_ppm, policy, soft_ppm, \
                        weight and priority";
        return Err(Refused::new(ProblemCode::BadLimits, "nothing to change", accepted));
    }
    Ok(request)
}

fn out_of_reach(name: &str, why: &str) -> Refused {
    let message = format!("the daemon cannot change the pages of session {name:?}: {why}");
    let accepted = "a session with a process whose files the daemon can see (root's daemon sees all users', another \
                    user's daemon its own); for other sessions, run 'sluice limit' where they run";
    Refused::new(ProblemCode::NoPage, message, accepted)
}

/// The session's directory; if that is visible only to one of the session's processes (in a container), also that
/// process. The daemon knows only the last part of the directory's name.
fn found(wanted: &SessionToChange) -> Result<(Found, Option<ProcessIdentity>), Refused> {
    let SessionToChange { uid, name, processes, .. } = wanted;
    if wanted.is_beside {
        let listing = directory::list().map_err(|error| out_of_reach(name, &error.to_string()))?;
        let one = elsewhere::one_of(listing.sessions, *uid, name);
        if let Some(found) = one.map_err(|error| out_of_reach(name, &error.to_string()))? {
            return Ok((found, None));
        }
    }
    let found = elsewhere::find(*uid, name, processes);
    let (found, process) = found.map_err(|error| out_of_reach(name, &error.to_string()))?;
    Ok((found, Some(process)))
}

fn no_page(error: &PageError) -> Refused {
    Refused::new(ProblemCode::NoPage, error.to_string(), "a session with undamaged pages")
}

fn told(
    uuid: GpuId,
    (before, limits, used_bytes): &(::limits::Limits, ::limits::Limits, u64),
    took: &[Took],
) -> DeviceLimits {
    let process = |took: &Took| ProcessTook {
        pid: took.process.pid,
        host_pid: took.process.host_pid,
        taken: took.taken,
    };
    DeviceLimits {
        uuid: uuid.to_string(),
        memory_bytes: limits.memory.map(|memory| memory.limit),
        memory_real_bytes: limits.memory.and_then(|memory| memory.real),
        policy: limits.compute.policy.into(),
        share_ppm: limits.compute.share_ppm,
        soft_ppm: limits.compute.soft_ppm,
        weight: limits.compute.weight,
        priority: limits.compute.priority.into(),
        before: before.into(),
        used_bytes: *used_bytes,
        processes: took.iter().map(process).collect(),
    }
}

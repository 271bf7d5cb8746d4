//! Metrics of sessions and their processes.

use core::fmt::Error;

use ::limits::Policy;
use session::layout::MemoryKind;
use session::ledger::RefusedFor;

use super::family::{Families, Labels, ratio, seconds};
use super::observed::memory_of_sessions;
use crate::identity::Owner;
use crate::node::measure::{AccountFigures, Figures, SessionFigures, WorkerFigures};
use crate::page_memory::{MemoryFigures, PageKey, Sample};
use observer::View;

/// Labels that identify a session, also across restarts of the daemon. Adds the session's given name, and the names of
/// a pod's container; avoids the label names that Prometheus uses for its scrape targets.
fn labels<'a>(owner: &Owner, session: &'a str, names: &'a Sample) -> Labels<'a> {
    let mut labels: Labels<'a> =
        vec![("session", session.into()), ("uid", owner.uid.to_string().into())];
    labels.extend(names.called(owner, session).map(|called| ("called", called.into())));
    labels.extend(owner.container.map(|container| ("container", container.id.to_string().into())));
    labels.extend(owner.pod.map(|pod| ("pod", pod.to_string().into())));
    if let Some(named) = owner.container.and_then(|container| names.names.get(&container.id)) {
        labels.push(("pod_namespace", named.namespace.as_str().into()));
        labels.push(("pod_name", named.pod.as_str().into()));
        labels.push(("container_name", named.container.as_str().into()));
    }
    labels
}

fn of_account<'a>(
    session: &'a SessionFigures,
    account: &AccountFigures,
    names: &'a Sample,
) -> Labels<'a> {
    with(labels(&session.owner, &session.name, names), "uuid", account.uuid)
}

fn of_page<'a>(key: &'a PageKey, names: &'a Sample) -> Labels<'a> {
    with(labels(&key.owner, &key.session, names), "uuid", key.uuid)
}

fn with<'a>(mut labels: Labels<'a>, name: &'static str, value: impl ToString) -> Labels<'a> {
    labels.push((name, value.to_string().into()));
    labels
}

pub(super) fn tell(
    figures: &Figures,
    view: &View,
    names: &Sample,
    families: &mut Families<'_>,
) -> Result<(), Error> {
    let sessions = || {
        let each = figures.sessions.iter();
        each.map(|session| (labels(&session.owner, &session.name, names), session))
    };
    families.gauge(
        "sluice_session_processes",
        "Processes of the session that the daemon serves.",
        sessions().map(|(labels, session)| (labels, session.pids.len() as f64)),
    )?;
    families.gauge(
        "sluice_session_frozen",
        "1 if the session is frozen, else 0.",
        sessions().map(|(labels, session)| (labels, f64::from(u8::from(session.frozen)))),
    )?;
    families.gauge(
        "sluice_series_left_out",
        "Sessions and processes without series, because there are too many.",
        [(vec![], figures.left_out as f64)],
    )?;
    families.gauge(
        "sluice_session_driver_memory_bytes",
        "Memory of the session's processes as the driver reports it, independent of the session's own account.",
        memory_of_sessions(view, figures).into_iter().filter_map(|(index, uuid, bytes)| {
            let session = figures.sessions.get(index)?;
            Some((with(labels(&session.owner, &session.name, names), "uuid", uuid), bytes as f64))
        }),
    )?;
    tell_accounts(figures, names, families)?;
    tell_workers(figures, names, families)
}

fn tell_accounts(
    figures: &Figures,
    names: &Sample,
    families: &mut Families<'_>,
) -> Result<(), Error> {
    let accounts = || {
        figures.sessions.iter().flat_map(|session| {
            session
                .accounts
                .iter()
                .map(move |account| (of_account(session, account, names), account))
        })
    };
    let each = |value: fn(&AccountFigures) -> f64| {
        accounts().map(move |(labels, account)| (labels, value(account)))
    };
    families.gauge(
        "sluice_session_share_ratio",
        "Compute share of the session, as a fraction of the device's time.",
        each(|account| ratio(account.limit.share_ppm.into())),
    )?;
    families.gauge(
        "sluice_session_burst_limit_ratio",
        "Burst limit of the session: the most of the device's time that it gets under policy balance, else its \
         compute share.",
        each(burst_limit),
    )?;
    families.gauge(
        "sluice_session_balance_seconds",
        "Guaranteed device time that the session may still use; negative if it owes time.",
        each(|account| account.balance_ns as f64 / 1e9),
    )?;
    families.counter(
        "sluice_session_gpu_seconds",
        "Device time charged to the session. A restart of the daemon does not reset it.",
        each(|account| seconds(account.charged_ns)),
    )?;
    families.counter(
        "sluice_session_burst_gpu_seconds",
        "Device time charged beyond the guaranteed compute share: idle time that no other session claimed.",
        each(|account| seconds(account.spare_ns)),
    )?;
    families.counter(
        "sluice_session_turns",
        "Turns of the session: leases granted.",
        each(|account| account.served.turns as f64),
    )?;
    families.counter(
        "sluice_session_leases_stopped",
        "Leases of the session that were ended early.",
        each(|account| account.served.stopped as f64),
    )?;
    families.waits(
        "sluice_session_turn_wait_seconds",
        "How long the session's processes waited for their turns.",
        accounts().map(|(labels, account)| (labels, account.served)),
    )
}

fn burst_limit(account: &AccountFigures) -> f64 {
    let limit = &account.limit;
    match limit.policy {
        Policy::Balance => limit.soft_ppm.map_or(1.0, |soft| ratio(soft.into())),
        Policy::Fixed | Policy::None => ratio(limit.share_ppm.into()),
    }
}

fn tell_workers(
    figures: &Figures,
    names: &Sample,
    families: &mut Families<'_>,
) -> Result<(), Error> {
    let each = |value: fn(&WorkerFigures) -> f64| {
        figures.workers.iter().map(move |worker| {
            let labels = with(labels(&worker.owner, &worker.session, names), "pid", worker.pid);
            (with(labels, "uuid", worker.uuid), value(worker))
        })
    };
    families.counter(
        "sluice_worker_gpu_seconds",
        "Device time charged to the process.",
        each(|worker| seconds(worker.charged_ns)),
    )?;
    families.counter(
        "sluice_worker_turns",
        "Turns of the process: leases granted.",
        each(|worker| worker.turns as f64),
    )?;
    families.counter(
        "sluice_worker_turn_wait_seconds",
        "How long the process waited for its turns.",
        each(|worker| seconds(worker.waited_ns)),
    )
}

/// Memory figures and the limiter's CPU time, from the sessions' own pages.
pub(super) fn tell_memory(memory: &Sample, families: &mut Families<'_>) -> Result<(), Error> {
    let each = |value: fn(&MemoryFigures) -> Option<f64>| {
        let all = memory.sessions.iter();
        all.filter_map(move |(key, figures)| Some((of_page(key, memory), value(figures)?)))
    };
    families.gauge(
        "sluice_session_memory_limit_bytes",
        "Memory limit of the session, if it has one.",
        each(|figures| figures.limit.map(|limit| limit as f64)),
    )?;
    families.counter(
        "sluice_session_memory_byte_seconds",
        "Memory of the session times the time for which it was in use, by its own account.",
        each(|figures| Some(figures.byte_seconds)),
    )?;
    families.counter(
        "sluice_session_limiter_cpu_seconds",
        "CPU time of the limiter's own threads in the session's processes, by its own account.",
        each(|figures| Some(seconds(figures.limiter_cpu_ns))),
    )?;
    families.counter(
        "sluice_session_memory_refusals",
        "Allocations of the session that failed, by its own account and by reason: over the memory limit, over the \
         part of it that may be on the device (real), because of memory that the driver took by itself, or because \
         the device is full.",
        memory.sessions.iter().flat_map(|(key, figures)| {
            let reasons = RefusedFor::ALL.into_iter().zip(figures.refused_for);
            reasons.map(move |(reason, count)| {
                (with(of_page(key, memory), "reason", reason.word()), count as f64)
            })
        }),
    )?;
    let by_kind = memory.sessions.iter().flat_map(|(key, figures)| {
        let kinds = MemoryKind::ALL.into_iter().zip(figures.bytes);
        kinds.map(move |(kind, bytes)| {
            (with(of_page(key, memory), "kind", word(kind)), bytes as f64)
        })
    });
    families.gauge(
        "sluice_session_memory_bytes",
        "Memory of the session by its own account, by kind; overcommitted memory is on the host.",
        by_kind,
    )?;
    let by_process = memory.sessions.iter().flat_map(|(key, figures)| {
        figures.processes.iter().flat_map(move |(pid, bytes)| {
            let kinds = MemoryKind::ALL.into_iter().zip(*bytes).filter(|(_, bytes)| *bytes > 0);
            kinds.map(move |(kind, bytes)| {
                (with(with(of_page(key, memory), "pid", pid), "kind", word(kind)), bytes as f64)
            })
        })
    });
    families.gauge(
        "sluice_worker_memory_bytes",
        "Memory of the process by its session's account, by kind; empty kinds are left out.",
        by_process,
    )?;
    families.gauge(
        "sluice_memory_left_out_sessions",
        "Sessions whose memory is not shown, because there are too many.",
        [(vec![], memory.left_out as f64)],
    )
}

const fn word(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Data => "data",
        MemoryKind::Context => "context",
        MemoryKind::Pool => "pool",
        MemoryKind::Graph => "graph",
        MemoryKind::Array => "array",
        MemoryKind::Overcommitted => "overcommitted",
        MemoryKind::Driver => "driver",
        MemoryKind::Headroom => "headroom",
    }
}

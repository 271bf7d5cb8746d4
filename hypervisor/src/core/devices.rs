//! Connects the observer to the schedulers: withholds leases on faulty devices, and publishes and logs what the
//! observer reports.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use ::limits::GpuId;
use api::{DeviceDeclared, DeviceList, EventKind, Observer};
use observer::{Change, DeviceView, Model, UnknownProcess, View, XidClass};
use protocol::Withheld;

use super::Core;
use crate::events::Happened;
use crate::identity::{Caller, Owner};
use crate::observe::UnknownProcesses;
use crate::refused::CallRefused;
use crate::status_quota::StatusPermit;

impl Core {
    /// The observer's view of the devices.
    pub(crate) fn view(&self) -> View {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner).view()
    }

    /// Whether the observer sees any device. In a container it may, even if the kernel module shows none.
    pub(super) fn sees_a_device(&self) -> bool {
        let view = self.view();
        view.blind.is_none() && !view.devices.is_empty()
    }

    /// The ids of the processes that are served.
    pub(crate) fn served(&self) -> Vec<u32> {
        self.state().node.pids().map(i32::unsigned_abs).collect()
    }

    /// Applies a change of the observer's model: publishes it, and withholds or allows leases accordingly.
    pub(crate) fn observe(&self, take: impl FnOnce(&mut Model) -> Vec<Change>) -> View {
        // Locked until leases are withheld, so that changes take effect in order.
        let mut model = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = take(&mut model);
        let view = model.view();
        for change in changes {
            self.tell(change, view.seen.is_some());
        }
        self.withhold(&view);
        view
    }

    fn withhold(&self, view: &View) {
        let why = |device: &DeviceView| {
            if !device.health.is_healthy() {
                return Some(Withheld::Unhealthy);
            }
            let holds = self.unknown_policy == UnknownProcesses::Hold;
            (holds && !device.unknown.is_empty()).then_some(Withheld::UnknownProcess)
        };
        let withheld: BTreeMap<GpuId, Withheld> = view
            .devices
            .iter()
            .filter_map(|device| Some((device.reading.uuid, why(device)?)))
            .collect();
        let mut state = self.state();
        let now = self.now(&mut state);
        let changed = state.node.withhold(withheld, now);
        if !changed.is_empty() {
            changed.into_iter().for_each(|uuid| state.hand_out(uuid, now));
            self.set_alarm(&mut state, now);
        }
    }

    /// Logs and publishes a change. `has_seen`: whether any device was ever seen; if not, a source that cannot observe
    /// is only logged.
    fn tell(&self, change: Change, has_seen: bool) {
        let (kind, uuid, message) = match change {
            Change::Blind(why) => {
                tracing::warn!(%why, "cannot observe the node's devices");
                if !has_seen {
                    return;
                }
                (EventKind::ObserverBlind, None, Some(why.to_string()))
            }
            Change::Sees => {
                tracing::info!("observing the node's devices again");
                (EventKind::ObserverSees, None, None)
            }
            Change::Xid(uuid, xid) => {
                let whose = match xid.class() {
                    XidClass::Application => "a program's fault",
                    XidClass::Critical => "not a program's fault",
                };
                tracing::warn!(%uuid, "{xid}: {whose}");
                (EventKind::DeviceError, Some(uuid), Some(format!("{xid}: {whose}")))
            }
            Change::Unhealthy(uuid, ailment) => {
                tracing::error!(%uuid, "unhealthy, no more leases are granted: {ailment}");
                (EventKind::DeviceUnhealthy, Some(uuid), Some(ailment.to_string()))
            }
            Change::Healthy(uuid) => {
                tracing::info!(%uuid, "declared healthy");
                (EventKind::DeviceHealthy, Some(uuid), None)
            }
            Change::Cordoned(uuid) => return tracing::info!(%uuid, "cordoned"),
            Change::Uncordoned(uuid) => return tracing::info!(%uuid, "no longer cordoned"),
            Change::UnknownCame(uuid, process) => {
                tracing::warn!(%uuid, "outside any session: {}", described(&process));
                return self.tell_of_process(EventKind::UnknownProcess, uuid, &process, None);
            }
            Change::UnknownWent(uuid, process) => {
                tracing::info!(%uuid, "gone, or in a session now: {}", described(&process));
                return self.tell_of_process(EventKind::UnknownProcessGone, uuid, &process, None);
            }
        };
        self.events.publish(Happened { uuid, message, ..Happened::for_owner(kind, None) });
    }

    /// Publishes an event about a process without a session, for its user and the operator.
    pub(crate) fn tell_of_process(
        &self,
        kind: EventKind,
        uuid: GpuId,
        process: &UnknownProcess,
        message: Option<String>,
    ) {
        self.events.publish(Happened {
            pid: i32::try_from(process.pid).ok(),
            uuid: Some(uuid),
            message: message.or_else(|| Some(described(process))),
            ..Happened::for_owner(kind, Some(process.uid.map_or(self.own, Owner::user)))
        });
    }

    pub(crate) async fn device_list(
        &self,
        caller: &Caller,
    ) -> Result<(DeviceList, StatusPermit), CallRefused> {
        let view = self.view();
        let observer = Observer {
            sees: view.blind.is_none() && view.seen.is_some(),
            message: view.blind.as_ref().map(ToString::to_string),
            unknown_processes: self.unknown_policy,
        };
        self.answer(caller, |node, only, now| {
            Ok(DeviceList { devices: node.devices(only, &view, now), observer })
        })
        .await
    }

    /// Declares a device healthy for the operator.
    pub(crate) fn declare_healthy(
        &self,
        caller: &Caller,
        uuid: GpuId,
    ) -> Result<DeviceDeclared, CallRefused> {
        if !caller.owner.sees_all(&self.own) {
            return Err(CallRefused::NotOperator);
        }
        let mut changed = Err(CallRefused::NotObserved(uuid));
        self.observe(|model| {
            let changes = model.declare_healthy(uuid);
            if let Some(changes) = &changes {
                changed = Ok(!changes.is_empty());
            }
            changes.unwrap_or_default()
        });
        Ok(DeviceDeclared { uuid: uuid.to_string(), changed: changed? })
    }
}

/// Describes a process for the log.
fn described(process: &UnknownProcess) -> String {
    let UnknownProcess { pid, uid, name, bytes, .. } = process;
    let mut text = format!("process {pid}");
    if let Some(name) = name {
        text += &format!(" ({:?})", name);
    }
    if let Some(uid) = uid {
        text += &format!(" of user {uid}");
    }
    if let Some(bytes) = bytes {
        text += &format!(", which has {} MiB", bytes >> 20);
    }
    text
}

//! Applies troubles: faults, and changes by an operator.

use limits::{ComputeLimit, Limits};
use scheduler::{SessionId, WorkerId};
use session::ledger::{Ledger, TAKEN_OFF_NS};

use crate::daemon::Daemon;
use crate::node::{Answer, Event, Governor, Phase};
use crate::scenario::Trouble;
use crate::world::World;

const SECOND: u64 = 1_000_000_000;

impl World {
    /// Kills a process.
    fn kill(&mut self, p: usize) {
        self.processes[p].alive = false;
        self.devices.process_died(self.processes[p].slot);
        for g in self.processes[p].governors.clone() {
            let governor = &mut self.governors[g];
            governor.phase = Phase::Dead;
            governor.gate_open = false;
            governor.drop_held();
            governor.begun.clear();
            self.disarm(g);
        }
        self.plan(self.now + TAKEN_OFF_NS, Event::Gone(p));
    }

    pub(crate) fn gone(&mut self, p: usize) {
        let (now, tenant) = (self.now, self.processes[p].tenant);
        for g in self.processes[p].governors.clone() {
            let Governor { device, slot, .. } = self.governors[g];
            if let Some(page) = self.sessions[tenant].pages.get(&device) {
                Ledger::new(page).vacate(slot, now);
            }
        }
        if let Some(daemon) = &mut self.daemon {
            daemon.leave(WorkerId(p as u64 + 1), SessionId(tenant as u64), now);
            self.decide();
        }
    }

    pub(crate) fn trouble(&mut self, number: usize) {
        let now = self.now;
        let (_, trouble) = self.scenario.troubles[number];
        self.note([4, number as u64, 0]);
        let (whose, for_ns) = match trouble {
            Trouble::Killed { tenant, for_ns } => {
                let mut own = (0..self.processes.len()).rev();
                let alive =
                    own.find(|&p| self.processes[p].alive && self.processes[p].tenant == tenant);
                let Some(p) = alive else { return };
                self.kill(p);
                self.plan(now + for_ns, Event::Comes(tenant));
                (Some(tenant), for_ns)
            }
            Trouble::Stopped { tenant, for_ns } => {
                self.sessions[tenant].stopped_until = now + for_ns;
                // It may hold a lease, which is charged by the clock and has to be earned.
                let share = u64::from(self.sessions[tenant].quota.share_ppm);
                self.watch
                    .excuse(Some(tenant), now + for_ns + for_ns * 1_000_000 / share + 2 * SECOND);
                (Some(tenant), for_ns)
            }
            Trouble::DaemonDies { for_ns } => {
                let Some(mut daemon) = self.daemon.take() else { return };
                let (saved, frozen) = daemon.save(now);
                self.saved = Some((saved, frozen, now));
                self.alarm_at = u64::MAX;
                for g in 0..self.governors.len() {
                    let Governor { phase, call, .. } = self.governors[g];
                    if matches!(phase, Phase::Asking | Phase::Renewing) {
                        let way = self.way();
                        self.plan(now + way, Event::Answers(g, call, Answer::Lost));
                    }
                }
                (None, for_ns)
            }
            Trouble::Frozen { tenant, for_ns } => {
                self.set_frozen(tenant, true);
                (Some(tenant), for_ns)
            }
            Trouble::Share { tenant, thousandths } => {
                let quota = self.scenario.tenants[tenant].quota;
                let share = u64::from(quota.share_ppm) * u64::from(thousandths) / 1_000;
                let share_ppm = (share as u32).max(1_000);
                self.set_quota(tenant, ComputeLimit { share_ppm, ..quota });
                (Some(tenant), 0)
            }
            Trouble::LateMessages { most_ns, for_ns } => {
                self.late_messages = (most_ns, now + for_ns);
                (None, for_ns)
            }
            Trouble::LateWakeups { most_ns, for_ns } => {
                self.late_wakeups = (most_ns, now + for_ns);
                (None, for_ns)
            }
            Trouble::DeviceFails { device, for_ns } => {
                self.set_suspended(device, true);
                (None, for_ns)
            }
        };
        self.watch.excuse(whose, now + for_ns + 2 * SECOND);
        self.plan(now + for_ns, Event::Better(number));
    }

    pub(crate) fn better(&mut self, number: usize) {
        match self.scenario.troubles[number].1 {
            Trouble::DaemonDies { .. } => {
                if let Some((saved, frozen, at)) = self.saved.take() {
                    self.daemon = Some(Daemon::restored(saved, at, frozen));
                }
            }
            Trouble::Frozen { tenant, .. } => self.set_frozen(tenant, false),
            Trouble::DeviceFails { device, .. } => self.set_suspended(device, false),
            _ => {}
        }
    }

    fn set_frozen(&mut self, tenant: usize, frozen: bool) {
        let (session, now) = (SessionId(tenant as u64), self.now);
        match (&mut self.daemon, &mut self.saved) {
            (Some(daemon), _) => daemon.set_frozen(session, frozen, now),
            (None, Some((_, all, _))) if !frozen => _ = all.remove(&session),
            _ => {}
        }
        self.decide();
    }

    fn set_suspended(&mut self, device: u32, suspended: bool) {
        let now = self.now;
        if let Some(daemon) = &mut self.daemon {
            daemon.set_suspended(device, suspended, now);
        }
        self.decide();
    }

    fn set_quota(&mut self, tenant: usize, quota: ComputeLimit) {
        let now = self.now;
        self.sessions[tenant].quota = quota;
        for (&device, page) in &self.sessions[tenant].pages {
            page.set_limits(&Limits { memory: None, compute: quota });
            if let Some(daemon) = &mut self.daemon {
                daemon.set_quota(SessionId(tenant as u64), device, quota, now);
            }
        }
        self.decide();
    }
}

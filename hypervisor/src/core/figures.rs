//! Figures for `/metrics`.

use std::time::{SystemTime, UNIX_EPOCH};

use super::Core;
use crate::identity::Caller;
use crate::log;
use crate::metrics::{DaemonFigures, Exposition, Format};
use crate::page_memory::Sample;
use crate::refused::CallRefused;
use crate::status_quota::StatusPermit;

impl Core {
    /// The figures of all devices, and of the sessions that the caller may see.
    pub(crate) async fn metrics(
        &self,
        caller: &Caller,
        format: Format,
    ) -> Result<(String, StatusPermit), CallRefused> {
        let ready = self.readiness().await.ready;
        let (node, permit) =
            self.answer(caller, |node, only, now| Ok(node.figures(only, now))).await?;
        let refused = self.connections.refusals();
        let refusals = self.refusals.all().chain([("connections", refused)]).collect();
        let daemon = DaemonFigures {
            ready,
            started_at: self.started_at(),
            log_lines_lost: log::lines_lost(),
            refusals,
        };
        let exposition =
            Exposition { daemon, node, view: self.view(), memory: self.memory_for(caller) };
        Ok((exposition.written(format), permit))
    }

    fn memory_for(&self, caller: &Caller) -> Sample {
        let mut memory = self.memory.last();
        if let Some(owner) = self.only(caller) {
            memory.sessions.retain(|key, _| key.owner == *owner);
        }
        memory
    }

    fn started_at(&self) -> f64 {
        let at = SystemTime::now().checked_sub(self.started.elapsed());
        let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        since.map_or(0.0, |since| since.as_secs_f64().round())
    }
}

//! The answer to `GET /metrics` in Prometheus' text formats.
//!
//! Each answer is computed from the current figures and nothing is kept between answers, so a session's series end with
//! the session.

mod classic;
mod devices;
mod family;
mod observed;
mod sessions;
#[cfg(test)]
mod tests;

use observer::View;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;

use crate::node::measure::Figures;
use crate::page_memory::Sample;
use family::Families;

/// Text format of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' older text format, 0.0.4.
    Classic,
}

impl Format {
    /// The format that a caller's `Accept` header asks for.
    pub(crate) fn accepted(accept: Option<&str>) -> Self {
        let is_open = accept.is_some_and(|accept| accept.contains("application/openmetrics-text"));
        if is_open { Self::OpenMetrics } else { Self::Classic }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// All input of an answer.
#[derive(Debug)]
pub(crate) struct Exposition {
    pub(crate) daemon: DaemonFigures,
    pub(crate) node: Figures,
    /// The driver's figures.
    pub(crate) view: View,
    /// Sessions' memory that the caller may see.
    pub(crate) memory: Sample,
}

#[derive(Debug)]
pub(crate) struct DaemonFigures {
    pub(crate) ready: bool,
    pub(crate) started_at: f64,
    pub(crate) log_lines_lost: u64,
    pub(crate) refusals: Vec<(&'static str, u64)>,
}

impl Exposition {
    pub(crate) fn written(self, format: Format) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut open = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut open, &registry);
        match format {
            Format::OpenMetrics => open,
            Format::Classic => classic::of(&open),
        }
    }
}

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), core::fmt::Error> {
        let mut families = Families::new(encoder);
        self.daemon.tell(&mut families)?;
        devices::tell(&self.node, &mut families)?;
        observed::tell(&self.view, &mut families)?;
        sessions::tell(&self.node, &self.view, &self.memory, &mut families)?;
        sessions::tell_memory(&self.memory, &mut families)
    }
}

impl DaemonFigures {
    fn tell(&self, families: &mut Families<'_>) -> Result<(), core::fmt::Error> {
        let build = vec![
            ("version", build_info::VERSION.into()),
            ("commit", build_info::COMMIT.into()),
            ("profile", build_info::PROFILE.into()),
        ];
        families.info("sluice_build", "Build of the daemon.", build)?;
        families.gauge(
            "sluice_ready",
            "1 if the daemon can serve, else 0; /readyz names the reasons.",
            [(vec![], f64::from(u8::from(self.ready)))],
        )?;
        families.gauge(
            "process_start_time_seconds",
            "Start time of the daemon, in seconds since 1970.",
            [(vec![], self.started_at)],
        )?;
        families.counter(
            "sluice_log_lines_lost",
            "Log lines lost because they could not be written or were too many.",
            [(vec![], self.log_lines_lost as f64)],
        )?;
        let refusals = self.refusals.iter();
        families.counter(
            "sluice_refusals",
            "Calls that the daemon refused, by reason.",
            refusals.map(|&(reason, count)| (vec![("reason", reason.into())], count as f64)),
        )
    }
}

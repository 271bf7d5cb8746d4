//! Writes metric families, each once, with help text.

use core::fmt::Error;
use std::borrow::Cow;
use std::collections::HashMap;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use crate::node::served::{Served, WAITS_UP_TO_US};

pub(super) type Labels<'a> = Vec<(&'static str, Cow<'a, str>)>;

const NO_EXEMPLARS: Option<&HashMap<usize, Exemplar<NoLabelSet, f64>>> = None;

pub(super) struct Families<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl<'a> Families<'a> {
    pub(super) const fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self { encoder }
    }

    /// Writes a family. One without series is omitted.
    fn family<'l, T>(
        &mut self,
        (name, help, kind): (&str, &str, MetricType),
        series: impl IntoIterator<Item = (Labels<'l>, T)>,
        write: impl Fn(&mut MetricEncoder<'_>, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return Ok(());
        }
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        series.try_for_each(|(labels, value)| match labels.as_slice() {
            [] => write(&mut family, value),
            labels => write(&mut family.encode_family(&labels)?, value),
        })
    }

    /// A gauge.
    pub(super) fn gauge<'l>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> Result<(), Error> {
        self.family((name, help, MetricType::Gauge), series, |encoder, value| {
            encoder.encode_gauge(&value)
        })
    }

    /// A counter. `name` is without `_total`.
    pub(super) fn counter<'l>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> Result<(), Error> {
        self.family((name, help, MetricType::Counter), series, |encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, f64>(&value, None)
        })
    }

    /// A histogram of waits for leases.
    pub(super) fn waits<'l>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, Served)>,
    ) -> Result<(), Error> {
        self.family((name, help, MetricType::Histogram), series, |encoder, served| {
            let ends = WAITS_UP_TO_US.iter().map(|&us| us as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = ends.zip(served.waits).collect();
            let waited = seconds(served.waited_ns);
            encoder.encode_histogram(waited, served.turns, &buckets, NO_EXEMPLARS)
        })
    }

    /// An info metric: facts as labels.
    pub(super) fn info(&mut self, name: &str, help: &str, facts: Labels<'_>) -> Result<(), Error> {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Info)?;
        family.encode_info(&facts)
    }
}

pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Converts millionths to a fraction of 1.
pub(super) fn ratio(ppm: u64) -> f64 {
    ppm as f64 / 1e6
}

//! Writes metric families, each once, with help text.

use core::fmt::Error;
use std::borrow::Cow;
use std::collections::HashMap;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
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

    /// A gauge. A family without series is omitted.
    pub(super) fn gauge<'l>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> Result<(), Error> {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return Ok(());
        }
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        series.try_for_each(|(labels, value)| match labels.as_slice() {
            [] => family.encode_gauge(&value),
            labels => family.encode_family(&labels)?.encode_gauge(&value),
        })
    }

    /// A counter. `name` is without `_total`.
    pub(super) fn counter<'l>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> Result<(), Error> {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return Ok(());
        }
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        series.try_for_each(|(labels, value)| match labels.as_slice() {
            [] => family.encode_counter::<NoLabelSet, _, f64>(&value, None),
            labels => {
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None)
            }
        })
    }

    /// A histogram of waits for leases.
    pub(super) fn waits<'l>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, Served)>,
    ) -> Result<(), Error> {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return Ok(());
        }
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        series.try_for_each(|(labels, served)| {
            let ends = WAITS_UP_TO_US.iter().map(|&us| us as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = ends.zip(served.waits).collect();
            let mut histogram = family.encode_family(&labels)?;
            histogram.encode_histogram(
                seconds(served.waited_ns),
                served.turns,
                &buckets,
                NO_EXEMPLARS,
            )
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

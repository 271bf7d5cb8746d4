//! Percentiles and means of samples.

/// Sorted samples.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The smallest sample not exceeded by at least `percent` of all samples (nearest rank); 0 without samples.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let rank = (percent / 100.0 * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.max(1) - 1).or(self.0.last()).copied().unwrap_or(0.0)
    }

    /// The smallest samples: the fraction `part` of all, but at least one.
    pub(crate) fn cheapest(&self, part: f64) -> Self {
        let count = ((part * self.0.len() as f64) as usize).max(1);
        Self(self.0.iter().take(count).copied().collect())
    }

    /// The arithmetic mean; 0 without samples.
    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / (self.0.len().max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::Samples;

    #[test]
    fn nearest_rank() {
        let samples = Samples::new((1..=100).rev().map(f64::from).collect());
        assert_eq!(samples.percentile(50.0), 50.0);
        assert_eq!(samples.percentile(99.0), 99.0);
        assert_eq!(samples.percentile(100.0), 100.0);
        assert_eq!(samples.percentile(0.0), 1.0);
        assert_eq!(samples.mean(), 50.5);
        assert_eq!(samples.cheapest(0.5).mean(), 25.5);
    }

    #[test]
    fn few_samples() {
        assert_eq!(Samples::default().percentile(50.0), 0.0);
        assert_eq!(Samples::default().mean(), 0.0);
        assert_eq!(Samples::new(vec![3.0]).percentile(99.0), 3.0);
        assert_eq!(Samples::new(vec![3.0]).cheapest(0.1).mean(), 3.0);
        assert_eq!(Samples::default().cheapest(1.0).mean(), 0.0);
    }
}

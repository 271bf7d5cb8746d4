//! Reads the node's annotation that lists GPUs out of service for new containers. Pure.

use std::collections::BTreeSet;

use limits::GpuId;

pub(crate) const CORDONED: &str = "sluice.dev/cordoned-gpus";

/// A word of the annotation that is no GPU UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the annotation {CORDONED}: {0:?}; expected UUIDs of GPUs with commas between them, such as GPU-5a1ce000-0000-4000-8000-000000000000"
)]
pub(crate) struct CordonError(String);

/// The GPUs that the annotation lists.
pub(crate) fn cordoned(text: &str) -> Result<BTreeSet<GpuId>, CordonError> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let one = |word: &str| word.parse().map_err(|_| CordonError(word.chars().take(60).collect()));
    words.map(one).collect()
}

/// The event text for a change of the cordoned GPUs.
pub(crate) fn told(gpus: &BTreeSet<GpuId>) -> String {
    if gpus.is_empty() {
        return "no GPU is cordoned any more".to_owned();
    }
    let names: Vec<String> = gpus.iter().map(GpuId::to_string).collect();
    format!("no new pod gets {}; running ones keep what they have", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_named_and_nothing_else() {
        let one = GpuId::from_bytes([1; 16]);
        assert_eq!(cordoned(&format!(" {one}, {one},")), Ok([one].into()));
        assert_eq!(cordoned(""), Ok(BTreeSet::new()));
        let wrong = cordoned(&format!("{one},0")).unwrap_err().to_string();
        assert!(wrong.contains("cordoned-gpus: \"0\"; expected UUIDs of GPUs"), "{wrong}");
        assert!(told(&[one].into()).contains(&one.to_string()));
    }
}

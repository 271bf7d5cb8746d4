//! Reads and writes VGPU-Manager's node annotation on the links between GPUs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::registers::RegisterError;

/// The annotation's name.
pub const NODE_TOPOLOGY: &str = "nvidia.com/node-device-topology";

/// The smallest link kind that is NVLink: one link. Each next kind is one link more.
pub const ONE_NVLINK: u32 = 7;
/// The largest kind.
const MOST_NVLINKS: u32 = 24;

/// The links between GPUs, with VGPU-Manager's kinds: from 1 (across CPUs) to 24 (18 NVLinks).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links(BTreeMap<(u32, u32), Vec<u32>>);

#[derive(Debug, Serialize, Deserialize)]
struct Device {
    index: u32,
    #[serde(default)]
    links: BTreeMap<u32, Vec<u32>>,
}

impl Links {
    /// Adds a link between the GPUs with these indices.
    pub fn add(&mut self, (a, b): (u32, u32), kind: u32) {
        self.0.entry((a.min(b), a.max(b))).or_default().push(kind.min(MOST_NVLINKS));
    }

    /// Whether no link is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How well two GPUs are linked: 10 per step from across CPUs (10) to the same board (60), 100 per NVLink.
    #[must_use]
    pub fn score(&self, a: u32, b: u32) -> u32 {
        let each = |kind: &u32| match *kind {
            kind if kind >= ONE_NVLINK => 100 * (kind + 1 - ONE_NVLINK),
            kind => 10 * kind,
        };
        self.between(a, b).iter().map(each).sum()
    }

    /// Whether an NVLink connects two GPUs.
    #[must_use]
    pub fn has_nvlink(&self, a: u32, b: u32) -> bool {
        self.between(a, b).iter().any(|kind| *kind >= ONE_NVLINK)
    }

    fn between(&self, a: u32, b: u32) -> &[u32] {
        self.0.get(&(a.min(b), a.max(b))).map(Vec::as_slice).unwrap_or_default()
    }

    /// Formats the annotation, with each link at both ends.
    ///
    /// # Errors
    /// [`RegisterError::Json`]: never.
    pub fn write(&self) -> Result<String, RegisterError> {
        let mut devices: BTreeMap<u32, Device> = BTreeMap::new();
        for ((a, b), kinds) in &self.0 {
            for (index, other) in [(*a, *b), (*b, *a)] {
                let device = devices.entry(index);
                let device = device.or_insert_with(|| Device { index, links: BTreeMap::new() });
                device.links.insert(other, kinds.clone());
            }
        }
        let all: Vec<Device> = devices.into_values().collect();
        serde_json::to_string(&all).map_err(|error| RegisterError::Json(error.to_string()))
    }

    ///
    /// # Errors
    /// [`RegisterError::Json`]
    pub fn read(text: &str) -> Result<Self, RegisterError> {
        let all: Vec<Device> =
            serde_json::from_str(text).map_err(|error| RegisterError::Json(error.to_string()))?;
        let mut links = Self::default();
        for Device { index, links: of } in all {
            // The other end lists the same link.
            let first = of.into_iter().filter(|(other, _)| index < *other);
            for (other, kinds) in first {
                kinds.into_iter().for_each(|kind| links.add((index, other), kind));
            }
        }
        Ok(links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_as_they_are_written() {
        let mut links = Links::default();
        links.add((1, 0), 18);
        links.add((0, 1), 6);
        links.add((0, 2), 1);
        let text = links.write().unwrap();
        assert_eq!(
            text,
            r#"[{"index":0,"links":{"1":[18,6],"2":[1]}},{"index":1,"links":{"0":[18,6]}},{"index":2,"links":{"0":[1]}}]"#
        );
        assert_eq!(Links::read(&text), Ok(links.clone()));
        assert_eq!((links.score(0, 1), links.score(2, 0), links.score(1, 2)), (1260, 10, 0));
        assert!(links.has_nvlink(1, 0) && !links.has_nvlink(0, 2));
        assert!(Links::read("{").is_err());
    }
}

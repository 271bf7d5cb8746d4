//! Alternative resource names of a cluster. All other code uses the original names, so pods are translated when they
//! are read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::str::FromStr;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::table::WORDS;

/// Alternative names by resource. A renamed resource's original name belongs to some other system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceNames(Vec<(&'static str, String)>);

/// Why a list of names is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamesError {
    /// Not a pair.
    #[error("{0:?}; expected NAME=OTHER, such as nvidia.com/gpu=example.com/gpu")]
    NoPair(String),
    /// The first name is no resource.
    #[error("{given:?} is not a resource of any dialect; expected one of {known}")]
    Unknown {
        /// The given name.
        given: String,
        /// The known resources.
        known: String,
    },
    /// The second is no valid resource name.
    #[error(
        "{0:?} is not a resource name; expected a domain, / and up to 63 letters, digits, -, _ and ., such as example.com/gpu"
    )]
    NoName(String),
    /// Two resources would have one name, or one resource two.
    #[error("{0:?} is named twice; expected different names")]
    Twice(String),
}

impl FromStr for ResourceNames {
    type Err = NamesError;

    fn from_str(text: &str) -> Result<Self, NamesError> {
        let mut names = Vec::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let no_pair = || NamesError::NoPair(pair.chars().take(80).collect());
            let (own, other) = pair.split_once('=').ok_or_else(no_pair)?;
            let row = resources().find(|known| *known == own);
            let own = row.ok_or_else(|| NamesError::Unknown {
                given: own.chars().take(80).collect(),
                known: resources().collect::<Vec<_>>().join(", "),
            })?;
            if !is_name(other) {
                return Err(NamesError::NoName(other.chars().take(80).collect()));
            }
            names.push((own, other.to_owned()));
        }
        let names = Self(names);
        let written = resources().map(|own| names.written(own)).collect();
        let renamed = names.0.iter().map(|(own, _)| *own).collect();
        match twice(renamed).or_else(|| twice(written)) {
            Some(name) => Err(NamesError::Twice(name.to_owned())),
            None => Ok(names),
        }
    }
}

/// The resources that containers request.
fn resources() -> impl Iterator<Item = &'static str> {
    WORDS.iter().filter(|(_, word, _)| !word.is_annotation()).map(|(.., name)| *name)
}

/// A name that occurs more than once.
fn twice(mut names: Vec<&str>) -> Option<&str> {
    names.sort_unstable();
    names.windows(2).find(|two| two.first() == two.last())?.first().copied()
}

fn is_name(text: &str) -> bool {
    let is_part = |part: &str, most: usize| {
        let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let ends = [part.bytes().next(), part.bytes().last()];
        part.len() <= most
            && part.bytes().all(is_inside)
            && ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
    };
    text.split_once('/').is_some_and(|(domain, name)| is_part(domain, 200) && is_part(name, 63))
}

impl ResourceNames {
    /// The cluster's name of a resource.
    #[must_use]
    pub fn written<'a>(&'a self, own: &'a str) -> &'a str {
        self.0.iter().find(|(of, _)| *of == own).map_or(own, |(_, other)| other)
    }

    /// The resource with this name in the cluster. `None`: it belongs to another system.
    #[must_use]
    pub fn read<'a>(&self, name: &'a str) -> Option<&'a str>
    where
        'static: 'a,
    {
        if let Some((own, _)) = self.0.iter().find(|(_, other)| other == name) {
            return Some(own);
        }
        (!self.0.iter().any(|(own, _)| *own == name)).then_some(name)
    }

    /// Translates a pod to the original resource names.
    #[must_use]
    pub fn pod<'a>(&self, pod: &'a Pod) -> Cow<'a, Pod> {
        if self.0.is_empty() {
            return Cow::Borrowed(pod);
        }
        let mut pod = pod.clone();
        let spec = pod.spec.iter_mut();
        let containers = spec
            .flat_map(|spec| spec.init_containers.iter_mut().flatten().chain(&mut spec.containers));
        for resources in containers.filter_map(|container| container.resources.as_mut()) {
            let ResourceRequirements { limits, requests, .. } = resources;
            for all in [limits, requests].into_iter().flatten() {
                *all = self.quantities(std::mem::take(all));
            }
        }
        Cow::Owned(pod)
    }

    fn quantities(&self, all: BTreeMap<String, Quantity>) -> BTreeMap<String, Quantity> {
        let one =
            |(name, quantity): (String, Quantity)| Some((self.read(&name)?.to_owned(), quantity));
        all.into_iter().filter_map(one).collect()
    }

    /// Translates resource names in a message for people to the cluster's names.
    #[must_use]
    pub fn in_words(&self, text: String) -> String {
        let mut names: Vec<&(&str, String)> = self.0.iter().collect();
        // Longest first, since one name may begin with another.
        names.sort_by_key(|(own, _)| core::cmp::Reverse(own.len()));
        let mut parts = vec![(text, false)];
        for (own, other) in names {
            let replace = |(part, is_done): (String, bool)| {
                if is_done { vec![(part, true)] } else { split(&part, own, other) }
            };
            parts = parts.into_iter().flat_map(replace).collect();
        }
        parts.into_iter().map(|(part, _)| part).collect()
    }
}

/// Splits a text at a name; the flag marks replacements.
fn split(text: &str, own: &str, other: &str) -> Vec<(String, bool)> {
    let mut parts = Vec::new();
    for (at, part) in text.split(own).enumerate() {
        if at > 0 {
            parts.push((other.to_owned(), true));
        }
        parts.push((part.to_owned(), false));
    }
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_that_cannot_be_given_are_refused() {
        for (text, words) in [
            ("nvidia.com/gpu", "expected NAME=OTHER"),
            (
                "example.com/gpu=nvidia.com/gpu",
                "is not a resource of any dialect; expected one of ",
            ),
            ("nvidia.com/gpu=gpu", "\"gpu\" is not a resource name"),
            ("nvidia.com/gpu=example.com/", "is not a resource name"),
            ("nvidia.com/gpu=nvidia.com/gpumem", "\"nvidia.com/gpumem\" is named twice"),
            ("nvidia.com/gpu=a.b/c,nvidia.com/gpu=a.b/d", "\"nvidia.com/gpu\" is named twice"),
        ] {
            let said = text.parse::<ResourceNames>().unwrap_err().to_string();
            assert!(said.contains(words), "{text}: {said}");
        }
        assert_eq!("".parse(), Ok(ResourceNames::default()));
    }

    #[test]
    fn pods_are_read_by_the_clusters_names_and_own_names_are_somebody_elses() {
        let names: ResourceNames =
            "nvidia.com/gpu=example.com/gpu,nvidia.com/gpumem=nvidia.com/gpu".parse().unwrap();
        let limits = json!({"example.com/gpu": "2", "nvidia.com/gpu": "500", "nvidia.com/gpumem": "7", "cpu": "1"});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "b", "resources": {"limits": limits}}]},
        }))
        .unwrap();
        let read = names.pod(&pod);
        let resources =
            read.spec.as_ref().unwrap().init_containers.as_ref().unwrap()[0].resources.clone();
        let found = serde_json::to_value(resources.unwrap().limits).unwrap();
        assert_eq!(found, json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "500", "cpu": "1"}));
        assert_eq!(names.read("nvidia.com/gpumem"), None);
        assert_eq!(names.written("nvidia.com/gpumem"), "nvidia.com/gpu");
        assert_eq!(
            names.in_words("nvidia.com/gpumem: 5; nvidia.com/gpu".to_owned()),
            "nvidia.com/gpu: 5; example.com/gpu"
        );
        assert!(matches!(ResourceNames::default().pod(&pod), Cow::Borrowed(_)));
    }
}

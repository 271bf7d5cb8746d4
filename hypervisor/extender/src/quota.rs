//! ResourceQuotas on names such as `limits.nvidia.com/gpumem`, which API servers do not count. HAMi's meaning: an
//! amount per GPU counts once for each GPU. No I/O and no clock.

use std::collections::{BTreeMap, BTreeSet};

use dialects::quantity::whole;
use dialects::table::{WORDS, Word};
use dialects::{Dialect, ResourceNames};
use k8s_openapi::api::core::v1::ResourceQuota;
use placement::Usage;

/// The prefix of the quota names that API servers do not count.
const PREFIX: &str = "limits.";

/// The quota that a pod would exceed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ResourceQuota {quota}: {name}: {asked} requested, {used} of {hard} in use; expected at most {left}"
)]
pub(crate) struct QuotaRefusal {
    quota: String,
    name: String,
    asked: u64,
    used: u64,
    hard: u64,
    left: u64,
}

/// A limit on one resource in a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Limit {
    dialect: Dialect,
    word: Word,
    /// The name in the quota.
    name: String,
    hard: u64,
}

/// The quotas of the cluster, by namespace and name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas {
    known: BTreeMap<(String, String), Vec<Limit>>,
    /// During a new list: the quotas listed so far.
    told: Option<BTreeSet<(String, String)>>,
}

impl Quotas {
    pub(crate) fn are_told_anew(&mut self) {
        self.told = Some(BTreeSet::new());
    }

    pub(crate) fn all_are_told(&mut self) {
        if let Some(told) = self.told.take() {
            self.known.retain(|key, _| told.contains(key));
        }
    }

    pub(crate) fn apply(&mut self, quota: &ResourceQuota, names: &ResourceNames) {
        let key = key(quota);
        if let Some(told) = &mut self.told {
            told.insert(key.clone());
        }
        match limits(quota, names) {
            limits if limits.is_empty() => _ = self.known.remove(&key),
            limits => _ = self.known.insert(key, limits),
        }
    }

    pub(crate) fn delete(&mut self, quota: &ResourceQuota) {
        self.known.remove(&key(quota));
    }

    /// Whether a namespace has a quota.
    pub(crate) fn has(&self, namespace: &str) -> bool {
        self.of(namespace).next().is_some()
    }

    fn of(&self, namespace: &str) -> impl Iterator<Item = (&str, &[Limit])> {
        let own = self.known.iter().filter(move |((of, _), _)| of == namespace);
        own.map(|((_, name), limits)| (name.as_str(), limits.as_slice()))
    }

    /// Whether pods of a namespace that use `used` may use this much more.
    pub(crate) fn check(
        &self,
        namespace: &str,
        dialect: Dialect,
        used: Usage,
        asked: Usage,
    ) -> Result<(), QuotaRefusal> {
        for (quota, limits) in self.of(namespace) {
            for Limit { word, name, hard, .. } in limits.iter().filter(|one| one.dialect == dialect)
            {
                let of = |usage: Usage| match word {
                    Word::Number => usage.number,
                    Word::Cores => usage.cores,
                    _ => usage.memory,
                };
                let (used, asked, hard) = (of(used), of(asked), *hard);
                let left = hard.saturating_sub(used);
                if asked > left {
                    let (quota, name) = (quota.to_owned(), name.clone());
                    return Err(QuotaRefusal { quota, name, asked, used, hard, left });
                }
            }
        }
        Ok(())
    }
}

fn key(quota: &ResourceQuota) -> (String, String) {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    (part(&quota.metadata.namespace), part(&quota.metadata.name))
}

/// The limits of a quota. Quotas with scopes are ignored, because scopes are not evaluated here.
fn limits(quota: &ResourceQuota, names: &ResourceNames) -> Vec<Limit> {
    let Some(spec) = &quota.spec else { return Vec::new() };
    let hard = spec.hard.iter().flatten().filter_map(|(name, quantity)| {
        let own = names.read(name.strip_prefix(PREFIX)?)?;
        let counted = |word: &Word| matches!(word, Word::Number | Word::Cores | Word::Memory);
        let (dialect, word, _) = WORDS.iter().find(|(_, word, of)| *of == own && counted(word))?;
        let hard = whole(&quantity.0).unwrap_or_else(|error| {
            let (quota, resource) = (quota.metadata.name.as_deref(), name.as_str());
            tracing::warn!(quota, resource, %error, "counts as 0");
            0
        });
        Some(Limit { dialect: *dialect, word: *word, name: name.clone(), hard })
    });
    let limits: Vec<Limit> = hard.collect();
    let has_scopes = spec.scope_selector.is_some() || spec.scopes.iter().flatten().next().is_some();
    if has_scopes && !limits.is_empty() {
        let quota = quota.metadata.name.as_deref();
        tracing::warn!(quota, "a quota with scopes does not limit GPUs; one without is followed");
        return Vec::new();
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn quota(name: &str, spec: &Value) -> ResourceQuota {
        let metadata = json!({"name": name, "namespace": "team"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[test]
    fn amounts_count_for_each_gpu_and_only_in_their_dialect() {
        let names = ResourceNames::default();
        let mut quotas = Quotas::default();
        let hard = json!({"limits.nvidia.com/gpu": "2", "limits.nvidia.com/gpumem": "3k",
            "limits.cpu": "4", "requests.nvidia.com/gpu": "0"});
        quotas.apply(&quota("gpus", &json!({"hard": hard})), &names);
        let used = Usage { number: 1, cores: 100, memory: 1000 };
        let asked = |number, memory| Usage { number, cores: 90, memory };
        let check = |dialect, asked| quotas.check("team", dialect, used, asked);
        assert_eq!(check(Dialect::Hami, asked(1, 2000)), Ok(()));
        let said = check(Dialect::Hami, asked(1, 2001)).unwrap_err().to_string();
        let words = "ResourceQuota gpus: limits.nvidia.com/gpumem: 2001 requested, 1000 of 3000 in use; expected at most 2000";
        assert_eq!(said, words);
        assert!(check(Dialect::Hami, asked(2, 0)).is_err());
        assert_eq!(check(Dialect::Volcano, asked(9, 9000)), Ok(()));
        assert_eq!(quotas.check("other", Dialect::Hami, used, asked(9, 9000)), Ok(()));
        quotas.are_told_anew();
        quotas.all_are_told();
        assert!(!quotas.has("team"));
    }

    #[test]
    fn a_quota_with_scopes_or_without_gpus_limits_nothing() {
        let mut quotas = Quotas::default();
        let hard = json!({"limits.nvidia.com/gpu": "0"});
        let names = ResourceNames::default();
        quotas.apply(&quota("scoped", &json!({"hard": hard, "scopes": ["BestEffort"]})), &names);
        quotas
            .apply(&quota("other", &json!({"hard": {"limits.nvidia.com/priority": "0"}})), &names);
        assert!(!quotas.has("team"));
        let names: ResourceNames = "nvidia.com/gpu=example.com/gpu".parse().unwrap();
        quotas.apply(&quota("own", &json!({"hard": hard})), &names);
        assert!(!quotas.has("team"));
        let hard = json!({"limits.example.com/gpu": "0"});
        quotas.apply(&quota("own", &json!({"hard": hard})), &names);
        assert!(quotas.has("team"));
        quotas.delete(&quota("own", &json!({})));
        assert!(!quotas.has("team"));
    }
}

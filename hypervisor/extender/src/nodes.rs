//! What kube-scheduler asks about nodes: which have room, and how well these suit. No I/O and no clock.

use core::num::NonZeroU32;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use dialects::{PodClaims, Policy};
use k8s_openapi::api::core::v1::Pod;
use placement::{Holding, Offer, Refusal};

use crate::cluster::{Asked, Cluster, PodName, name_of};
use crate::quota::QuotaRefusal;

/// Why a node is left out.
enum Why<'a> {
    Unknown,
    Refused(Refusal),
    Unusable(&'a Refusal),
}

/// All of these nodes are left out, for the same reason.
fn everywhere(names: &[&str], why: &str) -> BTreeMap<String, String> {
    names.iter().map(|name| ((*name).to_owned(), why.to_owned())).collect()
}

impl Cluster {
    /// Whether the quotas of its namespace leave a pod what it asks for.
    pub(crate) fn would_keep_quota(
        &self,
        own: &PodName,
        asked: &Asked,
    ) -> Result<(), QuotaRefusal> {
        let (dialect, units) = (asked.request.dialect, NonZeroU32::MIN);
        let usage = Holding::claimed(&asked.request, &PodClaims::default(), units);
        self.within_quota(own, dialect, usage.usage(dialect, units))
    }

    /// Which of these nodes have no room for a pod, and why. If none has, the pod is woken when one has.
    pub(crate) fn refusals(
        &mut self,
        pod: &Pod,
        names: &[&str],
        now: Instant,
    ) -> BTreeMap<String, String> {
        let asked = match self.reading.asked(pod) {
            Ok(None) => return BTreeMap::new(),
            Ok(Some(asked)) => asked,
            Err(why) => return everywhere(names, &self.reading.names.in_words(why.to_string())),
        };
        let own = name_of(pod);
        let dialect = asked.request.dialect;
        if let Err(why) = self.would_keep_quota(&own, &asked) {
            // kube-scheduler tries it again when a pod has ended.
            self.waiting.forget(&own);
            return everywhere(names, &why.to_string());
        }
        let counted = self.counted(&own);
        let why = |node: &str| match self.account_beside(node, dialect, counted) {
            None => Some(Why::Unknown),
            Some(Err(refusal)) => Some(Why::Unusable(refusal)),
            Some(Ok(account)) => account.fits(&asked.request).err().map(Why::Refused),
        };
        let refused: Vec<(&str, Why<'_>)> =
            names.iter().filter_map(|name| Some((*name, why(name)?))).collect();
        let is_everywhere = refused.len() == names.len();
        let nearest = if is_everywhere { self.nearest(&asked, &refused) } else { None };
        let nearest = nearest.map(|(node, offer)| format!("; {offer} would fit on node {node}"));
        let nearest = nearest.unwrap_or_default();
        let said = |(node, why): (&str, Why<'_>)| {
            let why = match why {
                Why::Unknown => "the node is not known yet".to_owned(),
                Why::Unusable(refusal) => refusal.to_string(),
                Why::Refused(refusal) => format!("{refusal}{nearest}"),
            };
            (node.to_owned(), why)
        };
        let refused = refused.into_iter().map(said).collect();
        // kube-scheduler may try a pod once more that it is binding.
        let is_placed = self.pod(&own).is_some_and(|pod| pod.node().is_some());
        if is_everywhere && !is_placed {
            let nodes = names.iter().filter_map(|name| self.number(name)).collect();
            self.waiting.refuse(own, (pod, asked), nodes, now);
        } else {
            self.waiting.forget(&own);
        }
        refused
    }

    /// The nearest request that fits a node, and which node.
    fn nearest<'a>(
        &self,
        asked: &Arc<Asked>,
        refused: &[(&'a str, Why<'_>)],
    ) -> Option<(&'a str, Offer)> {
        let mut least = u64::MAX;
        let mut found = None;
        for (node, why) in refused {
            let Why::Refused(refusal) = why else { continue };
            let account = self.account(node, asked.request.dialect);
            let Some(Ok(account)) = account else { continue };
            if let Some((loss, offer)) = account.nearest(&asked.request, refusal, least) {
                (least, found) = (loss, Some((*node, offer)));
            }
        }
        found
    }

    /// How well nodes suit a pod that has room on them: 0 to 10 each.
    pub(crate) fn scores(&self, pod: &Pod, names: &[&str]) -> Vec<u64> {
        // A pod that cannot be read has been left without a node.
        let asked = self.reading.asked(pod).ok().flatten();
        let is_any = |policy: Policy| Policy { device: None, ..policy } == Policy::default();
        let asked = asked.filter(|asked| !is_any(asked.request.policy));
        let score = |node: &&str| {
            let request = &asked.as_ref()?.request;
            let account = self.account(node, request.dialect)?.ok()?;
            Some(account.score(request.policy, || account.connects(request)))
        };
        names.iter().map(|node| score(node).unwrap_or_default()).collect()
    }
}

//! Answers kube-scheduler's questions about nodes: which have room, and how well they suit. No I/O and no clock.

use std::sync::Arc;
use std::time::Instant;

use dialects::Policy;
use k8s_openapi::api::core::v1::Pod;
use placement::{Account, Offer, Refusal, Request};

use crate::cluster::{Asked, Cluster, KnownNode, PodName, name_of};
use crate::quota::QuotaRefusal;

enum Why<'a> {
    Unknown,
    Refused(Refusal, &'a Account),
    Unusable(&'a Refusal),
}

impl Cluster {
    /// Whether the namespace's quotas leave enough for a pod.
    pub(crate) fn would_keep_quota(
        &self,
        own: &PodName,
        asked: &Asked,
    ) -> Result<(), QuotaRefusal> {
        self.within_quota(own, asked.request.dialect, asked.usage())
    }

    /// Why each of these nodes has no room for a pod, if it has none. If none has, the pod is woken when one has, or when
    /// its quota leaves enough.
    pub(crate) fn refusals(
        &mut self,
        pod: &Pod,
        names: &[String],
        now: Instant,
    ) -> Vec<Option<String>> {
        let everywhere = |why: String| vec![Some(why); names.len()];
        let asked = match self.reading.asked(pod) {
            Ok(None) => return vec![None; names.len()],
            Ok(Some(asked)) => asked,
            Err(why) => return everywhere(self.reading.names.in_words(why.to_string())),
        };
        let own = name_of(pod);
        if let Err(why) = self.would_keep_quota(&own, &asked) {
            self.keep_waiting(own, (pod, asked), Vec::new(), now);
            return everywhere(why.to_string());
        }
        let counted = self.counted(&own);
        // Of thousands of nodes: each is looked up once.
        let known = names.iter().map(|name| (name.as_str(), self.node(name)));
        let known: Vec<(&str, Option<&KnownNode>)> = known.collect();
        let why = |(name, known)| self.why((name, known), &asked.request, counted);
        let whys: Vec<Option<Why<'_>>> = known.iter().copied().map(why).collect();
        let is_everywhere = whys.iter().all(Option::is_some);
        let nearest = if is_everywhere { nearest(&asked, names, &whys) } else { None };
        let nearest = nearest.map(|(node, offer)| format!("; {offer} would fit on node {node}"));
        let nearest = nearest.unwrap_or_default();
        let said = |why: Why<'_>| match why {
            Why::Unknown => "the node is not known yet".to_owned(),
            Why::Unusable(refusal) => refusal.to_string(),
            Why::Refused(refusal, _) => format!("{refusal}{nearest}"),
        };
        let said = whys.into_iter().map(|why| why.map(said)).collect();
        if is_everywhere {
            let nodes = known.iter().filter_map(|(_, known)| Some((*known)?.number)).collect();
            self.keep_waiting(own, (pod, asked), nodes, now);
        } else {
            self.waiting.forget(&own);
        }
        said
    }

    fn keep_waiting(
        &mut self,
        own: PodName,
        refused: (&Pod, Arc<Asked>),
        nodes: Vec<u32>,
        now: Instant,
    ) {
        // kube-scheduler may retry a pod while binding it.
        match self.pod(&own).is_some_and(|pod| pod.node().is_some()) {
            true => self.waiting.forget(&own),
            false => self.waiting.refuse(own, refused, nodes, now),
        }
    }

    /// Why a pod does not fit a node. `counted`: [`Self::counted`].
    fn why<'a>(
        &'a self,
        (name, known): (&str, Option<&'a KnownNode>),
        request: &Request,
        counted: Option<(&str, &str)>,
    ) -> Option<Why<'a>> {
        match known.and_then(|known| known.account(request.dialect)) {
            None => Some(Why::Unknown),
            Some(Err(refusal)) => Some(Why::Unusable(refusal)),
            Some(Ok(account)) => {
                let refusal = self.beside((name, account), counted).fits(request).err()?;
                Some(Why::Refused(refusal, account))
            }
        }
    }

    /// How well nodes with room suit a pod: 0 to 10 each.
    pub(crate) fn scores(&self, pod: &Pod, names: &[impl AsRef<str>]) -> Vec<u64> {
        // A pod with an invalid request was left without a node.
        let asked = self.reading.asked(pod).ok().flatten();
        let is_any = |policy: Policy| Policy { device: None, ..policy } == Policy::default();
        let asked = asked.filter(|asked| !is_any(asked.request.policy));
        let score = |node: &str| {
            let request = &asked.as_ref()?.request;
            let account = self.account(node, request.dialect)?.ok()?;
            Some(account.score(request.policy, || account.connects(request)))
        };
        names.iter().map(|node| score(node.as_ref()).unwrap_or_default()).collect()
    }
}

/// The nearest request that fits a node, and which node.
fn nearest<'a>(
    asked: &Asked,
    names: &'a [String],
    whys: &[Option<Why<'_>>],
) -> Option<(&'a str, Offer)> {
    let mut least = u64::MAX;
    let mut found = None;
    for (name, why) in names.iter().zip(whys) {
        let Some(Why::Refused(refusal, account)) = why else { continue };
        if let Some((loss, offer)) = account.nearest(&asked.request, refusal, least) {
            (least, found) = (loss, Some((name.as_str(), offer)));
        }
    }
    found
}

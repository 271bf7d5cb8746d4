//! Checks of `hypervisor node --check` that need the API server.

use api_server::{answered, segment};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client};
use protocol::findings::{Checked, Wrong};
use tokio::runtime::Handle;

use crate::chain::chain;
use crate::cluster::ANSWERS_WITHIN;
use crate::permissions::{Permission, needed};
use crate::{ClusterOptions, Options};

/// Asks the API server. `None`: without --node-name there is none.
fn asked<T>(
    options: &Options,
    on: &Handle,
    ask: impl AsyncFnOnce(Client, &ClusterOptions) -> Result<T, kube::Error>,
) -> Option<Result<T, String>> {
    let cluster = options.cluster.as_ref()?;
    Some(on.block_on(async {
        let client = api_server::client(cluster.kubeconfig.as_deref()).await.map_err(chain)?;
        answered(ANSWERS_WITHIN, ask(client, cluster)).await.map_err(chain)
    }))
}

fn unused() -> Wrong {
    let found = "not asked: without --node-name what kubelets do not count is not known, and nothing is told";
    Wrong::note(found, "hypervisor node --node-name NAME, with --kubeconfig FILE outside of pods")
}

pub(super) fn reachable(options: &Options, on: &Handle) -> Checked {
    let asked = asked(options, on, async |client, _| client.apiserver_version().await);
    let mend = "kubectl --kubeconfig FILE version; in a pod: its service account's token, and no network policy between";
    match asked.ok_or_else(unused)? {
        Ok(version) => Ok(format!("version {}", version.git_version)),
        Err(error) => Err(Wrong::broken(error, mend)),
    }
}

pub(super) fn permitted(options: &Options, on: &Handle) -> Checked {
    let asked = asked(options, on, async |client, _| {
        let mut missing = Vec::new();
        for permission in needed(&options.gates) {
            if !may(&client, permission).await? {
                missing.push(permission);
            }
        }
        Ok(missing)
    });
    let mend = "kubectl apply -k deploy/kubernetes/base (with the gate Reschedule: its component ../reschedule)";
    let missing = match asked.ok_or_else(unused)? {
        Ok(missing) => missing,
        Err(error) => return Err(Wrong::broken(error, mend)),
    };
    if missing.is_empty() {
        return Ok(format!("all {} that are needed", needed(&options.gates).count()));
    }
    let missing: Vec<_> =
        missing.iter().map(|one| format!("{} {}", one.verb, one.resource)).collect();
    Err(Wrong::broken(format!("not permitted: {}", missing.join(", ")), mend))
}

async fn may(client: &Client, permission: &Permission) -> Result<bool, kube::Error> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let attributes = ResourceAttributes {
        group: Some(permission.group.to_owned()),
        resource: Some(permission.resource.to_owned()),
        verb: Some(permission.verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

pub(super) fn node(options: &Options, on: &Handle) -> Checked {
    let asked = asked(options, on, async |client, cluster| {
        let node = Api::<Node>::all(client).get_opt(&segment(&cluster.node)).await?;
        Ok(node.map(|_| cluster.node.clone()))
    });
    let mend = "kubectl get nodes; in a pod: NODE_NAME by fieldRef spec.nodeName";
    match asked.ok_or_else(unused)? {
        Ok(Some(name)) => Ok(name),
        Ok(None) => Err(Wrong::broken("--node-name: the cluster has no such node", mend)),
        Err(error) => Err(Wrong::broken(error, mend)),
    }
}

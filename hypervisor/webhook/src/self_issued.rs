//! Certificates that the webhook issues itself: replicas share them in a Secret, and API servers trust them through the
//! webhook configurations.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api_server::{CallError, answered, is_conflict, segment};
use http_bidir_comm::server::{ServerTls, ServerTlsError};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject, ObjectMeta, PostParams};
use kube::{Api, Client};
use serde_json::Value;

use crate::certificates::{Pair, Rotation, Stored};

/// How long the API server has for one answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// How often another replica may win in one refresh.
const CONFLICTS: usize = 5;

/// Why the certificate could not be refreshed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SelfIssuedError {
    #[error(transparent)]
    Api(#[from] CallError),
    #[error("the {kind} {name} does not exist; the chart creates it")]
    NoConfiguration { kind: String, name: String },
    #[error("cannot issue a certificate: {0}")]
    Issue(#[from] rcgen::Error),
    #[error("certificate in the Secret {0}: {1}")]
    Unusable(String, ServerTlsError),
    #[error("cannot encode the CA bundle: {0}")]
    Encode(#[from] serde_json::Error),
}

/// The Secret, and the configurations that tell API servers whom to trust.
pub(crate) struct SelfIssued {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// The name of the Secret, the Service and both configurations.
    pub(crate) name: String,
    pub(crate) rotation: Rotation,
}

/// What earlier refreshes found.
#[derive(Debug, Default)]
pub(crate) struct Known {
    serving: Option<Pair>,
    stored: Option<Stored>,
    /// The log says already that every pod depends on this webhook.
    warned: bool,
}

async fn call<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    answered(ANSWERS_WITHIN, request).await
}

impl SelfIssued {
    /// Replaces the certificate if it is due, updates the trusted CAs, and returns the certificate to serve from now on.
    /// `None`: unchanged.
    pub(crate) async fn refresh(
        &self,
        known: &mut Known,
    ) -> Result<Option<ServerTls>, SelfIssuedError> {
        let mut conflicts = 0;
        let pair = loop {
            match self.try_refresh(known).await {
                Err(SelfIssuedError::Api(CallError::Failed(error)))
                    if is_conflict(&error) && conflicts < CONFLICTS =>
                {
                    conflicts += 1;
                }
                answer => break answer?,
            }
        };
        let Some(pair) = pair.filter(|pair| known.serving.as_ref() != Some(pair)) else {
            return Ok(None);
        };
        let tls = tls_of(&pair).map_err(|why| SelfIssuedError::Unusable(self.name.clone(), why))?;
        known.serving = Some(pair);
        Ok(Some(tls))
    }

    /// Reads the configurations before the Secret: if another replica publishes a newer CA in between, the update of the
    /// configuration conflicts.
    async fn try_refresh(&self, known: &mut Known) -> Result<Option<Pair>, SelfIssuedError> {
        let mutating = ApiResource::erase::<MutatingWebhookConfiguration>(&());
        let validating = ApiResource::erase::<ValidatingWebhookConfiguration>(&());
        let mut configurations = Vec::new();
        for kind in [mutating, validating] {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
            let found = call(api.get_opt(&segment(&self.name))).await?;
            let (kind, name) = (kind.kind, self.name.clone());
            configurations
                .push((api, found.ok_or(SelfIssuedError::NoConfiguration { kind, name })?));
        }
        let now = now();
        let stored = self.stored(known.stored.as_ref(), now).await?;
        known.stored = Some(stored.clone());
        let bundle = serde_json::to_value(ByteString(stored.authorities().into_bytes()))?;
        let mut all_trust = true;
        for (api, mut configuration) in configurations {
            if !known.warned && matches_all_pods(&mut configuration) {
                known.warned = true;
                tracing::warn!(
                    name = self.name,
                    "no matchConditions and no objectSelector: every pod depends on this webhook; expected matchConditions, or an objectSelector before Kubernetes 1.28"
                );
            }
            if set_bundle(&mut configuration, &bundle) {
                all_trust = false;
                let name = segment(&self.name);
                call(api.replace(&name, &PostParams::default(), &configuration)).await?;
                tracing::info!(
                    name = self.name,
                    "updated the CA bundle of the webhook configuration"
                );
            }
        }
        // An API server that has just been told may not trust the newest certificate yet.
        let keep = known.serving.is_some() && !all_trust;
        Ok((!keep).then(|| stored.current(&self.rotation, now).clone()))
    }

    /// Reads the Secret, and writes it if its certificate is due, missing or unusable. `known`: its earlier content.
    async fn stored(&self, known: Option<&Stored>, now: u64) -> Result<Stored, SelfIssuedError> {
        let (name, params) = (segment(&self.name), PostParams::default());
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &segment(&self.namespace));
        let found = call(secrets.get_opt(&name)).await?;
        let read = found.as_ref().and_then(|found| Stored::read(found, &self.rotation, now));
        let read = read.filter(|stored| stored.pairs().all(|pair| tls_of(pair).is_ok()));
        let is_there = read.is_some();
        let next = match read.or_else(|| known.cloned()) {
            Some(stored) if !stored.is_due(&self.rotation, now) => {
                if is_there {
                    return Ok(stored);
                }
                tracing::warn!(
                    secret = self.name,
                    "the Secret is lost or unusable, and is written again"
                );
                stored
            }
            before => {
                tracing::info!(secret = self.name, "issues a new certificate");
                let host = format!("{}.{}.svc", self.name, self.namespace);
                Stored::replace(before, &host, &self.rotation, now)?
            }
        };
        let is_new = found.is_none();
        let mut secret = found.unwrap_or_else(|| Secret {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        });
        next.write(&mut secret);
        if is_new {
            call(secrets.create(&params, &secret)).await?;
        } else {
            call(secrets.replace(&name, &params, &secret)).await?;
        }
        Ok(next)
    }
}

fn tls_of(pair: &Pair) -> Result<ServerTls, ServerTlsError> {
    ServerTls::from_pem(pair.certificate.as_bytes(), pair.key.as_bytes())
}

/// In seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn webhooks(configuration: &mut DynamicObject) -> impl Iterator<Item = &mut Value> {
    let all = configuration.data.get_mut("webhooks").and_then(Value::as_array_mut);
    all.into_iter().flatten()
}

/// Whether nothing selects pods. API servers before 1.28 drop match conditions.
fn matches_all_pods(configuration: &mut DynamicObject) -> bool {
    let selects = |webhook: &Value, name: &str| match webhook.get(name) {
        Some(Value::Array(conditions)) => !conditions.is_empty(),
        Some(Value::Object(selector)) => !selector.is_empty(),
        _ => false,
    };
    webhooks(configuration)
        .any(|one| !selects(one, "matchConditions") && !selects(one, "objectSelector"))
}

/// Sets the CA bundle. Returns whether that changes anything.
fn set_bundle(configuration: &mut DynamicObject, bundle: &Value) -> bool {
    let mut has_changed = false;
    for webhook in webhooks(configuration) {
        let known = webhook.pointer("/clientConfig/caBundle");
        if known != Some(bundle) {
            webhook["clientConfig"]["caBundle"] = bundle.clone();
            has_changed = true;
        }
    }
    has_changed
}

//! The parts of `AdmissionReview` (`admission.k8s.io/v1`) that the webhook reads and writes.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::admission::Operation;

#[derive(Debug, Deserialize)]
pub(crate) struct Review {
    pub(crate) request: Request,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Request {
    pub(crate) uid: String,
    #[serde(default)]
    pub(crate) namespace: String,
    /// The pod to be created.
    pub(crate) object: Pod,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reviewed {
    api_version: &'static str,
    kind: &'static str,
    response: Response,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
}

#[derive(Debug, Serialize)]
struct Status {
    code: u16,
    reason: &'static str,
    message: String,
}

impl Reviewed {
    fn new(response: Response) -> Self {
        Self { api_version: "admission.k8s.io/v1", kind: "AdmissionReview", response }
    }

    /// Allows the pod, with this patch.
    pub(crate) fn patched(uid: String, patch: &[Operation]) -> serde_json::Result<Self> {
        let written = serde_json::to_vec(patch)?;
        let patch = (!patch.is_empty()).then_some(ByteString(written));
        let patch_type = patch.as_ref().map(|_| "JSONPatch");
        Ok(Self::new(Response { uid, allowed: true, status: None, patch_type, patch }))
    }

    /// Allows or refuses the pod.
    pub(crate) fn checked(uid: String, checked: Result<(), String>) -> Self {
        let status = checked.err().map(|message| Status { code: 422, reason: "Invalid", message });
        let allowed = status.is_none();
        Self::new(Response { uid, allowed, status, patch_type: None, patch: None })
    }
}

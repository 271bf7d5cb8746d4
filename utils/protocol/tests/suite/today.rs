//! Today's messages.

use core::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{golden, samples};

/// Writing yields the golden text, byte for byte; parsing it yields the same value.
#[track_caller]
fn is_written_as<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, value: &T) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, serde_json::to_string(value).unwrap() + "\n").unwrap();
    }
    let expected = golden(name);
    assert_eq!(serde_json::to_string(value).unwrap(), expected, "{name}");
    assert_eq!(serde_json::from_str::<T>(&expected).unwrap(), *value, "{name}");
}

#[test]
fn each_message_is_its_golden() {
    is_written_as("register.json", &samples::register());
    is_written_as("registered.json", &samples::registered());
    is_written_as("admission.json", &samples::admission());
    is_written_as("admission-question.json", &samples::question());
    is_written_as("decision.json", &samples::decision());
    is_written_as("decision-none.json", &samples::no_lease());
    is_written_as("decision-withheld.json", &samples::withheld());
}

#[test]
fn the_sessions_are_their_golden() {
    is_written_as("sessions.json", &samples::sessions());
}

/// Fields that a later version adds to a quota stand beside those of the limit.
#[test]
fn a_quota_with_fields_that_are_not_known_here() {
    let later = r#"{"uuid":"GPU-5a1ce000-0000-4000-8000-000000000000","share_ppm":1,"burst":[1,2],
        "policy":"none","priority":"low","window":{"ms":5}}"#;
    let quota: protocol::DeviceQuota = serde_json::from_str(later).unwrap();
    assert_eq!((quota.limit.policy, quota.limit.weight), (limits::Policy::None, 1));
}

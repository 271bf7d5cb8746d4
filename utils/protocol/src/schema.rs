//! JSON schemas of what `sluice` prints with `--json` and records. Words of other crates are described here.

use schemars::{JsonSchema, Schema, schema_for};

use crate::record::Sample;
use crate::reports::{DoctorReport, ExplainReport, HooksReport, LimitReport};
use crate::sessions::StatusReport;

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[allow(dead_code, reason = "it is only described")]
/// How a share is meant: never more; guaranteed, and idle time on top; not enforced.
pub(crate) enum Policy {
    Fixed,
    Balance,
    None,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[allow(dead_code, reason = "it is only described")]
/// Whether others come first.
pub(crate) enum Priority {
    High,
    Low,
}

/// The commands that print JSON, and the schema of each.
#[must_use]
pub fn all() -> [(&'static str, Schema); 6] {
    [
        ("status", schema_for!(StatusReport)),
        ("limit", schema_for!(LimitReport)),
        ("hooks", schema_for!(HooksReport)),
        ("explain", schema_for!(ExplainReport)),
        ("doctor", schema_for!(DoctorReport)),
        ("record", schema_for!(Sample)),
    ]
}

//! JSON schemas of what `sluice` prints with `--json` and records. Enums of other crates are described here.

use schemars::{JsonSchema, Schema, schema_for};

use crate::record::Sample;
use crate::reports::{DoctorReport, ExplainReport, HooksReport, LimitReport};
use crate::sessions::StatusReport;

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[allow(dead_code, reason = "it is only described")]
/// The meaning of a share: `fixed`, never more; `balance`, guaranteed plus idle time; `none`, no compute limit.
pub(crate) enum Policy {
    Fixed,
    Balance,
    None,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[allow(dead_code, reason = "it is only described")]
/// Whether a session gives way to others: `low` runs when no session of `high` priority wants the device.
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

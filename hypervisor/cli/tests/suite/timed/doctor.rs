//! The doctor's canaries are held to their limits.

use protocol::reports::{DoctorReport, FindingState};

use crate::support::{Sluice, outcome};

#[test]
fn the_doctor_proves_both_limits() {
    let sluice = Sluice::new();
    let mut command = sluice.command();
    command.args(["doctor", "--fake-gpu", "--daemon", "none", "--json"]);
    let (code, stdout, stderr) = outcome(&mut command);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let report: DoctorReport = serde_json::from_str(&stdout).unwrap();
    for check in ["functions", "memory limit", "time limit"] {
        let finding = report.findings.iter().find(|finding| finding.check == check).unwrap();
        assert_eq!(finding.state, FindingState::Ok, "{finding:?}");
    }
}

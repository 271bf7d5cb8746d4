//! Programs that have several devices and compute on one.

use protocol::reports::LimitReport;
use rustix::process::{Pid, Signal, kill_process};

use super::program::{Program, limit};
use crate::support::Sluice;

#[test]
fn a_program_is_waited_for_where_it_computes_only() {
    let sluice = Sluice::new();
    let mut program = Program::run(&sluice, &["--device", "1", "--mem", "2GiB", "--compute", "50"]);
    // It has the page of the second device, too, and no context there.
    assert_eq!(program.tell("size 1"), "2048");
    let change = |compute: &str| {
        let options = ["--compute", compute, "--json"];
        let (code, stdout, stderr) = limit(&sluice, &program.name(), &options);
        assert_eq!((code, stderr.as_str()), (0, ""));
        let report: LimitReport = serde_json::from_str(&stdout).unwrap();
        let taken = |of: usize| -> Vec<bool> {
            report.devices[of].processes.iter().map(|process| process.taken).collect()
        };
        assert_eq!(report.devices.len(), 2);
        (report.taken_by_all, taken(0), taken(1))
    };
    assert_eq!(change("40"), (true, vec![true], vec![]));
    assert_eq!(change("30"), (true, vec![true], vec![]));
    // Stopped, it does not follow, however often the limits are changed.
    let pid = Pid::from_raw(program.pid.cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    for compute in ["45", "35"] {
        assert_eq!(change(compute), (false, vec![false], vec![]), "{compute}");
    }
    let (code, _, stderr) = limit(&sluice, &program.name(), &["--compute", "25"]);
    kill_process(pid, Signal::CONT).unwrap();
    let named = format!("have not confirmed them: {}\n", program.pid);
    assert!(code == 0 && stderr.ends_with(&named), "{stderr}");
}

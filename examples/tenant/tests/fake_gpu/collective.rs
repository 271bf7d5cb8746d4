//! `tenant collective`.

use serde_json::Value;

use crate::node::{Node, text};

const WORK: &str = "collective --steps 100 --kernel-us 200 --kernels 4 --collective-us 200";

fn number(result: &Value, name: &str) -> f64 {
    result[name].as_f64().unwrap()
}

#[test]
fn devices_of_a_process_step_together() {
    let node = Node::new("1GiB");
    let run = |devices: u32| {
        let mut command = node.tenant(&format!("{WORK} --devices {devices}"));
        let output = command.env("SLUICE_FAKE_DEVICES", "2").output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let (two, again, one) = (run(2), run(2), run(1));
    assert_eq!((number(&two, "members"), number(&two, "steps")), (2.0, 100.0));
    // A step is a millisecond of work, and longer on a slow machine.
    let rate = number(&two, "rate");
    assert!(rate > 0.0 && rate <= 1000.0, "{two}");
    assert_eq!(two["checksum"], again["checksum"]);
    assert_ne!(two["checksum"], one["checksum"]);
}

#[test]
fn so_do_processes_and_each_waits_for_the_others() {
    let node = Node::new("1GiB");
    let page = tempfile::NamedTempFile::new().unwrap();
    let rank = |rank: u32| {
        let page = page.path().display();
        let mut command = node.tenant(&format!(
            "{WORK} --rank {rank} --ranks 2 --group 5 --page {page} --device {rank}"
        ));
        command.env("SLUICE_FAKE_DEVICES", "2").stdout(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let first = rank(0);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let second = rank(1);
    let [first, second] = [first, second].map(|child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    });
    assert!(number(&first, "seconds") > number(&second, "seconds") + 0.2, "{first} {second}");
    assert_eq!(number(&second, "own"), 1.0);
    let output = node.tenant(&format!("{WORK} --rank 2 --ranks 2 --page x")).output().unwrap();
    assert!(text(&output).contains("rank 2 of 2"), "{}", text(&output));
}

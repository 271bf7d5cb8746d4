//! `tenant ahead`.

use crate::node::Node;

#[test]
fn the_host_runs_ahead_as_far_as_the_drivers_queue_reaches() {
    let node = Node::new("1GiB");
    let result = node.result("ahead --kernel-us 500 --seconds 1.2");
    let number = |name: &str| result.pointer(name).unwrap().as_f64().unwrap();
    // 1024 operations: kernels, and an event after each second kernel.
    let most = number("/ahead/most");
    assert!((600.0..=700.0).contains(&most), "{most}");
    assert_eq!(number("/ahead_ms/most"), most / 2.0);
    // After that, launches wait for the device.
    assert!(number("/launch_us/most") > 100.0);
    let rate = number("/rate");
    assert!(rate > 0.0 && rate <= 2000.0, "{rate}");
    assert!(number("/seconds") > number("/launch_seconds") + 0.2);
}

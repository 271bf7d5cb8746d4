//! `tenant copy` on the simulated GPU.

use crate::node::Node;

/// The simulated device copies one byte per nanosecond over the bus, and two within its memory.
#[test]
fn every_api_counts_what_the_device_completed() {
    for (api, most) in [
        ("htod", 4000.0),
        ("dtoh", 4000.0),
        ("dtod", 8000.0),
        ("any", 8000.0),
        ("rows", 8000.0),
        ("layers", 8000.0),
        ("memset", 8000.0),
        ("htod-sync", 4000.0),
        ("dtoh-sync", 4000.0),
        ("memset-sync", 8000.0),
    ] {
        for ptsz in ["", "--ptsz"] {
            let arguments = format!("copy --api {api} --bytes 250KB --seconds 0.2 {ptsz}");
            let result = Node::new("1GiB").result(&arguments);
            assert_eq!(result["api"], api, "{result}");
            let rate = result["rate"].as_f64().unwrap();
            assert!(rate > 100.0 && rate < most * 1.01, "{result}");
        }
    }
}

#[test]
fn bytes_are_taken_down_to_whole_rows() {
    let node = Node::new("1GiB");
    let result = node.result("copy --api layers --bytes 1000 --seconds 0.05");
    assert_eq!(result["bytes"], 960, "{result}");
    let output = node.tenant("copy --api dtod --bytes 63 --seconds 1").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(err, "tenant: --bytes 63 is too small: expected at least 64 bytes\n");
}

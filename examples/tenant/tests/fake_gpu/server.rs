//! `tenant requests`.

use crate::node::Node;

#[test]
fn requests_are_served_at_their_rate_and_take_as_long_as_their_bursts() {
    let node = Node::new("1GiB");
    let options = "requests --burst-ms 3 --rate 40 --seconds 1.5 --kernel-us 100 --seed 7";
    let result = node.result(options);
    let number = |name: &str| result[name].as_f64().unwrap();
    assert_eq!(number("kernels"), 30.0);
    assert!((50.0..=70.0).contains(&number("requests")), "{result}");
    let latencies = ["p50_ms", "p95_ms", "p99_ms", "most_ms"].map(number);
    assert!(latencies.is_sorted() && latencies[0] >= 3.0, "{result}");
    assert!(number("served_p50_ms") >= 3.0 && number("served_p50_ms") <= latencies[0]);
}

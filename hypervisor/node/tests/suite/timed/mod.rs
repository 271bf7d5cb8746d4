//! Tests that measure real time.

mod churn;
mod sigkill;

use std::time::Duration;

use super::contained::{Cluster, result};
use super::outages::{Outage, containers_go_through};

/// It sleeps all the time.
#[tokio::test]
async fn containers_go_through_a_minute_without_an_api_server() {
    let minute = Duration::from_secs(60);
    let silent = containers_go_through(Outage::Silent, minute);
    tokio::join!(silent, containers_go_through(Outage::Away, minute));
}

/// A share is compared with what the device does for a container without one.
#[tokio::test]
async fn a_container_is_held_to_its_share() {
    let Some(cluster) = Cluster::start().await else { return };
    let container = cluster.node.admit("limited", "main", 10, 1).await;
    let free = cluster.node.admit("free", "main", 0, 1).await;
    for one in [&container, &free] {
        cluster.node.start(one).await.unwrap();
    }
    let words = ["/image/tenant", "dense", "--kernel-us", "1000", "--seconds", "5"];
    let mut kernels = Vec::new();
    for (name, container) in [("free", &free), ("limited", &container)] {
        let (code, said) = cluster.run(&container.answer, name, &[], &words).end().await;
        assert_eq!(code, Some(0), "{said}");
        kernels.push(result(&said)["kernels"].as_f64().unwrap());
    }
    let share = 100.0 * kernels[1] / kernels[0];
    println!("{kernels:?} kernels: {share:.1} %");
    // The bucket lets a session that has just begun go ahead a little.
    assert!((8.0..13.0).contains(&share), "{share:.1} % of {kernels:?} kernels");
    cluster.stop().await;
}

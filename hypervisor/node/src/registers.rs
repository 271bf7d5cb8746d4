//! Keeps the node's annotations up to date from which schedulers know its devices, one per dialect.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dialects::Dialect;
use dialects::registers::{self, HamiForm, NodeConfig};
use dialects::table::NODE_CONFIG;
use dialects::topology::NODE_TOPOLOGY;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::pool::Pool;

/// How often HAMi's and Volcano's schedulers expect a sign of life of a node.
const AGAIN: Duration = Duration::from_secs(30);
/// Pause after a failed write.
const SOON: Duration = Duration::from_secs(2);

/// Writes periodically and after each change. Never returns.
pub(crate) async fn keep(
    cluster: Cluster,
    mut pool: watch::Receiver<Arc<Pool>>,
    dialects: Arc<[Dialect]>,
    form: HamiForm,
) -> Infallible {
    loop {
        let now = Arc::clone(&pool.borrow_and_update());
        let time = Timestamp::now().strftime("%Y.%m.%d %H:%M:%S").to_string();
        let wait = match wanted(&now, &dialects, form, &time) {
            Ok(wanted) if cluster.annotate_node(&wanted).await.is_ok() => AGAIN,
            Ok(_) => SOON,
            Err(error) => {
                tracing::error!(%error, "the node's annotations");
                AGAIN
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            changed = pool.changed() => if changed.is_err() { std::future::pending::<()>().await },
        }
    }
}

fn wanted(
    pool: &Pool,
    dialects: &[Dialect],
    form: HamiForm,
    time: &str,
) -> Result<Vec<(&'static str, String)>, registers::RegisterError> {
    let devices = pool.registered(|_| pool.split().get().into());
    let scaling = pool.scaling();
    let config = NodeConfig {
        device_split: pool.split().get(),
        cores_scaling: f64::from(scaling.cores) / 100.0,
        memory_factor: pool.memory_factor().get(),
        memory_scaling: f64::from(scaling.memory) / 100.0,
    };
    let mut all = Vec::new();
    for dialect in dialects {
        let names = dialect.annotations();
        if let Some(name) = names.register {
            all.push((name, registers::write(*dialect, form, &devices, pool.memory_factor())?));
        }
        if let Some(name) = names.handshake {
            all.push((name, format!("Reported {time}")));
        }
    }
    if !all.is_empty() {
        all.push((NODE_CONFIG, registers::write_config(&config)?));
        if let Some(links) = pool.links() {
            all.push((NODE_TOPOLOGY, links.write()?));
        }
    }
    Ok(all)
}

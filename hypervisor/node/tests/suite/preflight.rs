//! `hypervisor node --check`: what is broken is found, with the command that mends it.

use std::fs;

use node::{ClusterOptions, ImagePreloads, Options};
use observer::{Blind, Seen, Source};
use protocol::reports::{DoctorReport, Finding, FindingState};

use super::support::{FakeKubelet, options, shows};

/// Shows this once.
struct Once(Option<Seen>);

impl Source for Once {
    fn watch(
        &mut self,
        _: &std::sync::atomic::AtomicBool,
        take: &mut dyn FnMut(Seen),
    ) -> Result<(), Blind> {
        self.0.take().into_iter().for_each(take);
        Ok(())
    }
}

async fn checked(options: &Options, gpus: u8) -> DoctorReport {
    let (options, on) = (options.clone(), tokio::runtime::Handle::current());
    let look = move || node::check(&options, Box::new(Once(Some(shows(gpus)))), &on);
    tokio::task::spawn_blocking(look).await.unwrap()
}

#[track_caller]
fn of<'a>(report: &'a DoctorReport, check: &str) -> &'a Finding {
    report.findings.iter().find(|finding| finding.check == check).unwrap()
}

#[tokio::test]
async fn a_node_that_has_all_of_it() {
    let kubelet = FakeKubelet::running();
    let report = checked(&options(kubelet.path()), 2).await;
    for check in ["options", "kubelet", "pod resources", "pid namespace", "driver", "device files"]
    {
        let finding = of(&report, check);
        assert_eq!(finding.state, FindingState::Ok, "{finding:?}");
    }
    assert_eq!(of(&report, "driver").found, "shows 2 GPUs");
    let own = format!("the kubelet is process {}", std::process::id());
    assert!(of(&report, "pid namespace").found.ends_with(&own));
    assert!(of(&report, "image preloads").found.contains("without --keep-image-preloads"));
    assert_eq!(of(&report, "other plugins").found, "none for GPUs");
    // NVIDIA's, and one that has ended.
    let folder = kubelet.path().join("kubelet/device-plugins");
    let _rival = std::os::unix::net::UnixListener::bind(folder.join("nvidia-gpu.sock")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(folder.join("old-gpu.sock")).unwrap());
    let report = checked(&options(kubelet.path()), 2).await;
    let finding = of(&report, "other plugins");
    assert!(finding.state == FindingState::Note && finding.found.starts_with("nvidia-gpu.sock in"));
    // Nothing is wrong without these.
    for check in ["API server", "permissions", "node"] {
        assert_eq!(of(&report, check).state, FindingState::Note);
    }
}

#[tokio::test]
async fn whatever_is_broken_is_found_and_names_the_command_that_mends_it() {
    let kubelet = FakeKubelet::running();
    let library = kubelet.path().join("library");
    let missing = library.join("libadd_path.so");
    let whole = options(kubelet.path());
    let broken = async |options: Options, gpus, check: &str| {
        let report = checked(&options, gpus).await;
        let finding = of(&report, check).clone();
        assert!(!report.healthy && finding.state == FindingState::Broken, "{finding:?}");
        assert!(finding.mend.is_some_and(|mend| !mend.is_empty()));
        finding.found
    };
    fs::write(&missing, "text").unwrap();
    assert!(broken(whole.clone(), 2, "library").await.contains("no library"));
    fs::remove_file(&missing).unwrap();
    assert!(broken(whole.clone(), 2, "library").await.contains("libadd_path.so"));
    assert_eq!(broken(whole.clone(), 0, "driver").await, "no GPU is shown");
    let elsewhere = Options { kubelet: kubelet.path().join("nowhere"), ..whole.clone() };
    assert!(broken(elsewhere.clone(), 2, "options").await.contains("--kubelet-dir"));
    let report = checked(&elsewhere, 2).await;
    for check in ["kubelet", "pod resources", "pid namespace"] {
        assert_eq!(of(&report, check).state, FindingState::Skipped);
    }
    let hook = |program: &str| {
        let (cdi, program) = (kubelet.path().join("cdi"), program.into());
        Options { image_preloads: Some(ImagePreloads { cdi, program }), ..whole.clone() }
    };
    assert!(
        broken(hook("/no/program"), 2, "image preloads").await.starts_with("--hook /no/program")
    );
    let report = checked(&hook("/no/program"), 2).await;
    assert_eq!(of(&report, "CDI folder").state, FindingState::Skipped);
    let own = std::env::current_exe().unwrap();
    let report = checked(&hook(own.to_str().unwrap()), 2).await;
    let finding = of(&report, "image preloads");
    assert!(
        finding.state == FindingState::Ok && finding.found.ends_with("can be started on the node"),
        "{finding:?}"
    );
    let file = kubelet.path().join("no-kubeconfig");
    let cluster = Some(ClusterOptions { node: "here".to_owned(), kubeconfig: Some(file) });
    let unreachable = Options { cluster, ..whole };
    assert!(broken(unreachable.clone(), 2, "API server").await.contains("--kubeconfig"));
    assert_eq!(of(&checked(&unreachable, 2).await, "permissions").state, FindingState::Skipped);
    fs::remove_file(kubelet.path().join("kubelet/device-plugins/kubelet.sock")).unwrap();
    assert!(broken(options(kubelet.path()), 2, "kubelet").await.contains("kubelet.sock"));
}

//! The tiers `cluster` and `engines`: a real control plane and kubelet, Docker, Podman and systemd, with the simulated GPU
//! in the place of the driver, in namespaces that see the machine's files and change none.

use super::checks::{BUILD, PYTHON};
use super::job::{Job, Outcome};
use super::{Check, Need, Tier, tools};
use crate::process::files_in;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const PACKAGES: &str = "docker.io containerd runc podman conmon libgpgme11 libassuan0 libsubid4 golang-github-containers-common golang-github-containers-image systemd-container";

const CLUSTER: Need = Need::Tool(
    |_| std::env::var_os("SLUICE_TEST_CLUSTER").is_some(),
    "its programs take 7 to 10 minutes to build once; SLUICE_TEST_CLUSTER=1 builds and runs it",
);
const STARTED: Need = Need::Tool(
    |_| std::env::var_os("SLUICE_TEST_ENGINES").is_some(),
    "they are started for it, as root; SLUICE_TEST_ENGINES=1 gets and runs them",
);
const NAMESPACES: Need =
    Need::Tool(tools::has_namespaces, "it needs root, and no namespaces may be made here");
const KUBERNETES: Need = Need::Tool(
    get_kubernetes,
    "it needs Debian's source package kubernetes of bookworm, which is built with Go",
);
const CONTAINERD: Need =
    Need::Tool(tools::has_containerd, "it needs containerd of Debian 13, and runc");
const ENGINES: Need = Need::Tool(
    tools::has_engines,
    "they come from Debian's packages docker.io, podman and systemd-container",
);
const COMPOSE: Need =
    Need::Tool(tools::has_compose, "docker-compose and podman-compose come from PyPI");
const SYSTEMD: Need =
    Need::Tool(|_| Path::new("/lib/systemd/systemd").exists(), "systemd is not on this machine");

pub(super) fn table(table: &mut Vec<Check>) {
    let check = |tier, name: &str, work: fn(&Job) -> Outcome| Check::single(tier, name, work);
    let cluster = |name: &str, work: fn(&Job) -> Outcome| {
        check(Tier::Cluster, name, work)
            .needs(CLUSTER)
            .needs(NAMESPACES)
            .needs(KUBERNETES)
            .needs(Need::Check(BUILD))
    };
    let engines = |name: &str, work: fn(&Job) -> Outcome| {
        check(Tier::Engines, name, work)
            .needs(STARTED)
            .needs(NAMESPACES)
            .needs(ENGINES)
            .needs(Need::Check(BUILD))
    };
    table.extend([
        cluster("cluster: a pod gets a GPU", |job| {
            in_namespaces(job, "cluster/run", &[&kubernetes(job)])
        }),
        cluster("cluster: pods are scheduled", |job| {
            in_namespaces(job, "cluster/scheduling", &[&kubernetes(job)])
        }),
        cluster("cluster: containerd runs the hook", |job| {
            in_namespaces(
                job,
                "cluster/containerd",
                &[&kubernetes(job), &job.built("tools/containerd/root")],
            )
        })
        .needs(CONTAINERD),
        cluster("cluster: just the rights that are deployed", |job| {
            in_namespaces(job, "cluster/rights", &[&kubernetes(job)])
        })
        .needs(PYTHON),
        cluster("cluster: an API server calls the webhook", |job| {
            in_namespaces(job, "cluster/webhook", &[&kubernetes(job)])
        })
        .needs(PYTHON),
        engines("containers of docker", |job| in_engine(job, "docker")).needs(COMPOSE),
        engines("containers of podman", |job| in_engine(job, "podman")).needs(COMPOSE),
        engines("the units under systemd", |job| {
            in_namespaces(job, "engines/systemd", &[&job.built("tools/engines")])
        })
        .needs(SYSTEMD),
    ]);
}

fn in_engine(job: &Job, engine: &str) -> Outcome {
    in_namespaces(job, "engines/run", &[Path::new(engine), &job.built("tools/engines")])
}

/// Runs a script there, with these arguments, the folder of the build and a folder of its own. Every process that it
/// starts ends with its namespaces.
fn in_namespaces(job: &Job, script: &str, arguments: &[&Path]) -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new("unshare");
    command
        .args(
            "--mount --net --pid --fork --mount-proc --kill-child --propagation private bash"
                .split(' '),
        )
        .arg(format!("scripts/{script}.sh"))
        .args(arguments)
        .args([&job.built("debug"), folder.path()]);
    let outcome = job.run(&mut command);
    if outcome.is_err() {
        for log in files_in(&folder.path().join("log")) {
            job.run(Command::new("tail").args(["-n", "15", "-v"]).arg(log))?;
        }
    }
    outcome
}

/// The folder of Kubernetes' programs, whose name says of which package they are.
fn kubernetes(job: &Job) -> PathBuf {
    let folders = files_in(&job.built("tools/kubernetes"));
    folders.into_iter().find(|folder| folder.join("kubelet").exists()).unwrap_or_default()
}

/// The oldest version that is promised (docs/kubernetes.md), built once.
fn get_kubernetes(job: &Job) -> bool {
    // The vendored reflect2 1.0.1 reads the maps of Go 1.18 and later wrongly: API servers end by SIGSEGV. Debian has 1.0.2.
    let script = r#"
        mkdir -p "$1/apt"/{lists/partial,parts}
        rm -rf "$1/work"
        mkdir -p "$1/work"
        cd "$1/work"
        mirror=$(apt-get indextargets --format '$(SITE)' | grep -m 1 '/debian/\?$')
        printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s bookworm main\n' "$mirror" >../apt/parts/source.list
        from=(apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$1/apt/parts" -o Dir::State::Lists="$1/apt/lists")
        "${from[@]}" update || true
        "${from[@]}" source --download-only kubernetes
        apt-get -qq download golang-github-modern-go-reflect2-dev
        dpkg-deb -x golang-github-modern-go-reflect2-dev_*.deb reflect2
        dsc=$(compgen -G 'kubernetes_*.dsc')
        to=$1/built-$(basename "$dsc" .dsc | tr -c 'a-zA-Z0-9.\n' -)-$(sha256sum "$dsc" | cut -c 1-16)
        tar -xf kubernetes_*.orig.tar.gz --strip-components 1
        rm vendor/github.com/modern-go/reflect2/*.go
        cp reflect2/usr/share/gocode/src/github.com/modern-go/reflect2/*.go vendor/github.com/modern-go/reflect2
        mkdir -p .go/src/k8s.io
        ln -s ../../.. .go/src/k8s.io/kubernetes
        export GOPATH="$PWD/.go" GOCACHE="$PWD/.cache" CGO_ENABLED=0 KUBE_GIT_VERSION=v1.20.2
        make WHAT='cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kubelet'
        cd _output/bin
        mkdir "$1/draft"
        cp kube-apiserver kube-controller-manager kube-scheduler kubelet "$1/draft"
        mv "$1/draft" "$to"
        rm -rf "$1/work""#;
    let has = |job: &Job| kubernetes(job).join("kubelet").exists();
    let installed = ["go", "rsync", "jq", "make", "etcd", "curl", "ip", "openssl"]
        .iter()
        .all(|program| crate::process::find_program(program).is_some());
    has(job)
        || ((installed
            || tools::install("golang-go rsync jq make etcd-server curl iproute2 openssl"))
            && tools::fetched(
                "Kubernetes' programs, which take some minutes once",
                script,
                &[&job.built("tools/kubernetes")],
            )
            && has(job))
}

//! Images that preload libraries of their own: real processes, started by a runtime that follows CDI and runs hooks.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use node::{ImagePreloads, Options};

use super::contained::{Image, TAKE, built, memory, prepared, run_in};
use super::kubelets_side::{Admitted, Node, with_gates};
use super::skipped::skipped;
use super::support::{Agent, FakeKubelet, shows};

const OURS: &str = "/run/sluice/library/libcuda_limiter.so\n/run/sluice/library/libadd_path.so\n";
/// Says that it is loaded, and when: the limiter has the first word.
const TRACE: &str = r#"
#include <stdio.h>
__attribute__((constructor)) static void begin(void) { fputs("the image's own is loaded\n", stderr); }
"#;
const LOADED: &str = "the image's own is loaded";

/// A node whose agent keeps what images preload, and an image that preloads something.
struct Keeping {
    kubelet: FakeKubelet,
    node: Node,
    agent: Agent,
    image: PathBuf,
    cdi: Vec<PathBuf>,
}

impl Keeping {
    /// `None`: containers cannot be started here, which is said.
    async fn start() -> Option<Self> {
        let mut kubelet = prepared()?;
        kubelet.start();
        let folder = kubelet.path().to_owned();
        let (cdi, program) = (folder.join("cdi"), built("hypervisor"));
        let image_preloads = Some(ImagePreloads { cdi: cdi.clone(), program });
        let options = Options { image_preloads, ..with_gates(&folder) };
        let agent = Agent::start(options, shows(2));
        let node = Node::of(&mut kubelet, 2).await;
        let image = folder.join("own-image");
        fs::create_dir_all(image.join("etc")).unwrap();
        fs::create_dir_all(image.join("opt")).unwrap();
        trace(&folder, &image.join("opt/libtrace.so"));
        Some(Self { kubelet, node, agent, image, cdi: vec![cdi] })
    }

    fn names(&self, text: &str) {
        fs::write(self.image.join("etc/ld.so.preload"), text).unwrap();
    }

    async fn gets(&self, pod: &str) -> Admitted {
        let container = self.node.admit(pod, "main", 10, 1).await;
        self.node.start(&container).await.unwrap();
        container
    }

    async fn run(&self, container: &Admitted, name: &str, words: &[&str]) -> (Option<i32>, String) {
        let image = Image { files: Some(&self.image), cdi: &self.cdi };
        let (folder, answer) = (self.kubelet.path(), &container.answer);
        run_in(folder, None, image, answer, name, &[], words).end().await
    }
}

/// Builds a library that leaves a trace.
fn trace(folder: &Path, to: &Path) {
    let source = folder.join("trace.c");
    fs::write(&source, TRACE).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(to).arg(source).status();
    assert!(built.unwrap().success());
}

fn list(container: &Admitted) -> String {
    fs::read_to_string(container.folder.join("ld.so.preload")).unwrap()
}

#[tokio::test]
async fn what_an_image_preloads_is_loaded_and_its_processes_are_held_to_their_limits() {
    let Some(keeping) = Keeping::start().await else { return };
    let container = keeping.gets("pod").await;
    keeping.names("# its own\n/opt/libtrace.so:/usr/lib/sluice/libcuda_limiter.so");
    // A container that restarts has the same list.
    for name in ["first", "again"] {
        let (code, said) = keeping.run(&container, name, &TAKE).await;
        assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
        assert!(said.contains(LOADED), "{said}");
        assert_eq!(list(&container), format!("{OURS}/opt/libtrace.so\n"));
    }
    // Whatever its environment says, and what the container sees of it.
    let script = "cat /etc/ld.so.preload /run/sluice/allocation/image-preloads.txt; echo x >> /etc/ld.so.preload";
    let (code, said) =
        keeping.run(&container, "seen", &["env", "-i", "/bin/sh", "-c", script]).await;
    assert!(code != Some(0) && said.contains("Read-only file system"), "{said}");
    assert!(said.contains(&format!("{OURS}/opt/libtrace.so\n")), "{said}");
    assert!(said.contains("kept 1; libraries of Sluice, which are there already: 1"), "{said}");
    // Others have what their own images name.
    let other = keeping.gets("other").await;
    fs::remove_file(keeping.image.join("etc/ld.so.preload")).unwrap();
    let (code, said) = keeping.run(&other, "other", &TAKE).await;
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    assert!(!said.contains(LOADED), "{said}");
    assert_eq!(
        (list(&other), list(&container)),
        (OURS.to_owned(), format!("{OURS}/opt/libtrace.so\n"))
    );
    keeping.agent.stop().await.unwrap();
}

/// As without the hook: the image's is hidden, and the container starts with its limits.
#[tokio::test]
async fn an_image_whose_list_is_refused_starts_with_its_limits() {
    let Some(keeping) = Keeping::start().await else { return };
    let container = keeping.gets("pod").await;
    let file = keeping.image.join("etc/ld.so.preload");
    keeping.names(&"/opt/libtrace.so\n".repeat(2000));
    let (code, said) = keeping.run(&container, "long", &TAKE).await;
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    assert!(!said.contains(LOADED), "{said}");
    assert_eq!(list(&container), OURS);
    let told = fs::read_to_string(container.folder.join("image-preloads.txt")).unwrap();
    assert!(told.contains("has 34000 bytes; expected at most 16384"), "{told}");
    // A link leads where the container would find it, and not to the node's file.
    fs::remove_file(&file).unwrap();
    let nodes = keeping.kubelet.path().join("nodes");
    fs::write(&nodes, "/opt/libtrace.so").unwrap();
    symlink(&nodes, &file).unwrap();
    let (code, said) = keeping.run(&container, "link", &["true"]).await;
    assert_eq!((code, &*said), (Some(0), ""));
    assert_eq!(list(&container), OURS);
    keeping.agent.stop().await.unwrap();
}

/// A runtime that knows nothing of CDI, and one whose hook cannot write: all is as without.
#[tokio::test]
async fn without_the_hook_containers_start_with_their_limits() {
    let Some(keeping) = Keeping::start().await else { return };
    keeping.names("/opt/libtrace.so");
    let container = keeping.gets("pod").await;
    let old = Keeping { cdi: Vec::new(), ..keeping };
    let (code, said) = old.run(&container, "old", &TAKE).await;
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    assert!(!said.contains(LOADED), "{said}");
    // The hook of another folder of allocations.
    let cdi = old.kubelet.path().join("cdi/sluice.dev-preload.json");
    let text = fs::read_to_string(&cdi).unwrap();
    let allocations = old.kubelet.path().join("allocations").display().to_string();
    fs::write(&cdi, text.replace(&allocations, "/run/others")).unwrap();
    let elsewhere = Keeping { cdi: vec![old.kubelet.path().join("cdi")], ..old };
    let (code, said) = elsewhere.run(&container, "elsewhere", &TAKE).await;
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    assert!(!said.contains(LOADED), "{said}");
    assert_eq!(list(&container), OURS);
    elsewhere.agent.stop().await.unwrap();
}

/// Where it is: on the machine, or unpacked by `scripts/test.sh`.
fn runc() -> Option<PathBuf> {
    let unpacked =
        Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools/runc/usr/sbin/runc");
    let mut all =
        [PathBuf::from("/usr/sbin/runc"), PathBuf::from("/usr/bin/runc"), unpacked].into_iter();
    all.find(|path| path.is_file())
}

/// runc itself, with the bundle and the edits that a runtime with CDI makes.
#[tokio::test]
async fn runc_runs_the_hook_before_it_changes_the_root() {
    let Some(runc) = runc() else {
        skipped("runc is not to be had here; it is Debian's package of that name");
        return;
    };
    let Some(keeping) = Keeping::start().await else { return };
    keeping.names("/opt/libtrace.so\n");
    let container = keeping.gets("pod").await;
    let folder = keeping.kubelet.path();
    let text = fs::read(folder.join("cdi/sluice.dev-preload.json")).unwrap();
    let cdi: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let mut hook = cdi["devices"][0]["containerEdits"]["hooks"][0].clone();
    hook.as_object_mut().unwrap().remove("hookName");
    let bundle = folder.join("bundle");
    let root = bundle.join("rootfs");
    fs::create_dir_all(&root).unwrap();
    let copied = Command::new("cp").arg("-a").arg(keeping.image.join(".")).arg(&root).status();
    assert!(copied.unwrap().success());
    let mut mounts =
        vec![serde_json::json!({"destination": "/proc", "type": "proc", "source": "proc"})];
    let mut bind = |source: &str, destination: &str, mode: &str| {
        let options = ["rbind", mode, "rprivate"];
        mounts.push(serde_json::json!({"destination": destination, "type": "bind", "source": source, "options": options}));
    };
    for name in ["usr", "bin", "sbin", "lib", "lib64"] {
        let path = Path::new("/").join(name);
        match fs::read_link(&path) {
            Ok(to) => symlink(to, root.join(name)).unwrap(),
            Err(_) if path.is_dir() => bind(&path.display().to_string(), &format!("/{name}"), "ro"),
            Err(_) => {}
        }
    }
    let image = folder.join("image").display().to_string();
    bind(&image, "/image", "ro");
    bind(&format!("{image}/shared"), "/shared", "rw");
    for one in &container.answer.mounts {
        bind(&one.host_path, &one.container_path, if one.read_only { "ro" } else { "rw" });
    }
    let config = serde_json::json!({
        "ociVersion": "1.0.2", "root": {"path": "rootfs"}, "mounts": mounts,
        "process": {
            "args": TAKE, "cwd": "/", "user": {"uid": 0, "gid": 0},
            "env": ["PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=/image", "SLUICE_FAKE_NODE=/shared/fake-node"],
        },
        "hooks": {"createRuntime": [hook]},
        "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "ipc"}], "resources": {"devices": []}},
    });
    fs::write(bundle.join("config.json"), config.to_string()).unwrap();
    let state = folder.join("runc");
    let run = |id: &str| {
        let mut runc = Command::new(&runc);
        let done = runc.arg("--root").arg(&state).args(["run", "--bundle"]).arg(&bundle).arg(id);
        let done = done.output().unwrap();
        (done.status.code(), [done.stdout, done.stderr].concat())
    };
    for id in ["first", "again"] {
        let (code, said) = run(&format!("sluice-{}-{id}", std::process::id()));
        let said = String::from_utf8_lossy(&said).into_owned();
        if said.contains("cgroup") && code != Some(0) {
            skipped(&format!("runc cannot run here: {said}"));
            break;
        }
        assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
        assert!(said.contains(LOADED), "{said}");
        assert_eq!(list(&container), format!("{OURS}/opt/libtrace.so\n"));
    }
    keeping.agent.stop().await.unwrap();
}

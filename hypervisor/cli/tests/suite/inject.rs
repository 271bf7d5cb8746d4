//! `sluice inject` prepares a root, and its programs are limited whatever their environment.

use crate::support::{Sluice, outcome};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const PRELOAD: &str = "etc/ld.so.preload";
const LIMITER: &str = "usr/lib/sluice/libcuda_limiter.so";
const ADD_PATH: &str = "usr/lib/sluice/libadd_path.so";
const BOTH: &str = "/usr/lib/sluice/libcuda_limiter.so\n/usr/lib/sluice/libadd_path.so\n";

fn inject(sluice: &Sluice, options: &[&str], root: &Path) -> (i32, String, String) {
    sluice.built("libadd_path.so", "add-path");
    outcome(sluice.command().arg("inject").args(options).arg(root))
}

/// A root with this machine's glibc, as systems have it that keep all below /usr.
fn with_glibc(sluice: &Sluice) -> PathBuf {
    let root = sluice.folder().join("root");
    for folder in ["usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/bin", "etc", "proc", "dev", "tmp"]
    {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for (link, target) in [("lib", "usr/lib"), ("lib64", "/usr/lib64"), ("bin", "usr/bin")] {
        symlink(target, root.join(link)).unwrap();
    }
    let copy = |from: &Path, to: &str| {
        fs::copy(from, root.join(to)).unwrap();
    };
    copy(Path::new("/lib64/ld-linux-x86-64.so.2"), "usr/lib64/ld-linux-x86-64.so.2");
    let libc = loaded("libc.so.6");
    for name in ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libgcc_s.so.1"] {
        let from = libc.with_file_name(name);
        copy(&from, &format!("usr/lib/x86_64-linux-gnu/{name}"));
    }
    root
}

/// Where this process has a library of the system's from.
fn loaded(name: &str) -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with(&format!("/{name}"))).unwrap();
    PathBuf::from(line.split_whitespace().last().unwrap())
}

fn with_musl(sluice: &Sluice) -> PathBuf {
    let root = sluice.folder().join("musl");
    fs::create_dir_all(root.join("lib")).unwrap();
    fs::write(root.join("lib/ld-musl-x86_64.so.1"), "").unwrap();
    root
}

/// All files with their contents.
fn files(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

#[test]
fn in_twice_looked_at_and_out_again() {
    let sluice = Sluice::new();
    let root = with_glibc(&sluice);
    fs::write(root.join(PRELOAD), "/opt/other.so # stays\n").unwrap();
    let before = files(&root);

    let (code, said, error) = inject(&sluice, &["--check"], &root);
    assert_eq!(code, 1, "{error}");
    assert!(said.contains("libcuda_limiter.so is missing"), "{said}");
    assert!(said.contains("does not name /usr/lib/sluice/libadd_path.so"), "{said}");
    assert_eq!(files(&root), before, "a look changes nothing");

    let (code, said, error) = inject(&sluice, &[], &root);
    assert_eq!(code, 0, "{error}");
    assert!(said.contains(": prepared (glibc 2."), "{said}");
    let preload = || fs::read_to_string(root.join(PRELOAD)).unwrap();
    assert_eq!(preload(), format!("/opt/other.so # stays\n{BOTH}"));
    let built = sluice.built("libcuda_limiter.so", "cuda-limiter");
    assert_eq!(fs::read(root.join(LIMITER)).unwrap(), fs::read(built).unwrap());
    assert_eq!(inject(&sluice, &["--check"], &root).0, 0);

    let prepared = files(&root);
    let (code, said, _) = inject(&sluice, &[], &root);
    assert_eq!((code, files(&root) == prepared), (0, true));
    assert!(said.contains("already prepared"), "{said}");

    // Another build is noticed and replaced.
    fs::write(root.join(ADD_PATH), "old").unwrap();
    let (code, said, _) = inject(&sluice, &["--check"], &root);
    assert_eq!(code, 1);
    assert!(said.contains("libadd_path.so is from another build"), "{said}");
    assert_eq!(inject(&sluice, &[], &root).0, 0);
    assert_eq!(files(&root), prepared);

    let (code, said, error) = inject(&sluice, &["--remove"], &root);
    assert_eq!(code, 0, "{error}");
    assert!(said.contains(": removed"), "{said}");
    assert_eq!(files(&root), before);
    assert!(!root.join("usr/lib/sluice").exists());
    let (code, said, _) = inject(&sluice, &["--remove"], &root);
    assert_eq!(code, 0);
    assert!(said.contains("nothing to remove"), "{said}");
}

#[test]
fn what_cannot_be_prepared_is_left_as_it_was() {
    let sluice = Sluice::new();
    let refused = |root: &Path, why: &str, status: i32| {
        let before = files(root);
        let (code, _, error) = inject(&sluice, &[], root);
        assert_eq!(code, status, "{error}");
        assert!(error.contains(why), "{error}");
        assert_eq!(files(root), before);
    };
    let empty = sluice.folder().join("empty");
    fs::create_dir(&empty).unwrap();
    refused(&empty, "no program of this root can load a library", 2);

    let root = with_glibc(&sluice);
    fs::write(root.join("usr/lib/x86_64-linux-gnu/libc.so.6"), "no library").unwrap();
    refused(&root, "cannot determine the version of this glibc", 2);

    // What tests build unwinds by a library that musl does not have.
    refused(
        &with_musl(&sluice),
        "the root has musl, and libcuda_limiter.so needs libgcc_s.so.1",
        2,
    );

    let (code, _, error) = inject(&sluice, &[], &sluice.folder().join("none"));
    assert_eq!(code, 70, "{error}");
    let (code, _, error) = inject(&sluice, &["--check", "--remove"], &empty);
    assert_eq!(code, 2, "{error}");
}

#[test]
fn nothing_outside_of_the_root_is_touched() {
    let sluice = Sluice::new();
    let outside = sluice.folder().join("outside");
    fs::create_dir(&outside).unwrap();
    for link in ["etc", "usr/lib/sluice"] {
        let root = with_glibc(&sluice);
        let _ = fs::remove_dir(root.join(link));
        symlink(&outside, root.join(link)).unwrap();
        let (code, _, error) = inject(&sluice, &[], &root);
        assert_eq!(code, 70, "{link}: {error}");
        assert_eq!(files(&outside), [], "{link}");
        fs::remove_dir_all(&root).unwrap();
    }
    // A link in place of the file itself is not followed either.
    let root = with_glibc(&sluice);
    fs::write(outside.join("file"), "kept").unwrap();
    symlink(outside.join("file"), root.join(PRELOAD)).unwrap();
    let (code, _, error) = inject(&sluice, &[], &root);
    assert_eq!(code, 70, "{error}");
    assert!(error.contains("symbolic link"), "{error}");
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "kept");
}

/// Runs a line of shell as a root of its own namespaces; `None` where the system allows none.
fn in_namespaces(sluice: &Sluice, line: &str) -> Option<(i32, String, String)> {
    let unshare = |line: &str| {
        let mut command = sluice.command_of("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-ec", line]);
        outcome(&mut command)
    };
    let (code, _, error) = unshare("mount -t tmpfs none /tmp");
    if code != 0 {
        crate::skipped::skipped(&format!("no namespaces here: {error}"));
        return None;
    }
    Some(unshare(line))
}

/// Programs of a prepared root load the limiter without LD_PRELOAD, also those that clear their environment.
#[test]
fn programs_of_a_prepared_root_load_the_library() {
    let sluice = Sluice::new();
    let root = with_glibc(&sluice);
    fs::copy("/usr/bin/env", root.join("usr/bin/env")).unwrap();
    fs::copy("/bin/cat", root.join("usr/bin/cat")).unwrap();
    assert_eq!(inject(&sluice, &[], &root).0, 0);
    let root = root.to_str().unwrap();
    let line = format!(
        "mount --rbind /proc {root}/proc; exec chroot {root} /bin/env -i /bin/env -i TF_PATH=/added PATH=/bin /bin/env \
         -u TF_PATH /bin/cat /proc/self/maps /proc/self/environ"
    );
    let Some((code, said, error)) = in_namespaces(&sluice, &line) else { return };
    assert_eq!(code, 0, "{error}");
    assert!(error.is_empty(), "{error}");
    for part in ["/usr/lib/sluice/libcuda_limiter.so", "/usr/lib/sluice/libadd_path.so"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(said.ends_with("PATH=/bin:/added\0"), "{said}");
}

/// `/etc/ld.so.preload` names the limiter by the session's folder: so it knows its session without any variable.
#[test]
fn a_child_that_clears_its_environment_keeps_its_limits() {
    let sluice = Sluice::new();
    let tenant = sluice.built("tenant", "tenant");
    let (folder, node) = (sluice.folder().display(), sluice.folder().join("node"));
    let line = format!(
        "touch {folder}/preload; mkdir {folder}/etc; cp /etc/ld.so.cache /etc/passwd {folder}/etc 2>/dev/null || true; \
         mount --bind {folder}/etc /etc; echo $SLUICE_SESSION_DIR/libcuda_limiter.so > /etc/ld.so.preload; \
         for of in '' 'SLUICE_SESSION_DIR=/nowhere TENSOR_FUSION_CUDA_MEM_LIMIT={{}}'; do \
         env -i $of SLUICE_FAKE_NODE={} LD_LIBRARY_PATH=$SLUICE_SESSION_DIR/fake-driver \
         env {} mem --api alloc --chunk 128MiB --cap 4GiB; done",
        node.display(),
        tenant.display()
    );
    let unshared = ["--user", "--map-root-user", "--mount", "sh", "-ec"];
    if in_namespaces(&sluice, "true").is_none() {
        return;
    }
    let mut command = sluice.run(&["--fake-gpu", "--mem", "1GiB", "--", "unshare"]);
    let (code, said, error) = outcome(command.args(unshared).arg(&line));
    assert_eq!(code, 0, "{said}{error}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}{error}");
    for line in lines {
        let granted =
            line.split("\"granted_bytes\":").nth(1).and_then(|rest| rest.split([',', '}']).next());
        assert_eq!(granted, Some("536870912"), "{said}{error}");
    }
}

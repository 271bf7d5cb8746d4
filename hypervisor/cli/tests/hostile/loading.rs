//! Programs into which the loader could not load the limiter. It would run them without, and only say so.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::other_users::{User, for_all_users};
use crate::program::Program;
use crate::support::{Sluice, outcome};

const LIMITER: &str = "libcuda_limiter.so";

/// Copies of the limiter that tests make: they are large, and would stay.
struct Copies(PathBuf);

impl Copies {
    /// The copy among the names in `LD_PRELOAD`.
    fn of(preloaded: &str) -> Self {
        let last = Path::new(preloaded.trim_end().rsplit(':').next().unwrap());
        let folder = last.parent().unwrap();
        let name = folder.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("copy-"), "{preloaded}");
        Self(folder.to_owned())
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `sluice run` of a program that becomes another user, with the parts in `bin`.
fn as_another(sluice: &Sluice, user: &User, bin: &Path, script: &str) -> Command {
    let mut command = sluice.command_of(bin.join("sluice"));
    command.args(["run", "--fake-gpu", "--daemon", "none", "--mem", "1GiB", "--"]);
    let id = user.uid.to_string();
    command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]);
    command.args(["sh", "-c", script]);
    command
}

/// As after a build below `/root`: only root can reach the library.
#[test]
fn a_program_that_becomes_another_user_has_the_limiter() {
    let (sluice, user) = (Sluice::new(), User::new());
    let bin = for_all_users(&sluice);
    let library = bin.join(LIMITER);
    let loaded = "echo $LD_PRELOAD; grep -c 'r-xp.*libcuda_limiter' /proc/self/maps";
    let first = |mode_of_folder: u32, mode: u32| {
        fs::set_permissions(&library, PermissionsExt::from_mode(mode)).unwrap();
        fs::set_permissions(&bin, PermissionsExt::from_mode(mode_of_folder)).unwrap();
        let (code, stdout, stderr) = outcome(&mut as_another(&sluice, &user, &bin, loaded));
        assert_eq!((code, stderr.as_str()), (0, ""), "{mode_of_folder:o} {mode:o}");
        let (preloaded, copies) = stdout.split_once('\n').unwrap();
        assert_eq!(copies, "1\n", "{preloaded}");
        preloaded.to_owned()
    };
    let plain = first(0o711, 0o644);
    assert!(plain.ends_with(library.to_str().unwrap()), "{plain}");
    let copied = first(0o700, 0o755);
    let copies = Copies::of(&copied);
    let again = first(0o711, 0o600);
    assert_eq!(copies.0, Copies::of(&again).0);
}

/// The second name is loaded then, and refuses.
#[test]
fn another_user_without_the_sessions_folder_is_refused() {
    let (mut sluice, user) = (Sluice::new(), User::new());
    let bin = for_all_users(&sluice);
    // The command is where only root can reach the library; the rest is not.
    let closed = sluice.folder().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::copy(bin.join(LIMITER), closed.join(LIMITER)).unwrap();
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
    sluice.set("SLUICE_LIBRARY", closed.join(LIMITER).to_str().unwrap());
    let driver = bin.join("driver");
    fs::create_dir(&driver).unwrap();
    for (file, name) in
        [("libfake_cuda.so", "libcuda.so.1"), ("libfake_nvml.so", "libnvidia-ml.so.1")]
    {
        symlink(bin.join(file), driver.join(name)).unwrap();
    }
    sluice.set("LD_LIBRARY_PATH", driver.to_str().unwrap());
    let program = bin.join(Program::compiled().file_name().unwrap());
    let inner = as_another(&sluice, &user, &bin, "\"$0\" < /dev/null");
    let mut command = sluice.command_of(inner.get_program());
    let arguments: Vec<_> = inner.get_args().map(ToOwned::to_owned).collect();
    let split = arguments.iter().position(|argument| argument == "--").unwrap() + 1;
    command.args(&arguments[..split]);
    command.args([
        "sh",
        "-c",
        r#"echo $LD_PRELOAD; rm -rf "$SLUICE_SESSION_DIR"; exec "$@""#,
        "sh",
    ]);
    command.args(&arguments[split..]).arg(&program);
    let (_, stdout, stderr) = outcome(&mut command);
    let (preloaded, rest) = stdout.split_once('\n').unwrap();
    let _copies = Copies::of(preloaded);
    assert_eq!(rest, "ready 800\n", "{stderr}");
    assert!(stderr.contains("GPU calls of this process fail"), "{stderr}");
}

#[test]
fn what_is_no_library_is_not_preloaded() {
    let sluice = Sluice::new();
    let whole = fs::read(sluice.built(LIMITER, "cuda-limiter")).unwrap();
    let cut = sluice.folder().join("cut.so");
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let empty = sluice.folder().join("empty.so");
    fs::write(&empty, "").unwrap();
    for (wrong, problem) in [
        (Path::new("/etc/passwd"), "not a shared library"),
        (&empty, "not a shared library"),
        (&cut, "the file is truncated"),
    ] {
        let mut command = sluice.run(&[]);
        let (code, stdout, stderr) =
            outcome(command.args(["--", "echo", "ran"]).env("SLUICE_LIBRARY", wrong));
        assert_eq!((code, stdout.as_str()), (4, ""), "{stderr}");
        assert!(stderr.contains(wrong.to_str().unwrap()) && stderr.contains(problem), "{stderr}");
    }
}

#[test]
fn what_may_not_be_executed_is_not_preloaded() {
    let sluice = Sluice::new();
    let mounted = sluice.folder().join("noexec");
    fs::create_dir(&mounted).unwrap();
    let script = format!(
        "mount -t tmpfs -o noexec none '{0}' && cp '{1}' '{0}' && SLUICE_LIBRARY='{0}/{LIMITER}' exec \"$0\" run --daemon none -- echo ran",
        mounted.display(),
        sluice.built(LIMITER, "cuda-limiter").display()
    );
    let mut command = sluice.command_of("unshare");
    command.args(["-m", "sh", "-c", &script, env!("CARGO_BIN_EXE_sluice")]);
    let (code, stdout, stderr) = outcome(&mut command);
    assert_eq!((code, stdout.as_str()), (4, ""), "{stderr}");
    assert!(stderr.contains("noexec"), "{stderr}");
}

/// As in most containers: nothing in `/dev/shm` may be executed. The copy is in `/run` then; where nothing there may
/// be, either, the program does not run.
#[test]
fn a_copy_is_made_where_it_may_be_executed() {
    let (sluice, user) = (Sluice::new(), User::new());
    let bin = for_all_users(&sluice);
    let library = bin.join(LIMITER);
    fs::set_permissions(&library, PermissionsExt::from_mode(0o600)).unwrap();
    let inner = as_another(
        &sluice,
        &user,
        &bin,
        "echo $LD_PRELOAD; grep -c 'r-xp.*libcuda_limiter' /proc/self/maps",
    );
    for (option, expected) in [("exec", 0), ("noexec", 70)] {
        let script = format!(
            "mount -t tmpfs -o noexec none /dev/shm && mount -t tmpfs -o {option} none /run && exec \"$0\" \"$@\""
        );
        let mut command = sluice.command_of("unshare");
        command.args(["-m", "sh", "-c", &script]).arg(inner.get_program()).args(inner.get_args());
        let (code, stdout, stderr) = outcome(&mut command);
        assert_eq!(code, expected, "{stderr}");
        if expected == 0 {
            let (preloaded, copies) = stdout.split_once('\n').unwrap();
            assert!(preloaded.contains(":/run/sluice-library/copy-"), "{preloaded}");
            assert_eq!((copies, stderr.as_str()), ("1\n", ""));
        } else {
            assert_eq!(stdout, "");
            assert!(
                stderr.contains("copying it for them failed") && stderr.contains("noexec"),
                "{stderr}"
            );
        }
    }
}

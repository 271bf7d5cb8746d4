//! What a session leaves behind, and what is still in use.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{DONE, Program, REFUSED};
use crate::support::{Sluice, age, eventually, outcome, text};

/// Starts another session, which removes what nobody uses; it looks as if nobody had begun to use
/// `session` for long.
fn clean(sluice: &Sluice, session: &Path) {
    age(session, std::time::Duration::from_secs(3600));
    let (code, _, stderr) = outcome(sluice.run(&[]).args(["--", "true"]));
    assert_eq!((code, stderr.as_str()), (0, ""));
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// As a daemon that shows its state in its title: its environment reads as nothing, and it holds no
/// descriptor that it did not open.
#[test]
fn a_program_that_hides_its_environment_keeps_its_session() {
    let sluice = Sluice::new();
    let mut program = Program::run(&sluice, &["--mem", "2GiB"]);
    assert_eq!(program.tell("hide"), DONE);
    kill(program.child.id());
    program.child.wait().unwrap();
    for _ in 0..3 {
        clean(&sluice, &program.session);
    }
    assert_eq!(program.tell("take 1024"), DONE);
    assert_eq!(program.tell("take 1024"), REFUSED);
    assert!(program.session.is_dir());
    let session = program.session.clone();
    kill(program.pid);
    drop(program);
    eventually("the leftover is removed", || {
        clean(&sluice, &session);
        !session.exists()
    });
}

/// What a program left behind when `sluice run` ended: without the limiter, without a variable, and
/// with all descriptors closed.
#[test]
fn what_a_program_leaves_behind_keeps_its_session() {
    let sluice = Sluice::new();
    let pid_file = sluice.pid_file();
    for close in
        ["", "for f in /proc/self/fd/*; do f=${f##*/}; [ $f -gt 2 ] && eval \"exec $f>&-\"; done; "]
    {
        let script = format!(
            "echo $SLUICE_SESSION_DIR; env -i PIDFILE=\"$PIDFILE\" bash -c '{close}echo $$ > \"$PIDFILE\"; exec sleep 60' > /dev/null 2>&1 &
             while ! [ -s \"$PIDFILE\" ]; do sleep 0.01; done"
        );
        let (code, stdout, stderr) = outcome(sluice.run(&[]).args(["--", "bash", "-c", &script]));
        assert_eq!((code, stderr.as_str()), (0, ""));
        let session = PathBuf::from(stdout.trim_end());
        assert!(session.is_dir(), "{session:?} is gone");
        if close.is_empty() {
            // The lock that it inherited is all there is.
            clean(&sluice, &session);
            assert!(session.is_dir(), "{session:?} is gone");
        }
        let pid = fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        fs::remove_file(&pid_file).unwrap();
        kill(pid);
        eventually("the leftover is removed", || {
            clean(&sluice, &session);
            !session.exists()
        });
    }
}

/// The session's folder, from what `sluice run` printed of it.
#[track_caller]
fn is_gone(stdout: &str) {
    let session = PathBuf::from(stdout.lines().next().unwrap());
    assert!(session.is_absolute() && !session.exists(), "{session:?} is left");
}

/// What became `sluice` by execve(2) had started something before.
#[test]
fn children_from_before_are_not_the_programs() {
    let sluice = Sluice::new();
    let script = r#"sleep 60 > /dev/null 2>&1 & echo $! > "$PIDFILE"; exec "$0" run --daemon none -- sh -c 'echo $SLUICE_SESSION_DIR'"#;
    let mut command = sluice.command_of("sh");
    let (code, stdout, stderr) =
        outcome(command.args(["-c", script, env!("CARGO_BIN_EXE_sluice")]));
    kill(fs::read_to_string(sluice.pid_file()).unwrap().trim().parse().unwrap());
    assert_eq!((code, stderr.as_str()), (0, ""));
    is_gone(&stdout);
}

/// The kernel ends what is left with it.
#[test]
fn the_first_process_of_a_namespace_leaves_no_folder() {
    let sluice = Sluice::new();
    let mut command = sluice.command_of("unshare");
    command.args(["-pf", "--mount-proc", env!("CARGO_BIN_EXE_sluice"), "run", "--daemon", "none"]);
    let script = "echo $SLUICE_SESSION_DIR; sleep 60 > /dev/null 2>&1 &";
    let (code, stdout, stderr) = outcome(command.args(["--", "sh", "-c", script]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    is_gone(&stdout);
}

/// However few descriptors there are, and wherever that stops `sluice run`.
#[test]
fn a_start_that_fails_leaves_no_folder() {
    let user = crate::other_users::User::new();
    let sluice = Sluice::new();
    let bin = crate::other_users::for_all_users(&sluice);
    let mut ran = 0;
    for most in 4..40 {
        // As a user who has no other sessions.
        let mut command = user.command(&sluice, "sh");
        let script = format!(
            "ulimit -n {most}; exec \"$0\" run --fake-gpu --mem 1GiB --daemon none -- true"
        );
        let (code, _, stderr) = outcome(command.args(["-c", &script]).arg(bin.join("sluice")));
        assert!([0, 3, 70, 126, 127].contains(&code), "{most}: {code} {stderr}");
        ran += u32::from(code == 0);
        let left: Vec<_> = fs::read_dir(user.base()).into_iter().flatten().collect();
        assert!(left.is_empty(), "{most}: {code} {stderr} {left:?}");
    }
    assert!(ran > 0);
}

/// The link to the limiter stays, and every session uses the same.
#[test]
fn the_link_to_the_limiter_outlives_its_session() {
    let mut sluice = Sluice::new();
    let spaced = sluice.folder().join("a b");
    fs::create_dir(&spaced).unwrap();
    let library = spaced.join("libcuda_limiter.so");
    fs::copy(sluice.built("libcuda_limiter.so", "cuda-limiter"), &library).unwrap();
    sluice.set("SLUICE_LIBRARY", library.to_str().unwrap());
    let link = || {
        let output = sluice.run(&[]).args(["--", "sh", "-c", "echo $LD_PRELOAD"]).output().unwrap();
        let preloaded = text(&output.stdout);
        preloaded.trim_end().rsplit(':').next().unwrap().to_owned()
    };
    let first = link();
    assert_eq!(fs::read_link(&first).unwrap(), library);
    assert_eq!(link(), first);
    fs::remove_dir_all(Path::new(&first).parent().unwrap()).unwrap();
}

mod timed {
    use super::*;
    use std::process::{Child, Command};
    use std::time::Instant;

    struct Foreign(Vec<Child>);

    impl Drop for Foreign {
        fn drop(&mut self) {
            for child in &mut self.0 {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// Other programs of the machine, with nothing in their environment.
    #[test]
    fn foreign_processes_cost_nothing() {
        let sluice = Sluice::new();
        let run = || {
            let start = Instant::now();
            assert_eq!(outcome(sluice.run(&[]).args(["--", "true"])).0, 0);
            start.elapsed()
        };
        let fastest = || (0..5).map(|_| run()).min().unwrap();
        let alone = fastest();
        let start = || Command::new("sleep").arg("60").env_clear().spawn().unwrap();
        let foreign = Foreign((0..60).map(|_| start()).collect());
        let beside = fastest();
        drop(foreign);
        let alone = alone.max(fastest());
        println!("{alone:?} alone, {beside:?} beside 60 processes");
        assert!(beside < alone * 3, "{alone:?}, {beside:?}");
    }
}

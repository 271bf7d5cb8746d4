//! Processes that hide from the other processes of their session while they live.

use crate::common::{GIB, MEMORY_LIMIT, Outcome, Stage, first_device, outcome};

/// The result of the asker's allocation: `alive` while the holder lived, `dead` after it was killed.
fn hide(holder: &str, asker: &str) -> Option<Outcome> {
    let stage = Stage::new();
    let program = stage.compile("hide.c", "hide", &[]);
    let mut command = stage.limited(program);
    command.args([holder, asker]).env(MEMORY_LIMIT, first_device(3 * GIB));
    let seen = outcome(command.env("EMPTY", stage.session("empty")));
    if seen.code() == 77 {
        // Namespaces and changes of the root need privileges.
        println!("{holder}, {asker}: {}", seen.stderr);
        return None;
    }
    Some(seen.succeeded())
}

#[test]
fn a_holder_that_hides_is_alive_until_it_is_killed() {
    for holder in
        ["no", "fds", "child", "fds+child", "pids", "fds+pids", "fds+root", "fds+pids+root"]
    {
        for asker in ["no", "fds", "pids", "fds+pids"] {
            let Some(seen) = hide(holder, asker) else { continue };
            println!("{holder}, {asker}: {}", seen.stdout);
            assert_eq!((seen.value("alive"), seen.value("dead")), (2, 0), "{holder}, {asker}");
            assert!(seen.value("ms") < 1000, "{holder}, {asker}: {seen:#?}");
        }
    }
}

/// Under its id, `/proc` shows the first process of the machine, whose mappings the asker may not read.
#[test]
fn the_first_process_of_a_namespace_with_the_proc_outside_is_alive_until_it_is_killed() {
    for holder in ["first", "first+fds", "first+child"] {
        for asker in ["user", "no", "fds"] {
            let Some(seen) = hide(holder, asker) else { continue };
            println!("{holder}, {asker}: {}", seen.stdout);
            assert_eq!((seen.value("alive"), seen.value("dead")), (2, 0), "{holder}, {asker}");
            assert!(seen.value("ms") < 1000, "{holder}, {asker}: {seen:#?}");
        }
    }
}

/// It can no longer reach the page's file, so it cannot ask which processes live.
#[test]
fn who_cannot_tell_takes_nothing() {
    for holder in ["no", "fds", "fds+pids"] {
        let Some(seen) = hide(holder, "fds+root") else { continue };
        assert_eq!(seen.value("alive"), 2, "{holder}: {seen:#?}");
    }
}

//! Memory limits that are added, changed and removed.

use serde_json::Value;

use super::program::{
    CONTEXT, DEVICE, DONE, GIB, OTHER, Program, REFUSED, device_of, limit, lines_of, remove,
    session_of, status,
};
use crate::support::Sluice;

#[test]
fn a_running_program_is_given_more_and_less() {
    let sluice = Sluice::new();
    let mut program = Program::run(&sluice, &["--mem", "2GiB"]);
    assert_eq!(program.tell("take 1024"), DONE);
    assert_eq!(program.tell("take 1024"), REFUSED);
    assert_eq!(program.tell("info"), "2048 512");

    let (code, stdout, stderr) = limit(&sluice, &program.name(), &["--mem", "4GiB"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(
        stdout,
        format!(
            "{} of user {}\n{}: memory was 2GiB, is now 4GiB\n",
            program.name(),
            rustix::process::geteuid().as_raw(),
            DEVICE.to_lowercase().replace("gpu", "GPU")
        )
    );
    assert_eq!(program.tell("take 1024"), DONE, "the next allocation sees it");
    assert_eq!(program.tell("info"), "4096 1536");

    // The session is named by the program's own id; the limit is below what is in use.
    let (code, stdout, _) = limit(&sluice, &program.pid.to_string(), &["--mem", "1GiB"]);
    assert_eq!(code, 0);
    assert!(
        stdout.contains("2.5 GiB is in use: allocations fail until 1.5 GiB is freed"),
        "{stdout}"
    );
    assert_eq!(program.tell("take 1"), REFUSED);
    let memory = &device_of(&sluice, &program)["memory"];
    assert_eq!(memory["limit"], GIB);
    assert_eq!(memory["used"], 2 * GIB + CONTEXT);
    assert_eq!((&memory["over"], &memory["left"]), (&Value::from(GIB + CONTEXT), &Value::from(0)));
    assert_eq!(memory["growth_refused"], true);
    let lines = lines_of(&sluice, &program);
    assert!(lines.contains("OVER by 1.5 GiB: allocations fail"), "{lines}");

    // It keeps what it has. What it gives back, it may take again.
    assert_eq!(program.tell("give"), DONE);
    assert_eq!(program.tell("take 1"), REFUSED);
    assert_eq!(program.tell("give"), DONE);
    assert_eq!(program.tell("take 512"), DONE);
    assert_eq!(program.tell("take 1"), REFUSED);
    assert_eq!(device_of(&sluice, &program)["memory"]["growth_refused"], false);
}

#[test]
fn percentages_are_of_the_device() {
    let sluice = Sluice::new();
    let mut program = Program::run(&sluice, &["--mem", "12.5%"]);
    assert_eq!(device_of(&sluice, &program)["memory"]["limit"], 2 * GIB);
    assert_eq!(program.tell("info"), "2048 1536");
    let sluice_pid = program.child.id().to_string();
    let (code, _, stderr) = limit(&sluice, &sluice_pid, &["--mem", "25%", "--device", "0"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(program.tell("info"), "4096 3584");
}

#[test]
fn a_memory_limit_comes_and_goes_while_the_program_runs() {
    for options in [&["--compute", "50"][..], &[]] {
        let sluice = Sluice::new();
        let mut program = Program::run(&sluice, options);
        assert_eq!(program.tell("take 1024"), DONE);
        assert_eq!(program.tell("info"), format!("16384 {}", 16384 - 1536));
        let memory = &device_of(&sluice, &program)["memory"];
        assert_eq!((&memory["limit"], &memory["left"]), (&Value::Null, &Value::Null));
        assert_eq!(memory["used"], GIB + CONTEXT);
        assert_eq!(memory["growth_refused"], false);

        let (code, stdout, stderr) = limit(&sluice, &program.name(), &["--mem", "2GiB"]);
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(stdout.ends_with(": memory was no limit, is now 2GiB\n"), "{stdout}");
        assert_eq!(program.tell("info"), "2048 512");
        assert_eq!(program.tell("take 512"), DONE);
        assert_eq!(program.tell("take 2"), REFUSED);

        assert_eq!(limit(&sluice, &program.name(), &["--no-mem"]).0, 0);
        assert_eq!(program.tell("take 4096"), DONE);
        // Below what is in use.
        let (code, stdout, _) = limit(&sluice, &program.name(), &["--mem", "5GiB"]);
        assert_eq!(code, 0);
        assert!(stdout.contains("6.0 GiB is in use: allocations fail until 1.0 GiB"), "{stdout}");
        assert_eq!(program.tell("take 2"), REFUSED);
        let lines = lines_of(&sluice, &program);
        assert!(lines.contains("OVER by 1.0 GiB: allocations fail"), "{lines}");
        // All that it took before there was a limit is known, and can be given back.
        for _ in 0..3 {
            assert_eq!(program.tell("give"), DONE);
        }
        assert_eq!(device_of(&sluice, &program)["memory"]["used"], CONTEXT);

        let (code, stdout, stderr) = limit(&sluice, &program.name(), &["--no-mem"]);
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(stdout.ends_with(": memory was 5GiB, is now no limit\n"), "{stdout}");
        assert_eq!(program.tell("take 8192"), DONE);
    }
}

#[test]
fn a_part_on_the_host_comes_and_goes_with_the_limit() {
    let sluice = Sluice::new();
    let mut program = Program::run(&sluice, &[]);
    let name = program.name();
    let (code, stdout, _) = limit(&sluice, &name, &["--mem", "24GiB", "--mem-real", "2GiB"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("no limit, is now 24GiB (2GiB on the device)"), "{stdout}");
    assert_eq!(program.tell("take 4096"), DONE);
    let kinds = &device_of(&sluice, &program)["memory"]["by_kind"];
    assert_eq!((&kinds["overcommitted"], &kinds["data"]), (&(4 * GIB).into(), &0.into()));
    assert_eq!(limit(&sluice, &name, &["--no-mem"]).0, 0);
    assert_eq!(program.tell("take 4096"), DONE);
    let memory = &device_of(&sluice, &program)["memory"];
    assert_eq!((&memory["by_kind"]["data"], &memory["real"]), (&(4 * GIB).into(), &Value::Null));
}

/// A session has a limit on one device, its program uses another, and one more program joins.
#[test]
fn a_session_with_a_limit_elsewhere_is_given_one_here() {
    let sluice = Sluice::new();
    let unique = format!("test-{}", sluice.folder().display());
    let elsewhere = format!(r#"{{"{OTHER}": "1GiB"}}"#);
    let variables =
        [("VGPU_POD_UID", unique.as_str()), ("TENSOR_FUSION_CUDA_MEM_LIMIT", &elsewhere)];
    let mut first = Program::preloaded(&sluice, &variables);
    let mut second = Program::preloaded(&sluice, &variables);
    assert_eq!((first.tell("take 1024"), second.tell("take 1024")), (DONE.into(), DONE.into()));
    let session = session_of(&status(&sluice), first.pid)["session"].clone();
    let session = session.as_str().unwrap();
    let (code, _, stderr) = limit(&sluice, session, &["--mem", "4GiB"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!((first.tell("info"), second.tell("info")), ("4096 1024".into(), "4096 1024".into()));
    let mut third = Program::preloaded(&sluice, &variables);
    assert_eq!(third.tell("info"), "4096 512");
    assert_eq!(first.tell("take 512"), DONE);
    for program in [&mut first, &mut second, &mut third] {
        assert_eq!(program.tell("take 2"), REFUSED);
    }
    drop((first, second));
    remove(&sluice, third);
}

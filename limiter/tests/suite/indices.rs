//! The meaning of a limit's index if a process sees only some of the devices.

use crate::common::{COMPUTE_LIMIT, GIB, MEMORY_LIMIT, Outcome, SESSION_DIR, Stage, outcome};
use std::process::Command;

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Memory of a device of the simulated node.
const WHOLE: u64 = 16 * GIB;

/// With the library preloaded, in a session of its own.
fn preloaded(stage: &Stage, program: &str) -> Command {
    let name = program.trim_end_matches(".c");
    let mut command = stage.limited(stage.compile(program, name, &[]));
    // Sessions are shared with processes of the same pod.
    command.env_remove(SESSION_DIR).env("POD_NAME", stage.folder());
    command
}

fn of(stage: &Stage, program: &str, settings: &[(&str, &str)]) -> Outcome {
    outcome(preloaded(stage, program).envs(settings.iter().copied()))
}

#[test]
fn limits_for_devices_that_are_hidden_fail_closed() {
    let stage = Stage::new();
    let (zero, one) = (r#"{"0": "1g"}"#, r#"{"1": "1g"}"#);
    for settings in [
        &[(MEMORY_LIMIT, zero), (VISIBLE, "1")][..],
        &[(MEMORY_LIMIT, one), (VISIBLE, "0")],
        &[(COMPUTE_LIMIT, r#"{"0": 30}"#), (VISIBLE, "1")],
        &[("CUDA_MEM_LIMIT_0", "1g"), (VISIBLE, "1")],
        &[("CUDA_DEVICE_MEMORY_LIMIT_1", "1g"), (VISIBLE, "1")],
        // One kind of limit would apply to the device, and the other would not.
        &[(MEMORY_LIMIT, zero), (COMPUTE_LIMIT, r#"{"1": 30}"#), (VISIBLE, "1")],
    ] {
        let refused = of(&stage, "stubborn.c", settings);
        assert_eq!((refused.code(), refused.value("granted")), (42, 0), "{refused:#?}");
        let [line] = refused.complaints()[..] else { panic!("{refused:#?}") };
        let named = line.starts_with(&format!("sluice: {}", settings[0].0));
        assert!(named && line.contains("nothing would be limited"), "{line}");
        assert!(line.contains("GPU calls of this process fail"), "{line}");
    }
    // Each process sees one device whose limit is known, like the ranks of a job with one device each.
    for (settings, total) in [
        ([(MEMORY_LIMIT, r#"{"0": "1g", "1": "2g"}"#), (VISIBLE, "0")], GIB),
        ([(MEMORY_LIMIT, r#"{"0": "1g", "1": "2g"}"#), (VISIBLE, "1")], 2 * GIB),
        ([(MEMORY_LIMIT, zero), (VISIBLE, "0,1")], GIB),
        ([("CUDA_DEVICE_MEMORY_LIMIT_0", "1g"), (VISIBLE, "1")], GIB),
    ] {
        let outcome = of(&stage, "looks.c", &settings).silent();
        assert_eq!(outcome.value("cuda0_total"), total, "{outcome:#?}");
    }
}

/// The first process decides nothing for others, to whom an index means another device.
#[test]
fn a_visible_index_is_that_of_each_process() {
    let limits = [("CUDA_DEVICE_MEMORY_LIMIT_0", "4g"), ("CUDA_DEVICE_MEMORY_LIMIT_1", "1g")];
    let choices = [Some("1"), None, Some("1,0"), Some("0"), None, Some("1")];
    let stage = Stage::new();
    for visible in choices {
        let mut command = preloaded(&stage, "looks.c");
        command.envs(limits).envs(visible.map(|chosen| (VISIBLE, chosen)));
        let outcome = outcome(&mut command).silent();
        assert_eq!(outcome.value("cuda0_total"), 4 * GIB, "{visible:?}: {outcome:#?}");
        if visible.is_none_or(|chosen| chosen.len() > 1) {
            assert_eq!(outcome.value("cuda1_total"), GIB, "{visible:?}: {outcome:#?}");
        }
    }
}

/// NVML lists all devices, whatever a program has made visible.
#[test]
fn devices_outside_of_the_choice_can_be_looked_at() {
    let stage = Stage::new();
    let settings = [
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "4g"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "1g"),
        (VISIBLE, "1"),
    ];
    for arguments in [&["nvml"][..], &[]] {
        let mut command = preloaded(&stage, "looks.c");
        let outcome = outcome(command.envs(settings).args(arguments)).silent();
        for (device, total) in [(0, WHOLE), (1, 4 * GIB)] {
            let value = |name: &str| outcome.value(&format!("nvml{device}{name}"));
            assert_eq!((value(""), value("_total")), (0, total), "{outcome:#?}");
            assert_eq!(value("_sum"), total, "{outcome:#?}");
        }
    }
    // Limits that apply to no visible device: CUDA is refused, and NVML shows the devices.
    let hidden = [(MEMORY_LIMIT, r#"{"1": "1g"}"#), (VISIBLE, "0")];
    let mut command = preloaded(&stage, "looks.c");
    let outcome = outcome(command.envs(hidden).arg("nvml")).silent();
    assert_eq!((outcome.value("nvml0_total"), outcome.value("nvml1_total")), (WHOLE, GIB));
}

#[test]
fn a_refused_call_writes_nothing() {
    let stage = Stage::new();
    let outcome = of(&stage, "looks.c", &[("CUDA_MEM_LIMIT", "much"), (VISIBLE, "1")]);
    assert_ne!(outcome.code(), 0, "cuInit is refused: {outcome:#?}");
    let mut command = preloaded(&stage, "looks.c");
    let outcome = crate::common::outcome(command.env("CUDA_MEM_LIMIT", "much").arg("nvml"));
    for device in [0, 1] {
        let value = |name: &str| outcome.value(&format!("nvml{device}{name}"));
        assert_ne!(value(""), 0, "{outcome:#?}");
        assert_eq!((value("_total"), value("_sum")), (7, 14), "{outcome:#?}");
    }
}

/// In a container with only the compute capability, the driver's own figures do.
#[test]
fn without_nvml_an_index_is_that_of_the_only_device() {
    let stage = Stage::new();
    for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
        std::fs::remove_file(stage.driver().join(name)).unwrap();
    }
    let half = r#"{"0": "50%"}"#;
    for (settings, total) in [
        ([(MEMORY_LIMIT, r#"{"0": "1g"}"#), (VISIBLE, "0")], GIB),
        ([(MEMORY_LIMIT, r#"{"1": "2g"}"#), (VISIBLE, "1")], 2 * GIB),
        ([(MEMORY_LIMIT, half), (VISIBLE, "0")], WHOLE / 2),
    ] {
        let outcome = of(&stage, "looks.c", &settings).silent();
        assert_eq!(outcome.value("cuda0_total"), total, "{outcome:#?}");
    }
    let said = of(&stage, "stubborn.c", &[(MEMORY_LIMIT, r#"{"0": "1g"}"#), (VISIBLE, "0")]);
    assert_eq!((said.value("first_error"), said.value("granted")), (2, 0), "{said:#?}");
    let [line] = said.complaints()[..] else { panic!("{said:#?}") };
    assert!(line.contains("libnvidia-ml.so.1 is missing"), "{line}");
    // Nothing tells which of two devices is meant.
    let refused = of(&stage, "stubborn.c", &[(MEMORY_LIMIT, r#"{"0": "1g"}"#)]);
    let [line] = refused.complaints()[..] else { panic!("{refused:#?}") };
    assert!(line.contains("its index is not known without libnvidia-ml.so.1"), "{line}");
}

/// Like a GPU that shares the machine's memory.
#[test]
fn a_device_of_whose_memory_nvml_says_nothing_is_limited() {
    let stage = Stage::new();
    let program = stage.compile("looks.c", "looks", &[]);
    for (memory, total) in [("1GiB", GIB), ("50%", WHOLE / 2)] {
        let mut command = stage.run(&["--mem", memory]);
        command.arg(&program).env("SLUICE_FAKE_NVML_MEMORY", "0");
        let outcome = outcome(&mut command).silent();
        assert_eq!(outcome.value("cuda0_total"), total, "{outcome:#?}");
        assert_eq!(outcome.value("nvml0"), 3, "NOT_SUPPORTED, as without Sluice: {outcome:#?}");
    }
}

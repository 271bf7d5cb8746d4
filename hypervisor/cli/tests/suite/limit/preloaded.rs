//! Programs with the library preloaded, without `sluice run`.

use std::fs;
use std::path::Path;

use super::program::{DEVICE, GIB, Program, device_of, limit, remove, session_of, status};
use crate::support::{Sluice, outcome};

#[test]
fn a_session_without_sluice_run_is_listed_and_changed() {
    let sluice = Sluice::new();
    let unique = format!("test-{}", sluice.folder().display());
    let mut program = Program::preloaded(
        &sluice,
        &[("VGPU_POD_UID", &unique), ("TENSOR_FUSION_CUDA_MEM_LIMIT", r#"{"0": "12.5%"}"#)],
    );
    assert_eq!(program.tell("info"), "2048 1536");
    let session = session_of(&status(&sluice), program.pid);
    let name = session["session"].as_str().unwrap().to_owned();
    assert!(name.starts_with("env-"), "{name}");
    let (code, _, stderr) = limit(&sluice, &program.pid.to_string(), &["--mem", "3GiB"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(program.tell("info"), "3072 2560");
    let directory = session["directory"].as_str().unwrap().to_owned();
    drop(program);
    // It has no process now; its limits are kept for the next program.
    let lists = |arguments: &[&str]| outcome(sluice.command().arg("status").args(arguments)).1;
    assert!(!lists(&[]).contains(&name) && lists(&["--all"]).contains(&name));
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn without_nvml_the_driver_tells_the_size() {
    if Path::new("/proc/driver/nvidia/version").exists() {
        return; // There is an NVML.
    }
    let sluice = Sluice::new();
    let unique = format!("test-{}", sluice.folder().display());
    let half = format!(r#"{{"{DEVICE}": "50%"}}"#);
    let variables = [("VGPU_POD_UID", unique.as_str()), ("TENSOR_FUSION_CUDA_MEM_LIMIT", &half)];
    let mut program = Program::preloaded_beside(&sluice, &[], &variables);
    assert!(program.tell("info").starts_with("8192 "));
    remove(&sluice, program);
}

#[test]
fn variables_of_other_systems_overcommit_and_balance() {
    let sluice = Sluice::new();
    for (number, (name, value, real)) in [
        ("CUDA_MEM_RATIO_0", "2", 10 * GIB),
        ("CUDA_MEM_OVERSOLD", "true", 16 * GIB),
        ("CUDA_OVERSUBSCRIBE", "1", 16 * GIB),
    ]
    .into_iter()
    .enumerate()
    {
        let unique = format!("test-{number}-{}", sluice.folder().display());
        let variables = [
            ("VGPU_POD_UID", unique.as_str()),
            ("CUDA_MEM_LIMIT_0", "20g"),
            (name, value),
            ("CUDA_CORE_LIMIT", "30"),
            ("CUDA_CORE_SOFT_LIMIT_0", "60"),
            ("CUDA_TASK_PRIORITY", "1"),
        ];
        let program = Program::preloaded(&sluice, &variables);
        let device = device_of(&sluice, &program);
        let memory = &device["memory"];
        assert_eq!(
            (&memory["limit"], &memory["real"]),
            (&(20 * GIB).into(), &real.into()),
            "{name}"
        );
        assert_eq!(device["compute"]["policy"], "balance");
        assert_eq!(device["compute"]["soft_ppm"], 600_000);
        assert_eq!(device["compute"]["priority"], "low");
        remove(&sluice, program);
    }
}

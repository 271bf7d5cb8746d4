//! Older drivers that lack newer functions: limits apply, and missing functions are reported as absent.

use crate::common::{MEMORY_LIMIT, Stage, built, first_device, holds, outcome};
use fake_node::older::{self, Older};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

#[test]
fn what_a_driver_lacks_is_not_found_in_it() {
    let names = ["cuLaunchKernelEx", "cuCtxCreate_v4", "cuGetProcAddress_v2", "cuLaunchKernel"];
    let found = [("470", 1), ("535", 3), ("550", 3)];
    for (older, (branch, expected)) in older::ALL.iter().zip(found) {
        assert_eq!(older.branch, branch);
        let stage = Stage::of_driver(older);
        let program = stage.compile("names.c", "names", &[]);
        let said = |library: &str, names: &[&str]| {
            outcome(stage.native(&program).arg(library).args(names)).succeeded()
        };
        assert_eq!(said("libcuda.so.1", &names).value("found"), expected, "{branch}");
        for (library, prefix) in [("libcuda.so.1", "cu"), ("libnvidia-ml.so.1", "nvml")] {
            let all: Vec<&str> = older.lacking().filter(|name| name.starts_with(prefix)).collect();
            let said = said(library, &all);
            assert_eq!(said.value("asked"), all.len() as u64);
            assert_eq!(
                (said.value("found"), said.value("answered")),
                (0, 0),
                "{branch}: {said:#?}"
            );
        }
        // Through `cuGetProcAddress` a name leads to the newest form that exists.
        let base = said("libcuda.so.1", &["cuLaunchKernelEx", "cuMemAlloc"]);
        assert_eq!(base.value("answered"), if branch == "470" { 1 } else { 2 });
    }
}

#[test]
fn memory_limits_hold_on_each() {
    for older in &older::ALL {
        let stage = Stage::of_driver(older);
        let loader = stage.compile("loader.c", "loader", &[]);
        let limited = |program: &Path| {
            let mut command = stage.limited(program);
            command.env(MEMORY_LIMIT, first_device("1GiB"));
            command
        };
        for how in ["now", "exec", "fork-before-load"] {
            println!("{}: {how}", older.branch);
            holds(outcome(limited(&loader).arg(how)));
        }
        for api in ["alloc", "pitch", "managed", "async", "pool", "vmm", "array", "graph"] {
            let mut command = limited(&built("tenant"));
            command.args(["mem", "--api", api, "--chunk", "32MiB", "--cap", "8GiB"]);
            let said = outcome(&mut command).silent().json();
            let granted = said["granted_bytes"].as_u64().unwrap() >> 20;
            assert!((480..=512).contains(&granted), "{} {api}: {said}", older.branch);
        }
    }
}

/// The functions of a state in the output of `sluice hooks`.
fn in_state(said: &serde_json::Value, state: &str) -> BTreeSet<String> {
    let functions = said["functions"].as_array().unwrap().iter();
    let those = functions.filter(|function| function["state"] == state);
    those.map(|function| function["symbol"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn sluice_hooks_says_what_is_absent() {
    let report = |older: Option<&Older>| {
        let stage = Stage::new();
        // `sluice` uses the parts that lie beside it.
        let parts = stage.folder().join("parts");
        std::fs::create_dir(&parts).unwrap();
        for name in ["sluice", "tenant", "fake-nvidia-smi", "libcuda_limiter.so"] {
            assert!(Command::new("cp").arg(built(name)).arg(&parts).status().unwrap().success());
        }
        for name in ["libfake_cuda.so", "libfake_nvml.so"] {
            let bytes = std::fs::read(built(name)).unwrap();
            let bytes = older.map_or_else(|| bytes.clone(), |older| older.taken_out_of(&bytes));
            std::fs::write(parts.join(name), bytes).unwrap();
        }
        let mut command = stage.native(parts.join("sluice"));
        if let Some(older) = older {
            command.env(older::VARIABLE, older.branch);
        }
        outcome(command.args(["hooks", "--fake-gpu", "--json"])).silent().json()
    };
    let newest = report(None);
    let all: BTreeSet<String> =
        ["patched", "absent"].iter().flat_map(|state| in_state(&newest, state)).collect();
    for older in &older::ALL {
        let said = report(Some(older));
        let lacks: BTreeSet<String> =
            all.iter().filter(|name| older.lacks(name)).cloned().collect();
        let absent = in_state(&said, "absent");
        assert!(absent.is_superset(&lacks), "{}: {absent:?}", older.branch);
        // Functions that the simulated driver lacks are absent in each.
        assert_eq!(&absent - &lacks, &in_state(&newest, "absent") - &lacks, "{}", older.branch);
        assert_eq!(said["failed"], 0);
        let count = [("470", 59), ("535", 29), ("550", 23)];
        assert!(count.contains(&(older.branch, lacks.len())), "{}: {}", older.branch, lacks.len());
    }
}

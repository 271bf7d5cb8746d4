//! `tenant dense` and the cost measurements on the simulated GPU.

use crate::node::{Node, Steered, text};
use serde_json::Value;

fn number(result: &Value, key: &str) -> f64 {
    key.split('.')
        .fold(result, |value, key| &value[key])
        .as_f64()
        .unwrap_or_else(|| panic!("{key} is not a number: {result}"))
}

/// Checks that hold for every run. The device completes at most one second of kernels per second; how much less depends
/// on the machine.
fn check_dense(node: &Node, kernel_us: f64, arguments: &str) -> Value {
    let result = node.result(&format!("dense --kernel-us {kernel_us} {arguments}"));
    let (kernels, seconds) = (number(&result, "kernels"), number(&result, "seconds"));
    assert!(kernels >= 1.0, "{result}");
    assert!((number(&result, "rate") - kernels / seconds).abs() < 1.0, "{result}");
    assert!(kernels * kernel_us * 1e-6 <= seconds * 1.02 + 0.002, "more than possible: {result}");
    assert!(number(&result, "p50_ms") <= number(&result, "p99_ms"), "{result}");
    assert!(number(&result, "p99_ms") > 0.0, "{result}");
    result
}

#[test]
fn every_pattern_counts_what_the_device_completed() {
    for pattern in ["kernel", "ex", "coop", "graph", "multistream", "threads"] {
        let node = Node::new("1GiB");
        let result = check_dense(&node, 2000.0, &format!("--seconds 0.4 --pattern {pattern}"));
        assert_eq!(result["pattern"], pattern);
        assert!(number(&result, "seconds") >= 0.4, "{result}");
        if pattern == "graph" {
            assert_eq!(number(&result, "kernels") % 8.0, 0.0, "{result}");
        }
    }
}

#[test]
fn every_pattern_runs_with_per_thread_streams() {
    for pattern in ["kernel", "ex", "coop", "graph", "multistream", "threads"] {
        let node = Node::new("1GiB");
        check_dense(&node, 1000.0, &format!("--seconds 0.2 --ptsz --pattern {pattern}"));
    }
}

#[test]
fn short_and_long_kernels() {
    let node = Node::new("1GiB");
    for kernel_us in [15.0, 130.0, 20_000.0] {
        check_dense(&node, kernel_us, "--seconds 0.3");
    }
}

#[test]
fn iterations_of_an_earlier_run_replace_the_calibration() {
    let node = Node::new("1GiB");
    let first = check_dense(&node, 2000.0, "--seconds 0.1");
    assert!(number(&first, "kernel_us") > 0.0, "{first}");
    let iterations = number(&first, "iterations");
    let again = check_dense(&node, 2000.0, &format!("--seconds 0.1 --iterations {iterations}"));
    assert_eq!(number(&again, "iterations"), iterations);
    assert_eq!(again["kernel_us"], Value::Null);
}

#[test]
fn progress_counts_completed_kernels() {
    let node = Node::new("1GiB");
    let lines = node.lines("dense --kernel-us 2000 --seconds 1.5 --progress");
    let (last, progress) = lines.split_last().unwrap();
    assert!(progress.len() >= 2, "{lines:?}");
    for pair in progress.windows(2) {
        assert!(number(&pair[0], "kernels") <= number(&pair[1], "kernels"), "{lines:?}");
        assert!(number(&pair[0], "elapsed") < number(&pair[1], "elapsed"), "{lines:?}");
    }
    let shown = progress.last().unwrap();
    assert!(number(shown, "kernels") <= number(last, "kernels"), "{lines:?}");
    assert!(number(shown, "kernels") > 0.0, "{lines:?}");
}

/// Windows are on the device's clock; the kernels in whole windows are part of all kernels.
#[test]
fn windows_add_up_to_what_was_completed() {
    let node = Node::new("1GiB");
    for pattern in ["kernel", "threads"] {
        let arguments = format!("--seconds 1.1 --windows 0.25 --pattern {pattern}");
        let result = check_dense(&node, 2000.0, &arguments);
        let windows = result["windows"].as_array().unwrap();
        assert_eq!(windows.len(), 4, "{result}");
        let inside: f64 = windows.iter().map(|window| window.as_f64().unwrap()).sum();
        assert!(inside <= number(&result, "kernels") + 1e-6, "{result}");
        assert!(inside >= number(&result, "kernels") * 0.7, "{result}");
        for window in windows {
            assert!(window.as_f64().unwrap() <= 129.0, "more than possible: {result}");
        }
    }
    let without = check_dense(&node, 2000.0, "--seconds 0.1");
    assert_eq!((&without["windows"], &without["windows_at"]), (&Value::Null, &Value::Null));
}

/// Windows and progress describe the same time: compares the device's clock with the machine's.
#[test]
fn windows_begin_when_they_say() {
    let node = Node::new("1GiB");
    let arguments = "dense --kernel-us 500 --seconds 60 --windows 0.002 --progress=0.05 --commands";
    let mut steered = Steered::start(node.tenant(arguments));
    let told = steered.hear(16);
    let (result, _) = steered.end();
    let windows = result["windows"].as_array().unwrap();
    let until = |moment: f64| -> f64 {
        let whole = ((moment - number(&result, "windows_at")) / 0.002) as usize;
        windows.iter().take(whole).map(|window| window.as_f64().unwrap()).sum()
    };
    for line in &told {
        let (at, kernels) = (number(line, "at"), number(line, "kernels"));
        let (before, after) = (until(at - 0.3), until(at + 0.05));
        assert!((before..=after).contains(&kernels), "{before} to {after}: {line}");
    }
}

#[test]
fn a_run_pauses_goes_on_and_ends_as_it_is_told() {
    let node = Node::new("1GiB");
    let arguments = "dense --kernel-us 2000 --seconds 60 --progress=0.05 --windows 0.25 --commands";
    let mut steered = Steered::start(node.tenant(arguments));
    let counts =
        |lines: &[Value]| (number(&lines[0], "kernels"), number(lines.last().unwrap(), "kernels"));
    let (first, last) = counts(&steered.hear(4));
    assert!(last > first, "runs at first");
    steered.say("pause");
    // Earlier launches are done soon, even on a slow machine.
    steered.hear(10);
    let paused = steered.hear(10);
    assert_eq!(counts(&paused).0, counts(&paused).1, "{paused:?}");
    steered.say("what");
    steered.say("go");
    let again = steered.hear(20);
    assert!(counts(&again).1 > counts(&paused).1, "{again:?}");
    // End of file on stdin ends the run, like 'end'.
    let (result, err) = steered.end();
    // The device's clock continued, and an intended pause does not count as a wait.
    let paused_ms = 1e3 * (number(&paused[9], "at") - number(&paused[0], "at"));
    assert!(number(&result, "pauses.longest_ms") < paused_ms, "{result}");
    let windows = result["windows"].as_array().unwrap();
    assert!(windows.iter().any(|window| window.as_f64() == Some(0.0)), "{result}");
    assert!(number(&result, "seconds") < 30.0, "{result}");
    assert_eq!(err, "tenant: stdin: 'what': expected pause, go or end\n");
}

#[test]
fn several_devices_at_once() {
    let node = Node::new("1GiB");
    for pattern in ["kernel", "threads"] {
        let arguments =
            format!("dense --kernel-us 2000 --seconds 0.4 --devices 2 --pattern {pattern}");
        let output = node.tenant(&arguments).env("SLUICE_FAKE_DEVICES", "2").output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let devices = result["devices"].as_array().unwrap();
        assert_eq!(devices.len(), 2, "{result}");
        assert_ne!(devices[0]["uuid"], devices[1]["uuid"], "{result}");
        for device in devices {
            let (kernels, seconds) = (number(device, "kernels"), number(device, "seconds"));
            assert!(kernels >= 1.0 && kernels * 2e-3 <= seconds * 1.02 + 0.002, "{result}");
        }
        let sum: f64 = devices.iter().map(|device| number(device, "rate")).sum();
        assert!((number(&result, "rate") - sum).abs() < 0.01, "{result}");
    }
}

#[test]
fn more_devices_than_there_are() {
    let output = Node::new("1GiB")
        .tenant("dense --kernel-us 2000 --seconds 1 --devices 2")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(err, "tenant: device 1 does not exist: expected a number below 1\n");
}

#[test]
fn cpu_time_is_the_process_s() {
    let node = Node::new("1GiB");
    let result = check_dense(&node, 2000.0, "--seconds 0.4");
    let (cpu, seconds) = (number(&result, "cpu_seconds"), number(&result, "seconds"));
    // One thread launches; the simulated device has one of its own.
    assert!(cpu > 0.0 && cpu < 4.0 * seconds, "{result}");
}

#[test]
fn costs_of_single_calls() {
    let node = Node::new("1GiB");
    let launches = node.result("launch-cost --launches 2000");
    assert_eq!(number(&launches, "launches"), 2000.0);
    let kinds = node.result("launch-cost --launches 2000 --kinds 40 --touch 64KiB");
    for cost in [&launches, &kinds, &node.result("alloc-cost --pairs 50")["alloc_free"]] {
        assert!(number(cost, "median_ns") > 0.0, "{cost}");
        assert!(number(cost, "p1_ns") <= number(cost, "median_ns"), "{cost}");
        assert!(number(cost, "median_ns") <= number(cost, "p99_ns"), "{cost}");
        assert!(number(cost, "trimmed_ns") <= number(cost, "mean_ns"), "{cost}");
    }
}

#[test]
fn launches_are_measured_for_each_line() {
    let node = Node::new("1GiB");
    let mut steered = Steered::start(node.tenant("launch-cost --launches 100 --each-line"));
    steered.say("");
    assert_eq!(number(&steered.hear(1)[0], "launches"), 100.0);
    steered.say("");
    let (last, err) = steered.end();
    assert!(number(&last, "median_ns") > 0.0, "{last}");
    assert_eq!(err, "");
}

#[test]
fn without_a_driver_one_line_tells_so() {
    let empty = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tenant"))
        .args(["mem", "--api", "alloc", "--chunk", "1MiB", "--cap", "1GiB"])
        .env("LD_LIBRARY_PATH", empty.path())
        .output()
        .unwrap();
    if output.status.success() {
        // This machine has a driver.
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(output.stdout.is_empty(), "{}", text(&output));
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.starts_with("tenant: cannot load libcuda.so.1: "), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn wrong_input_is_named() {
    let node = Node::new("1GiB");
    let output = node.tenant("dense --kernel-us 100 --seconds 1 --device 7").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(err.contains("device 7 does not exist: expected a number below 1"), "{err}");
    for wrong in ["dense --kernel-us -5 --seconds 1", "mem --api alloc --chunk 0 --cap 1GiB"] {
        assert_eq!(node.tenant(wrong).output().unwrap().status.code(), Some(2), "{wrong}");
    }
}

//! `tenant mem` on the simulated GPU: memory granted by each family of calls.

use crate::node::Node;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const APIS: [&str; 10] =
    ["alloc", "pitch", "managed", "async", "pool", "vmm", "array", "array3d", "mipmap", "graph"];

fn bytes(result: &Value, key: &str) -> u64 {
    result[key].as_u64().unwrap_or_else(|| panic!("{key} is not a number: {result}"))
}

#[test]
fn stops_at_the_cap() {
    for api in APIS {
        let result =
            Node::new("1GiB").result(&format!("mem --api {api} --chunk 16MiB --cap 128MiB"));
        assert_eq!(result["stop"], "cap", "{result}");
        assert_eq!(result["stop_call"], Value::Null, "{result}");
        let granted = bytes(&result, "granted_bytes");
        assert!(granted <= 128 * MIB && granted > 112 * MIB, "{result}");
    }
}

#[test]
fn stops_where_the_device_is_full() {
    for api in APIS.into_iter().filter(|&api| api != "managed") {
        let result =
            Node::new("512MiB").result(&format!("mem --api {api} --chunk 16MiB --cap 2GiB"));
        assert_eq!(result["stop"], "CUDA_ERROR_OUT_OF_MEMORY", "{result}");
        let granted = bytes(&result, "granted_bytes");
        // 512 MiB minus 64 MiB for the context, minus the last incomplete chunk.
        assert!(granted <= 448 * MIB && granted > 400 * MIB, "{result}");
        assert_eq!(bytes(&result, "meminfo_total"), 512 * MIB, "{result}");
        assert!(bytes(&result, "meminfo_free") < 48 * MIB, "{result}");
    }
}

#[test]
fn reports_what_is_left_while_it_holds() {
    let result = Node::new("1GiB").result("mem --api alloc --chunk 64MiB --cap 256MiB");
    assert_eq!(bytes(&result, "granted_bytes"), 256 * MIB, "{result}");
    assert_eq!(bytes(&result, "granted_chunks"), 4, "{result}");
    assert_eq!(bytes(&result, "meminfo_total"), 1024 * MIB, "{result}");
    assert_eq!(bytes(&result, "meminfo_free"), (1024 - 64 - 256) * MIB, "{result}");
}

#[test]
fn gives_everything_back() {
    let node = Node::new("512MiB");
    let first = node.result("mem --api alloc --chunk 16MiB --cap 2GiB");
    let second = node.result("mem --api alloc --chunk 16MiB --cap 2GiB");
    assert_eq!(first["granted_bytes"], second["granted_bytes"]);
}

#[test]
fn runs_with_per_thread_streams() {
    for api in ["async", "pool", "graph"] {
        let node = Node::new("512MiB");
        let result = node.result(&format!("mem --ptsz --api {api} --chunk 16MiB --cap 2GiB"));
        assert_eq!(result["stop"], "CUDA_ERROR_OUT_OF_MEMORY", "{result}");
        assert!(bytes(&result, "granted_bytes") > 400 * MIB, "{result}");
    }
}

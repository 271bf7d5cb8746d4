//! Links the library so that nothing unloads it: functions of the driver jump into it, and a signal
//! handler is in it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

//! Links the library so that nothing unloads it: functions of the driver jump into it, and a signal
//! handler is in it. With frida-gum built in, nothing may be left undefined: the linker would take an incomplete devkit, and
//! every program that the library is preloaded into would end.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if std::env::var_os("CARGO_FEATURE_FRIDA").is_some() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
    }
}

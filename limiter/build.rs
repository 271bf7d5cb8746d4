//! Links the library so that it is never unloaded (`-z nodelete`): patched driver functions jump into it, and it holds
//! a signal handler. With frida-gum, undefined symbols are errors (`-z defs`): otherwise an incomplete devkit would
//! link, and every process that preloads the library would end.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if std::env::var_os("CARGO_FEATURE_FRIDA").is_some() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
    }
}

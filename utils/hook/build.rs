//! Tells the linker where frida-gum's devkit is: in the folder that `FRIDA_GUM_DEVKIT` names.

use std::path::Path;

fn main() {
    const DEVKIT: &str = "FRIDA_GUM_DEVKIT";
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={DEVKIT}");
    if std::env::var_os("CARGO_FEATURE_FRIDA").is_none() {
        return;
    }
    let Some(folder) = std::env::var_os(DEVKIT) else { return };
    let library = Path::new(&folder).join("libfrida-gum.a");
    if library.is_file() {
        println!("cargo::rustc-link-search=native={}", Path::new(&folder).display());
    } else {
        println!("cargo::error={DEVKIT}: {} is no file", library.display());
    }
}

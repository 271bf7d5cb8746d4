//! Compiles libraries for tests, with the C compiler of the machine or of the tests' processor.

use std::ffi::CString;
use std::path::Path;
use std::process::Command;

/// Compiles `source`; returns the library's path.
pub(crate) fn library(folder: &Path, name: &str, source: &str, told: &[&str]) -> CString {
    let (code, path) = (folder.join(name).with_extension("c"), folder.join(name));
    let path = path.with_extension("so");
    std::fs::write(&code, source).unwrap();
    let compiler = std::env::var_os("SLUICE_TEST_CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-O1"]).args(told).arg("-o").args([&path, &code]);
    assert!(command.status().unwrap().success());
    CString::new(path.to_str().unwrap()).unwrap()
}

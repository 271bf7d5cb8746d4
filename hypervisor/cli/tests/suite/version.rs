//! What programs and library say of themselves.

use std::fs;
use std::process::Command;

use crate::support::Sluice;

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_part_tells_what_it_was_built_from() {
    let sluice = Sluice::new();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(said(sluice.command().arg("version")), format!("sluice {version}\n"));
    let verbose = said(sluice.command().args(["version", "--verbose"]));
    assert_eq!(said(sluice.command().args(["--version", "--verbose"])), verbose);
    let line = |key: &str| verbose.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    assert!(!line("commit: ").is_empty(), "{verbose}");
    assert!(line("build: ").contains("linux"), "{verbose}");
    let library = line("library: ");
    let of_library = format!("libcuda_limiter.so: libcuda_limiter.so {version}, commit ");
    assert!(library.contains(&of_library) && library.contains(", engine "), "{library}");
    // One from before libraries said that, and one that is missing.
    let other = sluice.folder().join("other.so");
    let mut header = [0; 64];
    header[..6].copy_from_slice(b"\x7fELF\x02\x01");
    header[16..20].copy_from_slice(&[3, 0, 62, 0]);
    fs::write(&other, header).unwrap();
    for (path, words) in
        [(other, "has no build information"), (sluice.folder().join("none.so"), "is missing")]
    {
        let text = said(sluice.command().args(["version", "-v"]).env("SLUICE_LIBRARY", path));
        assert!(text.contains(words), "{text}");
    }
    let hypervisor = sluice.built("hypervisor", "hypervisor");
    let daemon = said(sluice.command_of(&hypervisor).args(["version", "--verbose"]));
    assert_eq!(said(sluice.command_of(&hypervisor).args(["--verbose", "--version"])), daemon);
    assert!(daemon.starts_with(&format!("hypervisor {version}\ncommit: ")), "{daemon}");
}

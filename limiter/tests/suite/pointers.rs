//! Each patched function, with null and unaligned pointers, has the driver's results under the limiter.

use crate::common::{GIB, MEMORY_LIMIT, Stage, first_device, outcome};
use std::path::Path;

/// The declarations in the files of a folder, as rows for `programs/null.c`.
fn rows(folder: &Path, into: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rows(&path, into);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let declared = |part: &str| {
            let words: Vec<_> = part.rsplit_once("\n    fn ")?.1.split_ascii_whitespace().collect();
            let line = words.join(" ");
            let (names, arguments) = line.split_once(") -> ")?.0.split_once('(')?;
            let letter = |argument: &str| match argument.split_once(": ").map(|(_, of)| of) {
                None => "",
                Some("usize") => "s",
                Some("NvmlDevice") => "n",
                // Passed in memory, where there are zeroes.
                Some("IpcMemHandle" | "IpcEventHandle") => "",
                Some(of) if of.starts_with('*') => "p",
                _ => "i",
            };
            let letters: String = arguments.split(',').map(letter).collect();
            let is_symbol = |name: &&str| name.starts_with("cu") || name.starts_with("nvml");
            let names = names.split('|').map(str::trim).filter(is_symbol);
            Some(names.map(|name| (name.to_owned(), letters.clone())).collect::<Vec<_>>())
        };
        into.extend(text.split(';').filter_map(declared).flatten());
    }
}

/// These run code of the program at the given address.
const RUN_CODE: [&str; 3] = ["cuLaunchHostFunc", "cuLaunchHostFunc_v2", "cuStreamAddCallback"];

#[test]
fn null_and_unaligned_pointers_are_as_without_the_limiter() {
    let stage = Stage::new();
    let mut calls = Vec::new();
    rows(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hooks"), &mut calls);
    calls.sort();
    let documented = include_str!("../../../docs/hooks.md");
    let documented = documented.lines().filter(|line| line.starts_with("| `lib")).count();
    assert_eq!(calls.len(), documented, "all functions of the table");
    let list = stage.folder().join("calls.h");
    let runs_code = |name: &str| RUN_CODE.contains(&name.trim_end_matches("_ptsz"));
    let rows = calls.iter().filter(|(name, _)| !runs_code(name));
    let rows: String =
        rows.map(|(name, letters)| format!("{{\"{name}\", \"{letters}\"}},\n")).collect();
    std::fs::write(&list, rows).unwrap();
    let told = format!("-DCALLS=\"{}\"", list.display());
    let program = stage.compile("null.c", "null", &[&told]);
    let native = outcome(&mut stage.native(&program)).succeeded();
    let mut command = stage.limited(&program);
    let limited = outcome(command.env(MEMORY_LIMIT, first_device(8 * GIB))).succeeded();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (native, limited) = (lines(&native.stdout), lines(&limited.stdout));
    assert!(native.len() > documented * 4, "{}", native.len());
    let differ: Vec<_> = native.iter().zip(&limited).filter(|(a, b)| a != b).collect();
    assert!(differ.is_empty() && native.len() == limited.len(), "native, limited: {differ:#?}");
    // Functions for which even the driver accepts null.
    assert!(limited.contains(&"cuMemGetInfo_v2 0+0 0: 0".to_owned()));
}

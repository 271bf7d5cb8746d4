//! The crate's structure: one file has all numbers, modules do not use each other in a circle, and structs are small.

#![allow(clippy::unwrap_used, reason = "a test may stop where it fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The most numbers by which the crate may behave. Lower it when one is removed.
const MOST_NUMBERS: usize = 34;

/// The source files by name, without unit tests and comments.
fn files() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let code: Vec<&str> =
            code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        found.insert(path.file_stem().unwrap().to_str().unwrap().to_owned(), code.join("\n"));
    }
    found
}

/// The modules that each module uses.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let files = files();
    let used = |code: &str| {
        let names = files.keys().filter(|name| code.contains(&format!("crate::{name}::")));
        names.cloned().collect()
    };
    files.iter().map(|(name, code)| (name.clone(), used(code))).collect()
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let mut left = uses();
    assert!(left["tenure"].contains("usage"), "{left:?}");
    // Removes modules that use no remaining module.
    loop {
        let names: BTreeSet<String> = left.keys().cloned().collect();
        let before = left.len();
        left.retain(|_, used| !used.is_disjoint(&names));
        if left.len() == before {
            break;
        }
    }
    assert!(left.is_empty(), "a circle, or what leads to one: {left:?}");
}

#[test]
fn all_numbers_are_in_one_file_and_no_more_than_there_were() {
    let numbers = |code: &str| {
        code.lines()
            .filter(|line| line.contains("const "))
            .filter(|line| line.contains("_NS:") || line.contains("_PPM:"))
            .count()
    };
    let elsewhere: Vec<_> = files()
        .into_iter()
        .filter(|(name, code)| name != "tuning" && numbers(code) > 0)
        .map(|(name, _)| name)
        .collect();
    // The only number elsewhere: one, in millionths.
    assert_eq!(elsewhere, ["launch_times"]);
    let all = files()["tuning"].lines().filter(|line| line.contains("pub")).count();
    assert!((1..=MOST_NUMBERS).contains(&all), "{all} of at most {MOST_NUMBERS}");
}

#[test]
fn structures_have_at_most_twelve_fields() {
    const MOST_FIELDS: usize = 12;
    for (name, code) in files() {
        for structure in code.split("struct ").skip(1) {
            let Some((head, body)) =
                structure.split_once('{').filter(|(head, _)| !head.contains(';'))
            else {
                continue;
            };
            let fields = body.split("\n}").next().unwrap();
            let count = fields.lines().filter(|line| line.contains(": ")).count();
            assert!(count <= MOST_FIELDS, "{name}: {head}has {count} fields");
        }
    }
}

//! The crate's own structure: one file has all numbers, no files use each other in a circle, and structures are small.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Numbers by which the crate behaves. Fewer are better.
const MOST_NUMBERS: usize = 21;
const MOST_FIELDS: usize = 12;

/// The crate's modules by their paths, without unit tests and comments.
fn modules() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut found);
    found
}

fn read(folder: &Path, parent: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{parent}{}", path.file_stem().unwrap().to_str().unwrap());
        if path.is_dir() {
            read(&path, &format!("{name}::"), found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        found.insert(name, code.collect::<Vec<_>>().join("\n"));
    }
}

#[test]
fn no_modules_use_each_other_in_a_circle() {
    let modules = modules();
    let used = |(name, code): (&String, &String)| {
        let names = modules.keys().filter(|other| code.contains(&format!("crate::{other}::")));
        (name.clone(), names.cloned().collect())
    };
    let mut left: BTreeMap<String, BTreeSet<String>> = modules.iter().map(used).collect();
    assert!(left["scheduler::decision"].contains("roster"), "{left:?}");
    assert!(!modules.values().any(|code| code.contains("use super::")), "by their whole paths");
    // Those go that use none of those that are left.
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
        let constants = code.lines().filter(|line| line.contains("const "));
        constants.filter(|line| line.contains("_NS: ") || line.contains("_PPM: ")).count()
    };
    let elsewhere = modules().into_iter().filter(|(name, _)| name != "tuning");
    let elsewhere: Vec<String> =
        elsewhere.filter(|(_, code)| numbers(code) > 0).map(|(name, _)| name).collect();
    assert_eq!(elsewhere, [""; 0]);
    let tuning = &modules()["tuning"];
    // A number that follows from another one is made of its name.
    let own = tuning.split("pub(crate) const ").skip(1).filter(|constant| {
        let value = constant.split(['=', ';']).nth(1).unwrap().replace("MS", "");
        !value.contains(|letter: char| letter.is_ascii_uppercase())
    });
    let count = own.count();
    assert!((1..=MOST_NUMBERS).contains(&count), "{count} of at most {MOST_NUMBERS}");
}

#[test]
fn structures_have_at_most_twelve_fields() {
    for (name, code) in modules() {
        for structure in code.split("struct ").skip(1) {
            let Some((head, body)) =
                structure.split_once('{').filter(|(head, _)| !head.contains(';'))
            else {
                continue;
            };
            // What is shown of a session is no state.
            if head.trim() == "SessionView" {
                continue;
            }
            let fields = body.split("\n}").next().unwrap();
            let count = fields.lines().filter(|line| line.contains(": ")).count();
            assert!(count <= MOST_FIELDS, "{name}: {head}has {count} fields");
        }
    }
}

//! Checks the structure of the pure crates: no import cycle, all numbers of behaviour in `tuning.rs`, small structs.
//! Clippy checks the length of their functions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Each crate's folder, and the most numbers by which it may behave. Lower the bound when a number is removed.
const CRATES: [(&str, usize); 2] = [("../limiter/core", 34), ("../hypervisor/scheduler", 28)];
const MOST_FIELDS: usize = 12;

/// A crate's modules by path, without comments and unit tests.
type Modules = BTreeMap<String, String>;

fn crates() -> impl Iterator<Item = (&'static str, usize, Modules)> {
    CRATES.into_iter().map(|(folder, numbers)| {
        let mut modules = Modules::new();
        read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join("src"), "", &mut modules);
        (folder, numbers, modules)
    })
}

fn read(folder: &Path, parent: &str, found: &mut Modules) {
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
    for (folder, _, modules) in crates() {
        let used = |(name, code): (&String, &String)| {
            let names = modules.keys().filter(|other| code.contains(&format!("crate::{other}::")));
            (name.clone(), names.cloned().collect())
        };
        let mut left: BTreeMap<String, BTreeSet<String>> = modules.iter().map(used).collect();
        assert!(left.values().any(|used| !used.is_empty()), "{folder}: {left:?}");
        assert!(
            !modules.values().any(|code| code.contains("use super::")),
            "{folder}: whole paths"
        );
        // Removes modules that use no remaining module.
        loop {
            let (names, before): (BTreeSet<_>, _) = (left.keys().cloned().collect(), left.len());
            left.retain(|_, used| !used.is_disjoint(&names));
            if left.len() == before {
                break;
            }
        }
        assert!(left.is_empty(), "{folder}: a circle, or what leads to one: {left:?}");
    }
}

#[test]
fn all_numbers_are_in_one_file_and_no_more_than_there_were() {
    for (folder, most, modules) in crates() {
        // One, in millionths, is a unit.
        let is_number = |line: &&str| {
            line.contains("const ")
                && (line.contains("_NS: ") || line.contains("_PPM: "))
                && !line.ends_with("= 1_000_000;")
        };
        for (name, code) in modules.iter().filter(|(name, _)| *name != "tuning") {
            assert_eq!(code.lines().find(is_number), None, "{folder}: {name}");
        }
        let constants = modules["tuning"].split("const ").skip(1);
        // A number that follows from another one is made of its name.
        let own = constants.filter(|constant| {
            let value = constant.split(['=', ';']).nth(1).unwrap_or_default();
            let is_unit = ["US", "MS", "SECOND"].contains(&constant.split(':').next().unwrap());
            let words = value.split(|letter: char| !letter.is_ascii_uppercase());
            !is_unit && words.filter(|word| !["", "US", "MS", "SECOND"].contains(word)).count() == 0
        });
        let count = own.count();
        assert!((1..=most).contains(&count), "{folder}: {count} of at most {most}");
    }
}

#[test]
fn structs_have_at_most_twelve_fields() {
    for (folder, _, modules) in crates() {
        for (name, code) in modules {
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
                assert!(count <= MOST_FIELDS, "{folder}: {name}: {head}has {count} fields");
            }
        }
    }
}

//! Checks the structure that docs/architecture.md draws: the dependencies between crates, and between modules of the
//! limiter.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The rows, without the head, of the table in docs/architecture.md whose first columns are `columns`.
fn table(columns: &str) -> Vec<Vec<String>> {
    let path = root().join("docs/architecture.md");
    let text = fs::read_to_string(&path).unwrap();
    let rows: Vec<Vec<String>> = text
        .lines()
        .skip_while(|line| !line.starts_with(columns))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.split('|').skip(1).map(|cell| cell.trim().to_owned()).collect())
        .collect();
    assert!(!rows.is_empty(), "{}: no table begins with {columns}", path.display());
    rows
}

#[test]
fn crates_use_whom_the_table_says() {
    let names = |cell: &str| -> BTreeSet<String> {
        cell.split(", ").filter(|name| *name != "nothing").map(str::to_owned).collect()
    };
    let said: BTreeMap<String, (String, BTreeSet<String>)> = table("| crate | folder | may use |")
        .iter()
        .map(|row| (row[0].clone(), (row[1].clone(), names(&row[2]))))
        .collect();
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let mut found = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        let folder = PathBuf::from(text(&package["manifest_path"]));
        let folder = folder.parent().unwrap().strip_prefix(root().canonicalize().unwrap()).unwrap();
        // The crate's own dependencies, without those of tests and benchmarks.
        let own = |one: &&serde_json::Value| one["kind"].is_null() && !one["path"].is_null();
        let uses = package["dependencies"].as_array().unwrap().iter().filter(own);
        let uses: BTreeSet<String> = uses.map(|one| text(&one["name"])).collect();
        found.insert(text(&package["name"]), (folder.display().to_string(), uses));
    }
    assert_eq!(found, said, "left: the manifests; right: the table in docs/architecture.md");
}

/// The Rust files below `folder`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The first names after each `crate::` of a file, without its comments and unit tests.
fn uses(text: &str, top: bool) -> BTreeSet<String> {
    // In a file of the crate's root, `super` is the crate.
    let text = if top { text.replace("super::", "crate::") } else { text.to_owned() };
    let text = text.as_str();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let code: String = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line))
        .flat_map(|line| [line, "\n"])
        .collect();
    let first = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut found = BTreeSet::new();
    for (at, before) in code.match_indices("crate::") {
        let rest = &code[at + before.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(first(rest));
            continue;
        };
        let (mut depth, mut name) = (0, true);
        for (index, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => name = true,
                c if name && c.is_alphabetic() => {
                    found.insert(first(&group[index..]));
                    name = false;
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn no_module_of_the_limiter_uses_one_above_it() {
    let mut levels = BTreeMap::new();
    for row in table("| level | module |") {
        let level: u32 = row[0].parse().unwrap();
        for room in row[1].split('`').skip(1).step_by(2) {
            assert_eq!(levels.insert(room.to_owned(), level), None, "{room} is listed twice");
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for path in sources(&folder) {
        let inside = path.strip_prefix(&folder).unwrap();
        let room = inside.components().next().unwrap().as_os_str().to_str().unwrap();
        let room = room.trim_end_matches(".rs");
        if room == "lib" {
            continue;
        }
        let Some(level) = levels.get(room) else {
            wrong.push(format!("{}: the table lacks `{room}`", inside.display()));
            continue;
        };
        seen.insert(room.to_owned());
        let top = inside.components().count() == 1;
        for used in uses(&fs::read_to_string(&path).unwrap(), top) {
            match levels.get(&used) {
                _ if used == room => {}
                Some(below) if below < level => {}
                Some(_) => wrong.push(format!("{} uses `{used}`", inside.display())),
                None => wrong.push(format!("{}: the table lacks `{used}`", inside.display())),
            }
        }
    }
    let gone: Vec<_> = levels.keys().filter(|room| !seen.contains(*room)).collect();
    assert!(gone.is_empty(), "the table has modules that are gone: {gone:?}");
    assert!(wrong.is_empty(), "arrows that go back up:\n{}", wrong.join("\n"));
}

#[test]
fn names_are_found_however_they_are_written() {
    let text = "use crate::a::b;\nuse crate::{c, d::{e, f}, g as h};\n// crate::i\nlet x = crate::j();\n\
                #[cfg(test)]\nmod tests {\n    use crate::k;\n}";
    let found: Vec<String> = uses(text, false).into_iter().collect();
    assert_eq!(found, ["a", "c", "d", "g", "j"]);
    assert_eq!(uses("use super::l::m;", true).into_iter().collect::<Vec<_>>(), ["l"]);
    assert!(uses("use super::l::m;", false).is_empty());
}

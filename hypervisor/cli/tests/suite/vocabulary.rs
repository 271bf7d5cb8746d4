//! One term for one thing (docs/glossary.md): terms that were given up do not come back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{outcome, program};

/// A compute share, memory or shares that are overcommitted, idle time, a burst limit.
const RETIRED: [&str; 4] = ["time limit", "oversubscri", "spare time", "soft limit"];

fn check(place: &str, text: &str) {
    for line in text.lines() {
        for term in RETIRED {
            assert!(!line.contains(term), "{place}: {term:?} is retired: {line}");
        }
    }
}

#[test]
fn documents_have_no_retired_term() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let first = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(|name| root.join(name));
    let all: Vec<PathBuf> = pages.chain(first).collect();
    assert!(all.len() > 12, "{all:?}");
    for path in all {
        check(&path.display().to_string(), &fs::read_to_string(&path).unwrap());
    }
}

#[test]
fn help_texts_have_no_retired_term() {
    let (_, help, _) = outcome(Command::new(program()).arg("help"));
    check("sluice help", &help);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = commands.map_while(|line| line.split_whitespace().next());
    let mut count = 0;
    for name in names.filter(|name| *name != "help") {
        let (status, text, _) = outcome(Command::new(program()).args([name, "--help"]));
        assert_eq!(status, 0, "{name}");
        check(name, &text);
        count += 1;
    }
    assert!(count > 15, "{help}");
}

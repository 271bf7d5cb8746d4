//! Documents: one term for one thing (docs/glossary.md), and links that lead somewhere.

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

/// The documents that say what holds today; measurements are logs of their day.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["docs", "docs/adr", "docs/design"].map(|name| root.join(name));
    let pages = folders.into_iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let pages = pages.map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let first = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(|name| root.join(name));
    let all: Vec<PathBuf> = pages.chain(first).collect();
    assert!(all.len() > 40, "{all:?}");
    all
}

#[test]
fn documents_have_no_retired_term() {
    for path in documents() {
        check(&path.display().to_string(), &fs::read_to_string(&path).unwrap());
    }
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    headings
        .map(|line| line.trim_start_matches('#').trim().to_lowercase())
        .map(|line| line.chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

#[test]
fn links_of_documents_lead_somewhere() {
    let mut broken = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains(':')) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.with_file_name(file) };
            let leads = if anchor.is_empty() {
                target.exists()
            } else {
                fs::read_to_string(&target)
                    .is_ok_and(|text| anchors(&text).iter().any(|known| known == anchor))
            };
            if !leads {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
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

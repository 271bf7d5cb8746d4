//! `xtask find-new-symbols`: what a driver exports that nobody has looked at.

use super::{Error, elf, path, read};
use crate::process::{command, output};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Compares a driver with docs/hooks.md, docs/unhandled.txt and docs/irrelevant.txt.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only check the lists: their form, and that no symbol is in two of them
    #[arg(long, conflicts_with_all = ["lacking", "cuda"])]
    check_lists: bool,
    /// Print listed symbols that the driver lacks, for examples/fake-gpu/node/drivers
    #[arg(long)]
    lacking: bool,
    /// libcuda.so.1; by default the installed one
    #[arg(value_parser = path)]
    cuda: Option<PathBuf>,
    /// libnvidia-ml.so.1; by default the installed one
    #[arg(value_parser = path)]
    nvml: Option<PathBuf>,
}

/// Symbols, with the list that they are in.
type Known = BTreeMap<String, &'static str>;

const PATCHED: &str = "docs/hooks.md";
/// A line of it is: symbol, tab, kind, tab, reason.
const UNHANDLED: &str = "docs/unhandled.txt";
const IRRELEVANT: &str = "docs/irrelevant.txt";

/// Prints what is new.
///
/// # Errors
/// Something is new, a list is wrong, or a library cannot be read.
pub(crate) fn find(arguments: Arguments) -> Result<(), Error> {
    let (known, faults) = lists(&text(PATCHED)?, &text(UNHANDLED)?, &text(IRRELEVANT)?);
    faults.iter().for_each(|fault| println!("{fault}"));
    if !faults.is_empty() {
        return Err(Error::Found);
    }
    if arguments.check_lists {
        println!("{}", counts(&known, known.keys()));
        return Ok(());
    }
    let cuda = arguments.cuda.map_or_else(|| installed("libcuda.so.1"), Ok)?;
    let nvml = arguments.nvml.map_or_else(|| installed("libnvidia-ml.so.1"), Ok)?;
    let (ours, theirs) = (exported(&cuda, "cu")?, exported(&nvml, "nvml")?);
    if arguments.lacking {
        let lacks = known.keys().filter(|name| !ours.contains(*name) && !theirs.contains(*name));
        lacks.for_each(|name| println!("{name}"));
        return Ok(());
    }
    for (library, symbols) in [(&cuda, &ours), (&nvml, &theirs)] {
        eprintln!("{}: {}", library.display(), counts(&known, symbols));
    }
    let new: Vec<_> = ours.union(&theirs).filter(|name| !known.contains_key(*name)).collect();
    new.iter().for_each(|name| println!("{name}"));
    if new.is_empty() { Ok(()) } else { Err(Error::Found) }
}

fn text(list: &str) -> Result<String, Error> {
    Ok(String::from_utf8_lossy(&read(list)?).into_owned())
}

/// The symbols that the table of hooks names.
pub(crate) fn patched(hooks: &str) -> impl Iterator<Item = &str> {
    hooks
        .lines()
        .filter(|line| line.starts_with("| `lib"))
        .filter_map(|line| line.split('`').nth(3))
}

/// The symbols of the three lists, and a line for each fault in them.
fn lists(hooks: &str, unhandled: &str, irrelevant: &str) -> (Known, Vec<String>) {
    let mut known: Known = patched(hooks).map(|name| (name.to_owned(), PATCHED)).collect();
    let mut faults = Vec::new();
    if known.is_empty() {
        faults.push(format!("{PATCHED}: no patched symbol found; has its form changed?"));
    }
    for (list, lines) in [(UNHANDLED, unhandled), (IRRELEVANT, irrelevant)] {
        let mut last = "";
        for (number, line) in (1..).zip(lines.lines()) {
            let fields: Vec<&str> = line.split('\t').collect();
            let symbol = fields[0];
            let mut fault = |what: &str| faults.push(format!("{list}:{number}: '{symbol}' {what}"));
            let of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            if !symbol.starts_with("cu") && !symbol.starts_with("nvml")
                || !symbol.chars().all(of_name)
            {
                fault("is not a symbol of the driver");
                continue;
            }
            if symbol < last {
                fault("is out of the order of LC_ALL=C sort");
            }
            last = symbol;
            if let Some(other) = known.insert(symbol.to_owned(), list) {
                fault(&format!("is in {other} already"));
            }
            match fields[1..] {
                [] if list == IRRELEVANT => {}
                _ if list == IRRELEVANT => fault("is to stand alone"),
                ["allocates" | "launches" | "reports", reason] if !reason.trim().is_empty() => {}
                _ => fault("needs: tab, allocates, launches or reports, tab, reason"),
            }
        }
    }
    (known, faults)
}

fn counts<'a>(known: &Known, symbols: impl IntoIterator<Item = &'a String>) -> String {
    let mut counts = BTreeMap::new();
    for name in symbols {
        *counts.entry(known.get(name).copied()).or_insert(0) += 1;
    }
    let count = |list| counts.get(&list).copied().unwrap_or(0);
    format!(
        "{} symbols patched, {} unhandled, {} irrelevant, {} new",
        count(Some(PATCHED)),
        count(Some(UNHANDLED)),
        count(Some(IRRELEVANT)),
        count(None)
    )
}

/// The library that the loader would find.
fn installed(name: &str) -> Result<PathBuf, Error> {
    let known = output(&mut command("/sbin/ldconfig -p"))?;
    let line = known.lines().find(|line| line.trim().starts_with(name) && line.contains("x86-64"));
    line.and_then(|line| line.rsplit(" => ").next())
        .map(PathBuf::from)
        .ok_or_else(|| Error::Usage(format!("{name} is not installed; give its path")))
}

fn exported(library: &Path, prefix: &str) -> Result<BTreeSet<String>, Error> {
    let mut symbols = elf::symbols(library)?.defined;
    symbols.retain(|name| name.starts_with(prefix));
    if symbols.is_empty() {
        return Err(Error::Usage(format!("{} exports no {prefix}* symbol", library.display())));
    }
    Ok(symbols)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOOKS: &str = "| `libcuda` | `cuInit` |\n";

    #[track_caller]
    fn faults(unhandled: &str, irrelevant: &str) -> String {
        lists(HOOKS, unhandled, irrelevant).1.join("\n")
    }

    #[test]
    fn faults_of_lists_are_found() {
        assert_eq!(faults("cuA\tallocates\tit does\ncuB\treports\tso\n", "cuC\nnvmlD\n"), "");
        assert!(lists("", "", "").1[0].contains("no patched symbol"));
        for (unhandled, irrelevant, fault) in [
            ("", "free\n", "docs/irrelevant.txt:1: 'free' is not a symbol of the driver"),
            ("", "cuB\ncuA\n", "docs/irrelevant.txt:2: 'cuA' is out of the order of LC_ALL=C sort"),
            ("", "cuB\ncuB\n", "docs/irrelevant.txt:2: 'cuB' is in docs/irrelevant.txt already"),
            ("", "cuInit\n", "docs/irrelevant.txt:1: 'cuInit' is in docs/hooks.md already"),
            (
                "cuA\treports\tso\n",
                "cuA\n",
                "docs/irrelevant.txt:1: 'cuA' is in docs/unhandled.txt already",
            ),
            ("", "cuA\tso\n", "docs/irrelevant.txt:1: 'cuA' is to stand alone"),
        ] {
            assert_eq!(faults(unhandled, irrelevant), fault);
        }
        for line in ["cuA", "cuA\treports", "cuA\treports\t ", "cuA\tsings\tso"] {
            assert!(faults(line, "").contains("needs: tab"), "{line}");
        }
    }
}

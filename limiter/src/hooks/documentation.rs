//! Generates `docs/hooks.md` from the table: `UPDATE_DOCS=1 cargo test -p cuda-limiter` rewrites it.

use super::{Hook, all};

const HEAD: &str = "# The driver functions that Sluice patches

Written from the declarations in `limiter/src/hooks`. A function that a driver does not export is left
out by itself; `sluice hooks` shows what is patched on a machine.

| library | symbol | section and purpose |
|---|---|---|
";

const TABLES: &str = include_str!("export_tables.md");

fn text() -> String {
    let row = |hook: &Hook| {
        format!("| `{}` | `{}` | {} |\n", hook.library.soname(), hook.symbol, hook.doc)
    };
    all().map(row).fold(HEAD.to_owned(), |text, row| text + &row) + TABLES
}

#[test]
fn the_document_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/hooks.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, text()).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(path).unwrap(),
        text(),
        "docs/hooks.md: rewrite it with UPDATE_DOCS=1"
    );
}

#[test]
fn no_symbol_is_declared_twice() {
    let mut symbols: Vec<&str> = all().map(|hook| hook.symbol).collect();
    let count = symbols.len();
    symbols.sort_unstable();
    symbols.dedup();
    assert_eq!(symbols.len(), count);
    assert!(count > 50);
}

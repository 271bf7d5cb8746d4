//! The checked-in schemas of `sluice --json` are current.

use std::path::Path;
use std::{env, fs};

#[test]
fn the_schemas_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api");
    for (command, schema) in protocol::schema::all() {
        let path = folder.join(format!("{command}.schema.json"));
        let found = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&path, &found).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(found, text, "{}: write it with UPDATE_DOCS=1", path.display());
    }
}

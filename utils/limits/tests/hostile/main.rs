//! Hostile values. Fuzz targets share the check.

mod values;

use proptest::prelude::*;

proptest! {
    #[test]
    fn any_text_is_a_value_or_one_line(text: String) {
        values::any_text(&text);
    }

    #[test]
    fn what_looks_like_a_number_is_a_value_or_one_line(text in "[-+ 0-9.eExX_,%kKmMgGtTiIbB]{0,24}") {
        values::any_text(&text);
    }

    #[test]
    fn what_looks_like_a_device_is_one_or_one_line(
        text in "(GPU-|MIG-|gpu-)?[0-9a-fA-F]{0,8}(-[0-9a-f]{4}){0,3}(-[0-9a-f]{12})?\\PC{0,2}",
    ) {
        values::any_text(&text);
    }
}

#[test]
fn a_text_of_any_length_is_one_short_line() {
    for long in ["9", "G", "%", "\u{202e}", "８", "0.", "GPU-"] {
        values::any_text(&long.repeat(100_000));
    }
}

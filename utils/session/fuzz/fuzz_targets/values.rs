//! Arbitrary text as the value of an option or a variable: a value, or a one-line error. See `cargo xtask fuzz`.
#![no_main]

#[path = "../../../limits/tests/hostile/values.rs"]
mod values;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| values::any_text(text));

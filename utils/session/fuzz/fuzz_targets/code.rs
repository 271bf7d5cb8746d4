//! Arbitrary bytes as a function, and as the list of mappings: no crash, no hang. See `cargo xtask fuzz`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (usize, &[u8])| {
    let (entry, bytes) = input;
    hook::checks::code(bytes, entry);
    hook::checks::mappings(bytes);
});

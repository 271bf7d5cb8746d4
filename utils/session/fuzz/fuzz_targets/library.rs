//! Arbitrary bytes as a loaded library: no crash, no hang. See `cargo xtask fuzz`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, &[u8])| {
    let (dynamic, image) = input;
    hook::checks::library(image, usize::from(dynamic));
});

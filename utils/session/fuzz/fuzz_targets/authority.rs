//! Arbitrary bytes from a client: no crash, and the same result however they are split. See `cargo xtask fuzz`.
#![no_main]

#[path = "../../../grpc-authority/tests/suite/hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (cut, preface, bytes) = input;
    let before: &[u8] = if preface { b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" } else { b"" };
    hostile::any_bytes(&[before, bytes].concat(), usize::from(cut));
});

//! Arbitrary bytes from a client. Also a fuzz target: see `cargo xtask fuzz`.

use grpc_authority::Rewriter;

/// The output does not depend on how the bytes are split, and rewriting it again changes nothing. No crash, and no more
/// output than a decoded block allows.
pub(crate) fn any_bytes(bytes: &[u8], cut: usize) {
    let mut whole = Vec::new();
    let all = Rewriter::default().push(bytes, &mut whole);
    let mut pieces = Vec::new();
    let mut rewriter = Rewriter::default();
    let mut ended = Ok(());
    for piece in bytes.chunks(cut.clamp(1, 64)) {
        ended = rewriter.push(piece, &mut pieces);
    }
    assert_eq!((&all, &whole), (&ended, &pieces));
    let mut again = Vec::new();
    assert_eq!(Rewriter::default().push(&whole, &mut again), Ok(()));
    assert_eq!(again, whole);
    assert!(whole.len() <= bytes.len() * (grpc_authority::MOST_LIST / 8 + 1));
}

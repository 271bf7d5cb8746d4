//! Streams that are not HTTP/2, or exceed a bound.

use grpc_authority::{AuthorityError, MOST_BLOCK, MOST_FRAMES, Rewriter};

use super::frames::{PREFACE, frame, hex, rewritten};

fn fault(frames: &[Vec<u8>]) -> AuthorityError {
    rewritten(&[PREFACE, &frames.concat()].concat()).unwrap_err()
}

#[test]
fn another_protocol() {
    assert_eq!(rewritten(b"GET / HTTP/1.1\r\n"), Err(AuthorityError::NotHttp2));
    assert_eq!(rewritten(b"PRI * HTTP/2.1"), Err(AuthorityError::NotHttp2));
}

#[test]
fn blocks_that_are_interrupted() {
    let block = hex("8386");
    let begun = frame(1, 0, 1, &block);
    let cases = [
        (frame(0, 0, 1, b"x"), 0, 1),
        (frame(1, 4, 3, &block), 1, 3),
        (frame(9, 4, 3, &block), 9, 3),
        (frame(4, 0, 0, b""), 4, 0),
    ];
    for (next, kind, stream) in cases {
        let wanted = AuthorityError::Interrupted { kind, stream, expected: 1 };
        assert_eq!(fault(&[begun.clone(), next]), wanted);
    }
    let wanted = AuthorityError::Unexpected { stream: 5 };
    assert_eq!(fault(&[frame(9, 4, 5, &block)]), wanted);
}

#[test]
fn frames_that_lack_what_they_announce() {
    for (flags, payload) in [
        (0x0c, &b""[..]),
        (0x0c, &[2, 0]),
        (0x24, &[0, 0, 0, 1]),
        (0x2c, &[1, 0, 0, 0, 1]),
        (0x2c, &[1, 0, 0, 0, 1, 7]),
    ] {
        let length = payload.len();
        let wanted = AuthorityError::FrameTooShort { stream: 1, length };
        assert_eq!(fault(&[frame(1, flags, 1, payload)]), wanted, "{flags:x} {payload:?}");
    }
}

#[test]
fn blocks_that_are_too_long() {
    let wanted = AuthorityError::BlockTooLong { stream: 1 };
    // Refused by its head: nothing of the frame is kept.
    let head = frame(1, 4, 1, &[0; 1 << 16])[..9].to_vec();
    assert_eq!(fault(&[head]), wanted);
    let part = vec![0x83; MOST_BLOCK / 2];
    let parts = [frame(1, 0, 1, &part), frame(9, 0, 1, &part), frame(9, 4, 1, &[0x83])];
    assert_eq!(fault(&parts), wanted);
    // Within the length, with many tiny fields: their number counts.
    let parts = [frame(1, 0, 1, &part), frame(9, 4, 1, &part)];
    assert_eq!(fault(&parts), AuthorityError::ListTooLong { stream: 1 });
}

#[test]
fn a_flood_of_empty_pieces() {
    let mut pieces = vec![frame(1, 0, 1, &[0x83])];
    pieces.extend(vec![frame(9, 0, 1, b""); MOST_FRAMES - 1]);
    assert!(rewritten(&[PREFACE, &pieces.concat()].concat()).is_ok());
    pieces.push(frame(9, 4, 1, b""));
    assert_eq!(fault(&pieces), AuthorityError::TooManyFrames { stream: 1 });
}

#[test]
fn blocks_that_are_no_hpack() {
    for block in ["80", "be", "40", "4085", "3f", "418bff", "20", "ffffffffffff0f", "4181ff"] {
        let error = fault(&[frame(1, 4, 1, &hex(block))]);
        assert!(matches!(error, AuthorityError::Malformed { stream: 1, .. }), "{block}: {error}");
    }
}

#[test]
fn after_a_fault_nothing_passes() {
    let mut rewriter = Rewriter::default();
    let mut out = Vec::new();
    let good = frame(6, 0, 0, b"pingpong");
    let bytes = [PREFACE, &good, &frame(9, 4, 1, b""), &good].concat();
    assert!(rewriter.push(&bytes, &mut out).is_err());
    assert_eq!(out, [PREFACE, &good].concat());
    assert_eq!(rewriter.push(&good, &mut out), Err(AuthorityError::Unexpected { stream: 1 }));
    assert_eq!(out, [PREFACE, &good].concat());
}

#[test]
fn errors_say_what_is_accepted() {
    let error = AuthorityError::BlockTooLong { stream: 3 }.to_string();
    assert_eq!(error, "stream 3: a header block of more than 32768 bytes");
}

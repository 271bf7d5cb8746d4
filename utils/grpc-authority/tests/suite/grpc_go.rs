//! Bytes of grpc-go 1.27.1 (the version in Kubernetes 1.20), captured at a socket: a kubelet's calls of a device plugin
//! at /tmp/p/plugin.sock. Also blocks written by hand from RFC 7541.

use super::frames::{PREFACE, fields, frame, frames, hex, rewritten};

/// Two calls of GetDevicePluginOptions and one of Allocate with a deadline. Paths are Huffman-coded; the fields of the
/// second call are all in the table, and the third call uses them again.
const CALLS: &str = "
    505249202a20485454502f322e300d0a0d0a534d0d0a0d0a
    000000040000000000
    000000040100000000
    000057010400000001
        838645a063b8632a4615ef97b9885d745b31aa6311537cbdcc42eba2d98d56aad263d48f418d6134d6c56c5745b31aa5d072755f
        8b1d75d0620d263d4c4d65647a8a9acac8b4c7602b89d5c340027465864d833505b11f
    000005000100000001 0000000000
    000007010400000003 8386c2c1c0bfbe
    000005000100000003 0000000000
    000031010400000005
        8386459663b8632a4615ef97b9885d745b31aa621a28390692ffc2c1c0bf40899acac8b24d494f6a7f8713efbefbef3d6f
    00000a000100000005 00000000050a030a0161
";

fn call(path: &str) -> Vec<(String, String)> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.27.1"),
        ("te", "trailers"),
    ];
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

#[test]
fn a_kubelets_calls_get_an_authority() {
    let sent = hex(CALLS);
    let before = fields(&sent);
    assert!(before.iter().all(|call| call[3].1 == "/tmp/p/plugin.sock"), "{before:?}");
    let got = rewritten(&sent).unwrap();
    let options = call("/v1beta1.DevicePlugin/GetDevicePluginOptions");
    let mut allocate = call("/v1beta1.DevicePlugin/Allocate");
    let deadline = before[2][7].clone();
    assert_eq!(deadline.0, "grpc-timeout");
    allocate.push(deadline);
    assert_eq!(fields(&got), [options.clone(), options, allocate]);
    // Everything else is unchanged.
    let others = |bytes: &[u8]| {
        let all = frames(bytes).into_iter();
        all.filter(|frame| frame.kind != 1).collect::<Vec<_>>()
    };
    assert_eq!(others(&got), others(&sent));
    let heads = |bytes: &[u8]| {
        let all = frames(bytes).into_iter().filter(|frame| frame.kind == 1);
        all.map(|frame| (frame.flags, frame.stream)).collect::<Vec<_>>()
    };
    assert_eq!(heads(&got), heads(&sent));
}

#[test]
fn what_is_written_refers_to_no_table() {
    let got = rewritten(&hex(CALLS)).unwrap();
    for frame in frames(&got).iter().filter(|frame| frame.kind == 1) {
        // Decodable without the other blocks.
        assert!(loona_hpack::Decoder::new().decode(&frame.payload).is_ok());
        assert_eq!(frame.payload[..9], *b"\x00\x07:method");
    }
}

/// Newer versions of the registrar percent-encode the path.
#[test]
fn an_encoded_path_is_replaced_and_a_name_is_not() {
    for (authority, wanted) in [
        (&b"%2Ftmp%2Fp.sock"[..], "localhost"),
        (b"/tmp/p.sock", "localhost"),
        (b"", "localhost"),
        (b"localhost", "localhost"),
        (b"kubelet.example:10250", "kubelet.example:10250"),
    ] {
        // :method POST and :scheme http are 3 and 6 of the static table. :authority is 1: literal, with indexing.
        let mut block = vec![0x83, 0x86, 0x41, u8::try_from(authority.len()).unwrap()];
        block.extend(authority);
        // The same field by index, and in every other encoding.
        let again = vec![0x83, 0x86, 0x80 | 62];
        let mut plain = vec![0x01, u8::try_from(authority.len()).unwrap()];
        plain.extend(authority);
        let mut never = vec![0x11, u8::try_from(authority.len()).unwrap()];
        never.extend(authority);
        let mut bytes = PREFACE.to_vec();
        for (index, block) in [block, again, plain, never].iter().enumerate() {
            bytes.extend(frame(1, 5, 2 * u32::try_from(index).unwrap() + 1, block));
        }
        for fields in fields(&rewritten(&bytes).unwrap()) {
            let found = fields.iter().find(|(name, _)| name == ":authority").unwrap();
            assert_eq!(found.1, wanted);
        }
    }
}

#[test]
fn padding_goes_and_priority_stays() {
    let block = hex("8386 4107 2f612e736f636b");
    for (flags, before, after) in [
        (0x08, &[3][..], &[0; 3][..]),
        (0x20, &[0x80, 0, 0, 0, 15], &[]),
        (0x28, &[9, 0, 0, 0, 0, 255], &[0; 9]),
        (0x08, &[0], &[]),
    ] {
        // With END_STREAM, which is kept.
        let bytes = [PREFACE, &frame(1, flags | 5, 1, &[before, &block, after].concat())].concat();
        let got = rewritten(&bytes).unwrap();
        assert_eq!(fields(&got)[0][2], (":authority".to_owned(), "localhost".to_owned()));
        let found = &frames(&got)[0];
        assert_eq!(found.flags, flags & 0x20 | 5);
        if flags & 0x20 != 0 {
            assert_eq!(found.payload[..5], before[before.len() - 5..]);
        }
    }
}

#[test]
fn a_block_in_several_frames_becomes_one() {
    let block = hex("8386 4107 2f612e736f636b");
    for cut in 0..=block.len() {
        for second in cut..=block.len() {
            let bytes = [
                PREFACE,
                &frame(1, 0x1, 7, &block[..cut]),
                &frame(9, 0, 7, &block[cut..second]),
                &frame(9, 0x4, 7, &block[second..]),
            ]
            .concat();
            let got = rewritten(&bytes).unwrap();
            let found = frames(&got);
            assert_eq!((found.len(), found[0].flags, found[0].stream), (1, 5, 7));
            assert_eq!(fields(&got)[0][2].1, "localhost");
        }
    }
}

#[test]
fn a_long_block_is_written_in_frames_that_everybody_takes() {
    // 40 KB in few bytes: a field of 4000 bytes in the table, referenced ten times.
    let mut block = vec![0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
    block.extend([b'x'; 4000]);
    block.extend([0x80 | 62; 9]);
    let payload = [&[0, 0, 0, 1, 7], &block[..]].concat();
    let bytes = [PREFACE, &frame(1, 0x25, 3, &payload)].concat();
    let got = rewritten(&bytes).unwrap();
    let found = frames(&got);
    let heads: Vec<_> = found.iter().map(|frame| (frame.kind, frame.flags)).collect();
    assert_eq!(heads, [(1, 0x21), (9, 0), (9, 4)]);
    assert!(found.iter().all(|frame| frame.payload.len() <= 1 << 14));
    assert_eq!(fields(&got), fields(&bytes));
}

#[test]
fn the_table_changes_its_size() {
    // Table size to zero and back: the table is emptied.
    let first = hex("41 02 2f61");
    let second = hex("20 3fe11f 41 02 2f62");
    let third = hex("be");
    let bytes =
        [PREFACE, &frame(1, 5, 1, &first), &frame(1, 5, 3, &second), &frame(1, 5, 5, &third)];
    let got = rewritten(&bytes.concat()).unwrap();
    assert!(fields(&got).iter().all(|fields| fields[0].1 == "localhost"));
    let gone = [PREFACE, &frame(1, 5, 1, &first), &frame(1, 5, 3, &hex("20 be"))].concat();
    assert!(rewritten(&gone).is_err());
}

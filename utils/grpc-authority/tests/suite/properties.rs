//! Properties for any client, and any split of its bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::frames::{PREFACE, fields, frame, rewritten};
use super::hostile;

/// A client's encoder, which uses every encoding of a field, with its own table.
#[derive(Default)]
struct Client {
    table: Vec<(String, String)>,
}

impl Client {
    fn block(&mut self, fields: &[(String, String, u8)]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value, how) in fields {
            let known = self.table.iter().rev().position(|(n, v)| n == name && v == value);
            let known = known.and_then(|place| u8::try_from(62 + place).ok());
            match known.filter(|place| *place < 127) {
                Some(place) => block.push(0x80 | place),
                None => {
                    let remember = how & 1 == 1 && self.table.len() < 20;
                    block.push(if remember { 0x40 } else { [0, 0x10][usize::from(how >> 2 & 1)] });
                    for text in [name, value] {
                        string(&mut block, text, how & 2 == 2);
                    }
                    if remember {
                        self.table.push((name.clone(), value.clone()));
                    }
                }
            }
        }
        block
    }
}

fn string(out: &mut Vec<u8>, text: &str, huffman: bool) {
    let mut coded = Vec::new();
    let bytes = if huffman {
        httlib_huffman::encode(text.as_bytes(), &mut coded).unwrap();
        &coded[..]
    } else {
        text.as_bytes()
    };
    let length = u8::try_from(bytes.len()).unwrap();
    assert!(length < 127);
    out.push(if huffman { 0x80 | length } else { length });
    out.extend(bytes);
}

fn field() -> impl Strategy<Value = (String, String, u8)> {
    let name = prop_oneof!["[a-z]{1,8}", Just(":authority".to_owned()), Just(":path".to_owned())];
    let value = prop_oneof!["[a-z/.%]{0,20}", Just("/a.sock".to_owned())];
    (name, value, any::<u8>())
}

/// A block: its fields, where it is split, its padding, and a frame that follows it.
type Call = (Vec<(String, String, u8)>, Vec<prop::sample::Index>, Option<u8>, Option<Vec<u8>>);

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let cuts = vec(any::<prop::sample::Index>(), 0..4);
    vec((vec(field(), 1..8), cuts, any::<Option<u8>>(), any::<Option<Vec<u8>>>()), 1..8)
}

/// A client's bytes, and the expected fields of its blocks.
fn sent(calls: &[Call]) -> (Vec<u8>, Vec<Vec<(String, String)>>) {
    let mut client = Client::default();
    let mut bytes = PREFACE.to_vec();
    let mut wanted = Vec::new();
    for (index, (fields, cuts, padding, data)) in calls.iter().enumerate() {
        let stream = u32::try_from(2 * index + 1).unwrap();
        let block = client.block(fields);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(block.len() + 1)).collect();
        ends.extend([0, block.len()]);
        ends.sort_unstable();
        let last = ends.len() - 2;
        for (index, ends) in ends.windows(2).enumerate() {
            let piece = &block[ends[0]..ends[1]];
            let end = if index == last { 4 } else { 0 };
            match (index, padding) {
                (0, Some(padding)) => {
                    let zeros = vec![0; usize::from(*padding)];
                    let payload = [&[*padding], piece, &zeros].concat();
                    bytes.extend(frame(1, 8 | end, stream, &payload));
                }
                (0, None) => bytes.extend(frame(1, end, stream, piece)),
                _ => bytes.extend(frame(9, end, stream, piece)),
            }
        }
        if let Some(data) = data {
            bytes.extend(frame(0, 1, stream, data));
        }
        let good = |name: &str, value: &str| {
            name != ":authority" || value.parse::<http::uri::Authority>().is_ok()
        };
        let arrives = |(name, value, _): &(String, String, u8)| {
            let value = if good(name, value) { value.clone() } else { "localhost".to_owned() };
            (name.clone(), value)
        };
        wanted.push(fields.iter().map(arrives).collect());
    }
    (bytes, wanted)
}

proptest! {
    #[test]
    fn every_field_arrives_however_it_is_said(calls in calls()) {
        let (bytes, wanted) = sent(&calls);
        prop_assert_eq!(fields(&rewritten(&bytes).unwrap()), wanted);
    }

    #[test]
    fn cuts_change_nothing(calls in calls(), cut in 1_usize..40) {
        hostile::any_bytes(&sent(&calls).0, cut);
    }

    #[test]
    fn damaged_streams_change_nothing_either(
        calls in calls(), cut in 1_usize..40, damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let (mut bytes, _) = sent(&calls);
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        hostile::any_bytes(&bytes, cut);
    }

    #[test]
    fn any_bytes_after_a_preface(bytes in vec(any::<u8>(), 0..400), cut in 1_usize..40) {
        hostile::any_bytes(&[PREFACE, &bytes].concat(), cut);
        hostile::any_bytes(&bytes, cut);
    }
}

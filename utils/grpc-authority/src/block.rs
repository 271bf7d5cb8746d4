//! Header blocks (HPACK, RFC 7541): decoded, and encoded again with a valid authority.

use http::uri::Authority;
use loona_hpack::Decoder;
use loona_hpack::decoder::DecoderError;

/// Replacement for an authority that a server based on `h2` refuses.
pub const INSTEAD: &str = "localhost";
/// Longest encoded header block, in bytes.
pub const MOST_BLOCK: usize = 32 << 10;
/// Longest decoded header block, in bytes: names, values, and 32 bytes per field, as SETTINGS_MAX_HEADER_LIST_SIZE
/// counts.
pub const MOST_LIST: usize = 64 << 10;
const EACH: usize = 32;

const AUTHORITY: &[u8] = b":authority";
/// "Literal without indexing, new name": adds nothing to the table.
const LITERAL: u8 = 0;

/// Why a header block cannot be rewritten.
#[derive(Debug)]
pub(crate) enum BadBlock {
    Malformed(DecoderError),
    TooLong,
}

/// Decodes a connection's blocks, in order.
pub(crate) struct Blocks(Decoder<'static>);

impl Blocks {
    /// `table_size`: the table size that the receiver has announced.
    pub(crate) fn new(table_size: usize) -> Self {
        let mut decoder = Decoder::new();
        decoder.set_max_allowed_table_size(table_size);
        Self(decoder)
    }

    /// Encodes the block's fields again without references to a table, and with a valid authority.
    pub(crate) fn rewrite(&mut self, block: &[u8]) -> Result<Vec<u8>, BadBlock> {
        let mut written = Vec::with_capacity(block.len() * 2);
        let mut length = 0;
        // A reference to a long table entry is short itself, so the sum is checked while decoding.
        let decoded = self.0.decode_with_cb(block, |name, value| {
            length += name.len() + value.len() + EACH;
            if length <= MOST_LIST {
                let value = if name.as_ref() == AUTHORITY { accepted(&value) } else { &value };
                write_field(&mut written, &name, value);
            }
        });
        decoded.map_err(BadBlock::Malformed)?;
        if length > MOST_LIST { Err(BadBlock::TooLong) } else { Ok(written) }
    }
}

/// The authority, or its replacement; the same test as in `h2`.
fn accepted(authority: &[u8]) -> &[u8] {
    if Authority::try_from(authority).is_ok() { authority } else { INSTEAD.as_bytes() }
}

fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.push(LITERAL);
    for text in [name, value] {
        write_length(out, text.len());
        out.extend_from_slice(text);
    }
}

/// Writes an integer with a prefix of 7 bits (section 5.1); the eighth bit says "not Huffman".
fn write_length(out: &mut Vec<u8>, length: usize) {
    const PREFIX: usize = 0x7f;
    if length < PREFIX {
        out.push(low_bits(length));
        return;
    }
    out.push(0x7f);
    let mut rest = length - PREFIX;
    while rest > 0x7f {
        out.push(low_bits(rest) | 0x80);
        rest >>= 7;
    }
    out.push(low_bits(rest));
}

fn low_bits(number: usize) -> u8 {
    number.to_le_bytes()[0] & 0x7f
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_h2_takes_stays() {
        for good in ["localhost", "a.example:80", "[::1]:7", "10.0.0.1", "user@host"] {
            assert_eq!(accepted(good.as_bytes()), good.as_bytes());
        }
        for bad in ["/var/lib/kubelet/x.sock", "%2Ftmp%2Fx.sock", "", "unix:///x", "a b"] {
            assert_eq!(accepted(bad.as_bytes()), INSTEAD.as_bytes(), "{bad}");
        }
        assert_eq!(accepted(b"\xff\xfe"), INSTEAD.as_bytes());
    }

    #[test]
    fn a_short_block_that_is_long_decoded_is_refused() {
        // A field of 3000 bytes goes into the table (index 62) and is referenced 30 times.
        let mut block = vec![0x40, 1, b'a', 0x7f, 0xb9, 0x16];
        block.extend([b'x'; 3000]);
        block.extend([0x80 | 62; 30]);
        assert!(matches!(Blocks::new(4096).rewrite(&block), Err(BadBlock::TooLong)));
        block.truncate(block.len() - 15);
        assert!(Blocks::new(4096).rewrite(&block).is_ok());
    }

    #[test]
    fn a_table_may_not_grow_beyond_what_was_announced() {
        // A size update to 4097, and a field.
        let block = [0x3f, 0xe2, 0x1f, 0x82];
        assert!(matches!(
            Blocks::new(4096).rewrite(&block),
            Err(BadBlock::Malformed(DecoderError::InvalidMaxDynamicSize))
        ));
        assert!(Blocks::new(4097).rewrite(&block).is_ok());
    }

    proptest! {
        #[test]
        fn fields_are_read_as_they_were_written(
            fields in proptest::collection::vec(("[a-z-]{1,300}", "\\PC{0,300}"), 0..20)
        ) {
            let mut block = Vec::new();
            for (name, value) in &fields {
                write_field(&mut block, name.as_bytes(), value.as_bytes());
            }
            let read = Decoder::new().decode(&block).unwrap();
            let wrote: Vec<_> = fields
                .into_iter()
                .map(|(name, value)| (name.into_bytes(), value.into_bytes()))
                .collect();
            prop_assert_eq!(read, wrote);
        }
    }
}

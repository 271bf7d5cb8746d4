//! Reads a stream of server-sent events (HTML standard, section 9.2) out of any pieces of it.

/// The data of events, out of bytes. Names of events and other fields are not needed here: an event
/// of a task server says everything in its data.
#[derive(Debug)]
pub(super) struct EventReader {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    after_return: bool,
    most: usize,
}

/// An event or a line is longer than was agreed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl EventReader {
    /// Reads events of at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { line: Vec::new(), data: Vec::new(), has_data: false, after_return: false, most }
    }

    /// Reads a piece of the stream; adds the data of each event that ends in it to `events`.
    pub(super) fn read(&mut self, piece: &[u8], events: &mut Vec<Vec<u8>>) -> Result<(), TooLong> {
        for &byte in piece {
            // A line ends with \n, \r, or both.
            let second_half = byte == b'\n' && std::mem::take(&mut self.after_return);
            self.after_return = byte == b'\r';
            match byte {
                _ if second_half => {}
                b'\n' | b'\r' => self.end_line(events)?,
                _ if self.line.len() >= self.most => return Err(TooLong),
                _ => self.line.push(byte),
            }
        }
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<Vec<u8>>) -> Result<(), TooLong> {
        if self.line.is_empty() {
            let data = std::mem::take(&mut self.data);
            if std::mem::take(&mut self.has_data) {
                events.push(data);
            }
            return Ok(());
        }
        // A comment begins with a colon: the name of its field is empty.
        let colon = self.line.iter().position(|&byte| byte == b':').unwrap_or(self.line.len());
        let (name, value) = self.line.split_at(colon);
        if name == b"data" {
            let value = value.strip_prefix(b":").unwrap_or(value);
            let value = value.strip_prefix(b" ").unwrap_or(value);
            if self.data.len() + value.len() >= self.most {
                return Err(TooLong);
            }
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value);
            self.has_data = true;
        }
        self.line.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8], piece: usize, most: usize) -> Result<Vec<String>, TooLong> {
        let (mut reader, mut events) = (EventReader::new(most), Vec::new());
        bytes.chunks(piece).try_for_each(|piece| reader.read(piece, &mut events))?;
        Ok(events.into_iter().map(|data| String::from_utf8_lossy(&data).into_owned()).collect())
    }

    #[test]
    fn events_are_found_however_lines_end() {
        let text = ":\n\nid: 7\ndata: one\n\n: comment\ndata:two\rdata\rdata: three\r\r\
                    event: x\r\nretry: 5\r\n\r\ndata: last\r\n\r\ndata: unfinished\n";
        for piece in 1..text.len() {
            let events = read(text.as_bytes(), piece, 100).unwrap();
            assert_eq!(events, ["one", "two\n\nthree", "last"], "in pieces of {piece}");
        }
    }

    #[test]
    fn nothing_grows_without_bound() {
        assert_eq!(read(&[b'x'; 100], 7, 50), Err(TooLong));
        assert_eq!(read("data: 12345\n".repeat(50).as_bytes(), 7, 50), Err(TooLong));
        assert_eq!(read("data: 12345\n\n".repeat(50).as_bytes(), 7, 50).unwrap().len(), 50);
        assert_eq!(read(": 12345\n".repeat(50).as_bytes(), 7, 50), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            texts in prop::collection::vec("[^\r\n]{1,30}", 0..5), piece in 1usize..40,
            comments in any::<bool>(),
        ) {
            let mut stream = String::new();
            for text in &texts {
                stream += if comments { ":\n\n" } else { "" };
                stream += &format!("id: 1\ndata: {text}\n\n");
            }
            prop_assert_eq!(read(stream.as_bytes(), piece, 1000).unwrap(), texts);
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in prop::collection::vec(prop::sample::select(b"data: \r\nx".to_vec()), 0..200),
            piece in 1usize..40,
        ) {
            prop_assert_eq!(read(&bytes, piece, 30), read(&bytes, bytes.len().max(1), 30));
        }
    }
}

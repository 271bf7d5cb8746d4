//! The text of `/etc/ld.so.preload`. Pure.
//!
//! glibc's loader reads names between blanks, tabs, colons and line ends, and leaves out what follows a `#` on a line.

/// Whether the loader finds `entry` there.
pub(super) fn has(text: &[u8], entry: &[u8]) -> bool {
    names(text).any(|name| name == entry)
}

/// `text` with those of `entries` at its end that it does not have yet. What is there stays, byte for byte.
pub(super) fn with(text: &[u8], entries: &[&[u8]]) -> Vec<u8> {
    let mut made = text.to_vec();
    for entry in entries {
        if has(&made, entry) {
            continue;
        }
        // The last line may be a comment.
        if made.last().is_some_and(|last| *last != b'\n') {
            made.push(b'\n');
        }
        made.extend_from_slice(entry);
        made.push(b'\n');
    }
    made
}

/// `text` without `entries`; a line that had nothing else goes as a whole. `None` if nothing is left of it.
pub(super) fn without(text: &[u8], entries: &[&[u8]]) -> Option<Vec<u8>> {
    let mut left = Vec::with_capacity(text.len());
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let (read, comment) = line.split_at(end_of_names(line));
        if !names(read).any(|name| entries.contains(&name)) {
            left.extend_from_slice(line);
            continue;
        }
        let kept: Vec<&[u8]> = names(read).filter(|name| !entries.contains(name)).collect();
        let blank = comment.iter().all(u8::is_ascii_whitespace);
        if kept.is_empty() && blank {
            continue;
        }
        left.extend_from_slice(&kept.join(&b' '));
        if !kept.is_empty() && !blank {
            left.push(b' ');
        }
        left.extend_from_slice(if blank { b"\n" } else { comment });
    }
    (!left.iter().all(u8::is_ascii_whitespace)).then_some(left)
}

/// Where a line's comment or end begins.
fn end_of_names(line: &[u8]) -> usize {
    line.iter().position(|byte| b"#\n".contains(byte)).unwrap_or(line.len())
}

fn names(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
        .flat_map(|line| line.split_at(end_of_names(line)).0.split(|byte| b" \t:".contains(byte)))
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [&[u8]; 2] = [b"/u/a.so", b"/u/b.so"];

    #[test]
    fn what_is_there_stays() {
        for (before, after) in [
            ("", "/u/a.so\n/u/b.so\n"),
            ("/x.so\n", "/x.so\n/u/a.so\n/u/b.so\n"),
            ("/x.so", "/x.so\n/u/a.so\n/u/b.so\n"),
            ("/x.so # why", "/x.so # why\n/u/a.so\n/u/b.so\n"),
            ("# /u/a.so\n", "# /u/a.so\n/u/a.so\n/u/b.so\n"),
            ("/x.so:/u/a.so\t/y.so", "/x.so:/u/a.so\t/y.so\n/u/b.so\n"),
            ("/u/a.so.1\n", "/u/a.so.1\n/u/a.so\n/u/b.so\n"),
        ] {
            let made = with(before.as_bytes(), &OURS);
            assert_eq!(String::from_utf8_lossy(&made), after, "{before:?}");
            assert_eq!(with(&made, &OURS), made, "{before:?}");
        }
    }

    #[test]
    fn only_our_own_goes() {
        for (before, after) in [
            ("/u/a.so\n/u/b.so\n", None),
            (" \n/u/b.so", None),
            ("", None),
            ("/x.so\n/u/a.so\n/u/b.so\n", Some("/x.so\n")),
            ("/x.so:/u/a.so\t/y.so\n", Some("/x.so /y.so\n")),
            ("/u/a.so # ours\n", Some("# ours\n")),
            ("/x.so /u/a.so # ours\n", Some("/x.so # ours\n")),
            ("# /u/a.so\n", Some("# /u/a.so\n")),
            ("/x.so:/y.so\n\n", Some("/x.so:/y.so\n\n")),
        ] {
            let left = without(before.as_bytes(), &OURS);
            let left = left.map(|left| String::from_utf8(left).unwrap());
            assert_eq!(left.as_deref(), after, "{before:?}");
        }
    }

    #[test]
    fn there_and_back() {
        for before in ["/x.so\n", "# a comment\n/x.so /y.so\n", "/x.so:/y.so\n\n"] {
            let there = with(before.as_bytes(), &OURS);
            assert_eq!(without(&there, &OURS).as_deref(), Some(before.as_bytes()));
        }
    }
}

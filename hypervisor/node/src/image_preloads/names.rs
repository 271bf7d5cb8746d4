//! Parses an image's `/etc/ld.so.preload` like glibc's loader. Pure.

use crate::injection::PRELOADED;

/// The libraries in an image's list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// In the image's order; loaded after Sluice's.
    pub(super) kept: Vec<Vec<u8>>,
    /// The number of names of Sluice's libraries; dropped, because a second copy would be loaded.
    pub(super) own: usize,
}

impl Names {
    /// A comment begins with `#` and ends with its line. Names are separated by blanks, tabs, colons and line ends;
    /// reading ends at a zero byte. Tokens such as `$LIB` are kept, since the loader replaces them.
    pub(super) fn of(text: &[u8]) -> Self {
        let mut plain = Vec::with_capacity(text.len());
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            match line.iter().position(|byte| *byte == b'#') {
                Some(comment) => {
                    plain.extend_from_slice(line.get(..comment).unwrap_or_default());
                    plain.push(b'\n');
                }
                None => plain.extend_from_slice(line),
            }
        }
        let read = plain.split(|byte| *byte == 0).next().unwrap_or_default();
        let mut found = Self::default();
        for name in read.split(|byte| b": \t\n".contains(byte)).filter(|name| !name.is_empty()) {
            if is_own(name) {
                found.own += 1;
            } else {
                found.kept.push(name.to_vec());
            }
        }
        found
    }

    /// The names, one per line.
    pub(super) fn text(&self) -> Vec<u8> {
        self.kept.iter().flat_map(|name| [name.as_slice(), b"\n"]).flatten().copied().collect()
    }
}

/// Compares the file name: a prepared image has the libraries in another directory.
fn is_own(name: &[u8]) -> bool {
    let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    PRELOADED.iter().any(|own| own.as_bytes() == file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_read_as_the_loader_reads_them() {
        for (text, kept, own) in [
            (&b""[..], &[][..], 0),
            (b"/a.so", &["/a.so"], 0),
            (b"/a.so:/b.so\t/c.so d.so\n\n:", &["/a.so", "/b.so", "/c.so", "d.so"], 0),
            (b"# /a.so\n/b.so # /c.so\n/d#.so\n/e.so", &["/b.so", "/d", "/e.so"], 0),
            (b"/usr/$LIB/a.so ${ORIGIN}/b.so\n", &["/usr/$LIB/a.so", "${ORIGIN}/b.so"], 0),
            (b"/a.so\r\n", &["/a.so\r"], 0),
            (b"/a.so # \0\n/b.so\0/c.so\n", &["/a.so", "/b.so"], 0),
            (b"/run/sluice/library/libcuda_limiter.so\n/a.so\n", &["/a.so"], 1),
            (b"/usr/lib/sluice/libadd_path.so libcuda_limiter.so", &[], 2),
            (
                b"/libcuda_limiter.so.1 /libcuda_limiter.so/a",
                &["/libcuda_limiter.so.1", "/libcuda_limiter.so/a"],
                0,
            ),
        ] {
            let found = Names::of(text);
            let shown: Vec<_> =
                found.kept.iter().map(|name| String::from_utf8_lossy(name)).collect();
            assert_eq!(
                (&*shown, found.own),
                (&kept.iter().map(|&name| name.into()).collect::<Vec<_>>()[..], own),
                "{text:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_kept_is_read_again_as_the_same(text in "[a-c/.#: \t\n\0$]{0,64}|(libadd_path.so|[/ :]){0,8}") {
            let found = Names::of(text.as_bytes());
            let again = Names::of(&found.text());
            prop_assert_eq!(&again.kept, &found.kept);
            prop_assert_eq!(again.own, 0);
            prop_assert!(found.text().len() <= text.len() + 1);
        }
    }
}

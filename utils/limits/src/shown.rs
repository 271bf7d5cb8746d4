//! Untrusted text, escaped for terminal and log.

use core::fmt::{self, Write};

/// Displays text on one line. Escapes everything that a terminal would interpret or hide: control characters, line
/// breaks, and characters that change the text direction or have no width. Letters, signs and combining marks stay.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a str);

/// Like [`Shown`], cut to this many characters.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a>(pub &'a str, pub usize);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| one(c, f))
    }
}

impl fmt::Display for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.chars();
        rest.by_ref().take(self.1).try_for_each(|c| one(c, f))?;
        f.write_str(if rest.next().is_some() { "..." } else { "" })
    }
}

/// Escapes like Rust's `Debug` in the middle of a text, except quotes and backslashes.
fn one(c: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if matches!(c, ' '..='~') {
        return f.write_char(c);
    }
    let mut text = [b'a', 0, 0, 0, 0];
    let end = 1 + c.encode_utf8(&mut text[1..]).len();
    let text = str::from_utf8(&text[..end]).map_err(|_| fmt::Error)?;
    text.escape_debug().skip(1).try_for_each(|c| f.write_char(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_terminal_obeys_or_hides_is_escaped() {
        for (text, shown) in [
            ("plain 'text' \"with\" \\ all", "plain 'text' \"with\" \\ all"),
            ("a\u{1b}[2Jb\nc\td\r\0", "a\\u{1b}[2Jb\\nc\\td\\r\\0"),
            // Right-to-left override and its end, isolates, marks; zero width; byte order mark; soft hyphen; tags.
            (
                "a\u{202e}b\u{202c}\u{2066}\u{2069}\u{200f}\u{61c}",
                "a\\u{202e}b\\u{202c}\\u{2066}\\u{2069}\\u{200f}\\u{61c}",
            ),
            (
                "\u{200b}\u{200d}\u{2060}\u{feff}\u{ad}",
                "\\u{200b}\\u{200d}\\u{2060}\\u{feff}\\u{ad}",
            ),
            ("\u{e0041}\u{2028}\u{2029}\u{85}\u{9b}", "\\u{e0041}\\u{2028}\\u{2029}\\u{85}\\u{9b}"),
            // Spaces that look like ordinary ones.
            ("a\u{a0}b\u{3000}c", "a\\u{a0}b\\u{3000}c"),
            ("Grüße u\u{308} 東京 हिन्दी 🙂", "Grüße u\u{308} 東京 हिन्दी 🙂"),
        ] {
            assert_eq!(Shown(text).to_string(), shown);
        }
        assert_eq!(Cut("abcdef", 6).to_string(), "abcdef");
        assert_eq!(Cut("abc\ndef", 4).to_string(), "abc\\n...");
    }

    proptest! {
        #[test]
        fn any_text_is_one_line_of_what_is_seen(text: String) {
            let shown = Shown(&text).to_string();
            prop_assert!(!shown.contains(|c: char| c.is_control()));
            let hidden = |c| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}');
            prop_assert!(!shown.contains(hidden));
            prop_assert!(shown.chars().count() >= text.chars().count());
            prop_assert_eq!(Shown(&shown).to_string(), shown.clone());
        }
    }
}

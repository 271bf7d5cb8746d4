//! Adds entries to the text of a list variable.

/// Where entries are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// Before the existing entries.
    Front,
    /// After the existing entries.
    Back,
}

/// The separators of a variable's entries. New entries are always joined with a colon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Separators {
    /// `PATH`
    Colon,
    /// `LD_PRELOAD`, by ld.so(8)
    ColonOrSpace,
    /// `LD_LIBRARY_PATH`, by ld.so(8)
    ColonOrSemicolon,
}

impl Separators {
    fn splits(self, byte: u8) -> bool {
        byte == b':'
            || match self {
                Self::Colon => false,
                Self::ColonOrSpace => byte == b' ',
                Self::ColonOrSemicolon => byte == b';',
            }
    }

    /// The entries of `value`, without empty ones: an empty entry in a search path would mean the current directory,
    /// which an empty variable does not ask for.
    fn entries(self, value: &[u8]) -> impl Iterator<Item = &[u8]> {
        value.split(move |&byte| self.splits(byte)).filter(|entry| !entry.is_empty())
    }
}

/// `current` with those entries of `additions` that it lacks, in their order; `None` if there is nothing to add. The
/// bytes of `current` stay unchanged.
pub(crate) fn merge(
    current: &[u8],
    additions: &[u8],
    place: Position,
    separators: Separators,
) -> Option<Vec<u8>> {
    let mut new: Vec<&[u8]> = Vec::new();
    for entry in separators.entries(additions) {
        if !new.contains(&entry) && !separators.entries(current).any(|held| held == entry) {
            new.push(entry);
        }
    }
    if new.is_empty() {
        return None;
    }
    if !current.is_empty() {
        match place {
            Position::Front => new.push(current),
            Position::Back => new.insert(0, current),
        }
    }
    Some(new.join(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(
        current: &str,
        additions: &str,
        place: Position,
        separators: Separators,
    ) -> Option<String> {
        merge(current.as_bytes(), additions.as_bytes(), place, separators)
            .map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn adds_at_either_end() {
        let at = |place| text("/a:/b", "/x:/y", place, Separators::Colon);
        assert_eq!(at(Position::Back).as_deref(), Some("/a:/b:/x:/y"));
        assert_eq!(at(Position::Front).as_deref(), Some("/x:/y:/a:/b"));
    }

    #[test]
    fn starts_an_empty_variable_without_a_stray_separator() {
        for place in [Position::Front, Position::Back] {
            assert_eq!(text("", "/x", place, Separators::Colon).as_deref(), Some("/x"));
        }
    }

    #[test]
    fn compares_whole_entries() {
        let back = |current, add| text(current, add, Position::Back, Separators::Colon);
        assert_eq!(back("/a/bin:/b", "/a"), Some("/a/bin:/b:/a".into()));
        assert_eq!(back("/a", "/a/bin"), Some("/a:/a/bin".into()));
        assert_eq!(back("/a:/b", "/b"), None);
        assert_eq!(back("/b", "/x:/b:/x"), Some("/b:/x".into()));
    }

    #[test]
    fn nothing_to_add_changes_nothing() {
        for additions in ["", ":", "::", "/a"] {
            assert_eq!(text("/a:", additions, Position::Front, Separators::Colon), None);
        }
    }

    #[test]
    fn keeps_what_is_there() {
        // An empty entry in PATH means the current directory. If the user wrote it, it stays.
        let kept = text("/a::/b:", "/x", Position::Front, Separators::Colon);
        assert_eq!(kept.as_deref(), Some("/x:/a::/b:"));
    }

    #[test]
    fn separators_of_the_loader() {
        let preload = |current, add| text(current, add, Position::Back, Separators::ColonOrSpace);
        assert_eq!(preload("/a.so /b.so", "/b.so"), None);
        assert_eq!(preload("/a.so /b.so", "/a.so /c.so").as_deref(), Some("/a.so /b.so:/c.so"));
        let library = text("/a;/b", "/b:/c", Position::Back, Separators::ColonOrSemicolon);
        assert_eq!(library.as_deref(), Some("/a;/b:/c"));
        // A blank is an ordinary character of a directory in PATH.
        let path = text("/my tools", "/my", Position::Back, Separators::Colon);
        assert_eq!(path.as_deref(), Some("/my tools:/my"));
    }

    #[test]
    fn a_second_pass_adds_nothing() {
        for separators in
            [Separators::Colon, Separators::ColonOrSpace, Separators::ColonOrSemicolon]
        {
            for place in [Position::Front, Position::Back] {
                let once = text("/a:/b", "/x:/y:/a", place, separators).unwrap();
                assert_eq!(text(&once, "/x:/y:/a", place, separators), None);
            }
        }
    }
}

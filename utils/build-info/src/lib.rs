//! Version, commit, profile, target and compiler of a program or library, for `--version --verbose` and `sluice
//! doctor`.
//!
//! A library carries them as one line of text that begins with [`MARK`], so that a program can read them from the file
//! without loading it.

#![forbid(unsafe_code)]

/// Version of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit, with `-modified` if files differed from it. `unknown`: built without a repository, or as a debug build.
pub const COMMIT: &str = env!("BUILD_COMMIT");

/// `release` or `debug`.
pub const PROFILE: &str = env!("BUILD_PROFILE");

/// Target triple of the build.
pub const TARGET: &str = env!("BUILD_TARGET");

/// Version of the compiler.
pub const RUSTC: &str = env!("BUILD_RUSTC");

/// Beginning of the line in a library. The line ends with a line feed.
pub const MARK: &str = "\nsluice-build: ";

/// Longest line that is searched for, in bytes.
const LONGEST: usize = 1024;

/// The parts of the line that describes a library or program.
#[must_use]
pub const fn parts<'a>(name: &'a str, features: &'a str, engine: &'a str) -> [&'a str; 15] {
    [
        MARK,
        name,
        " ",
        VERSION,
        ", commit ",
        COMMIT,
        ", ",
        PROFILE,
        ", ",
        TARGET,
        ", rustc ",
        RUSTC,
        features,
        engine,
        "\n",
    ]
}

/// Total length of the parts, in bytes.
#[must_use]
pub const fn length(parts: &[&str]) -> usize {
    let (mut index, mut sum) = (0, 0);
    while index < parts.len() {
        sum += parts[index].len();
        index += 1;
    }
    sum
}

/// Concatenates the parts.
#[must_use]
pub const fn joined<const LENGTH: usize>(parts: &[&str]) -> [u8; LENGTH] {
    let mut all = [0; LENGTH];
    let (mut index, mut end) = (0, 0);
    while index < parts.len() {
        let part = parts[index].as_bytes();
        let mut byte = 0;
        while byte < part.len() {
            all[end] = part[byte];
            (byte, end) = (byte + 1, end + 1);
        }
        index += 1;
    }
    all
}

/// The line in a library's file, if there is one.
#[must_use]
pub fn line_in(library: &[u8]) -> Option<&str> {
    let mark = MARK.as_bytes();
    let places = library.windows(mark.len()).enumerate().filter(|(_, window)| *window == mark);
    places.filter_map(|(at, _)| line_at(&library[at + mark.len()..])).next()
}

/// The line after a mark, if there is one: a program that reads such lines contains the bare mark.
fn line_at(rest: &[u8]) -> Option<&str> {
    let rest = &rest[..rest.len().min(LONGEST)];
    let end = rest.iter().position(|&byte| byte == b'\n')?;
    let line = core::str::from_utf8(&rest[..end]).ok()?;
    (line.contains(", commit ") && !line.chars().any(char::is_control)).then_some(line)
}

/// Whether a program's arguments, without its name, are `--version` and `--verbose`, in any order.
#[must_use]
pub fn are_asked_for(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> bool {
    let (mut version, mut verbose) = (false, false);
    for argument in arguments {
        match argument.to_str() {
            Some("--version" | "-V") => version = true,
            Some("--verbose" | "-v") => verbose = true,
            _ => return false,
        }
    }
    version && verbose
}

/// The output of `--version --verbose`: one fact per line.
#[must_use]
pub fn told(name: &str, features: &[&str], more: &[(&str, &str)]) -> String {
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    let mut text = format!(
        "{name} {VERSION}\ncommit: {COMMIT}\nbuild: {PROFILE}, {TARGET}, rustc {RUSTC}\nfeatures: {features}"
    );
    for (key, value) in more {
        text += &format!("\n{key}: {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [&str; 15] = parts("lib", ", features none", ", engine e");
    static LINE: [u8; length(&PARTS)] = joined(&PARTS);

    #[test]
    fn a_line_is_found_among_other_bytes() {
        let mut file = vec![0xff; 100];
        // Looks like the line, but is not one.
        file.extend(MARK.as_bytes());
        file.extend([0; 10]);
        file.extend(LINE);
        file.extend([0xff; 100]);
        let line = line_in(&file).unwrap();
        assert!(line.starts_with(&format!("lib {VERSION}, commit {COMMIT}, ")), "{line}");
        assert!(line.ends_with(", features none, engine e"), "{line}");
        assert_eq!(line_in(&file[..150]), None);
    }

    #[test]
    fn both_words_ask_and_no_others() {
        let asked = |line: &str| are_asked_for(line.split_whitespace().map(Into::into));
        for line in ["--version --verbose", "--verbose --version", "-V -v", "-v --version"] {
            assert!(asked(line), "{line}");
        }
        for line in ["", "--version", "-v", "version --verbose", "run x --version --verbose"] {
            assert!(!asked(line), "{line}");
        }
    }

    #[test]
    fn nothing_is_left_empty() {
        for fact in [COMMIT, PROFILE, TARGET, RUSTC] {
            assert!(!fact.is_empty());
        }
    }
}

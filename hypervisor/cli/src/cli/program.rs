//! What `sluice run` is told of its program: its arguments, and the session's name.

use std::ffi::OsString;

use clap::Args;

use super::RunArgs;
use crate::Error;

/// A name that is no process id and no name that Sluice itself gives.
pub(super) fn session_name(name: &str) -> Result<String, String> {
    const LONGEST: usize = 64;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let fits = name.len() <= LONGEST
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(is_plain)
        && !name.starts_with("env-");
    if fits {
        return Ok(name.to_owned());
    }
    Err(format!(
        "expected a letter followed by letters, digits, '.', '_' and '-', at most {LONGEST} characters, not starting \
         with 'env-'"
    ))
}

/// Checks that the program's arguments cannot be meant for `sluice run`. `line`: the whole command line.
///
/// # Errors
/// [`Error::Usage`]
pub fn check_program(arguments: &RunArgs, line: &[OsString]) -> Result<(), Error> {
    let program = line.len().saturating_sub(arguments.command.len());
    if program.checked_sub(1).and_then(|before| line.get(before)).is_some_and(|word| word == "--") {
        return Ok(());
    }
    let own = RunArgs::augment_args(clap::Command::new("run"));
    let is_own = |word: &&OsString| {
        let word = word.to_string_lossy();
        if word == "--" {
            return true;
        }
        let name = word.split('=').next().unwrap_or_default().strip_prefix("--");
        name.is_some_and(|name| own.get_arguments().any(|known| known.get_long() == Some(name)))
    };
    let Some(word) = arguments.command.iter().find(is_own) else { return Ok(()) };
    let (word, program) = (word.display(), arguments.command.first().map(|word| word.display()));
    Err(Error::Usage(match program {
        Some(program) => format!(
            "'{word}' follows the program: put it before {program}, or put '--' before {program} if it belongs to the \
             program"
        ),
        None => "no program given".to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn the_dashes_are_needed_only_where_it_is_unclear() {
        let parsed = |line: &[&str]| {
            let line: Vec<OsString> =
                ["sluice", "run"].iter().chain(line).map(Into::into).collect();
            let cli = Cli::try_parse_from(&line).map_err(|error| error.to_string())?;
            let Command::Run(arguments) = cli.command else { unreachable!() };
            check_program(&arguments, &line).map_err(|error| error.to_string())?;
            Ok::<_, String>(arguments.command)
        };
        for (line, command) in [
            (&["--mem", "1g", "ls", "-l", "x"][..], &["ls", "-l", "x"][..]),
            (&["ls", "--color=auto"], &["ls", "--color=auto"]),
            (&["--mem", "1g", "--", "ls", "--mem", "2g"], &["ls", "--mem", "2g"]),
            (&["--", "sh", "-c", "x", "--", "a"], &["sh", "-c", "x", "--", "a"]),
        ] {
            assert_eq!(parsed(line).unwrap(), command, "{line:?}");
        }
        for unclear in [&["ls", "--mem", "2g"][..], &["ls", "--compute=5"], &["ls", "--", "x"]] {
            let error = parsed(unclear).unwrap_err();
            assert!(error.contains("put '--' before ls"), "{error}");
        }
        // No option becomes the program.
        assert!(parsed(&["--mme", "1g", "ls"]).unwrap_err().contains("--mme"));
        assert!(parsed(&["-x", "ls"]).is_err());
    }

    #[test]
    fn names_that_are_no_numbers() {
        for good in ["train", "a", "Job_1.2-b"] {
            assert_eq!(session_name(good).as_deref(), Ok(good));
        }
        for bad in ["", "4711", "-a", "a b", "a/b", "env-1", "ä", &"a".repeat(65)] {
            assert!(session_name(bad).unwrap_err().contains("at most 64 characters"), "{bad}");
        }
    }
}

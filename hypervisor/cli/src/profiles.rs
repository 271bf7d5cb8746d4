//! Profiles: limits with a name, in a file of the system's and one of the user's. `sluice config check` checks them.
//!
//! ```toml
//! [profile.small]
//! mem = "4GiB"
//! compute = 25
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ::limits::units::{parse_amount, parse_percent, parse_weight};
use ::limits::{Policy, Priority, Shown};
use toml::de::{DeTable, DeValue};

use super::cli::{ConfigCommand, LimitArgs, RunArgs};
use super::gpus::GpuRequest;
use super::{Error, limits, print, say};

/// The system's file.
pub const SYSTEM: &str = "/etc/sluice/config.toml";
/// The user's file, below the folder for settings.
pub const OF_USER: &str = "sluice/config.toml";
/// No longer file is read.
const MOST_BYTES: u64 = 1 << 20;

/// What is wrong with a file of settings, or with a profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is too long.
    #[error("{} is longer than {MOST_BYTES} bytes, the most that a file of profiles may have", .0.display())]
    Long(PathBuf),
    /// It is not TOML, or has something else in it than profiles.
    #[error("{}, line {line}: {problem}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A value that cannot be.
    #[error("{}, line {line}: profile '{profile}': {key} = {value}: {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// The profile.
        profile: String,
        /// Which setting.
        key: &'static str,
        /// What it says.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Settings that cannot be together.
    #[error("{}, line {line}: profile '{profile}': {problem}", path.display())]
    Together {
        /// The file.
        path: PathBuf,
        /// The line of its name, from 1.
        line: usize,
        /// The profile.
        profile: String,
        /// What is wrong.
        problem: String,
    },
    /// More than one of these.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Self>),
    /// No such profile.
    #[error("--profile '{wanted}': {}", known_profiles(.known))]
    Unknown {
        /// What was asked for.
        wanted: String,
        /// The profiles that there are.
        known: Vec<String>,
    },
}

impl ProfileError {
    fn one_by_one(self) -> Vec<Self> {
        match self {
            Self::Several(all) => all,
            one => vec![one],
        }
    }

    /// `Ok`: there are none.
    fn of(mut all: Vec<Self>) -> Result<(), Self> {
        match all.pop() {
            None => Ok(()),
            Some(one) if all.is_empty() => Err(one),
            Some(last) => {
                all.push(last);
                Err(Self::Several(all))
            }
        }
    }
}

fn known_profiles(names: &[String]) -> String {
    if names.is_empty() {
        return format!("no profile is defined; define it in {SYSTEM} or ~/.config/{OF_USER}");
    }
    format!("no such profile; available: {}", names.join(", "))
}

/// What a profile may set: the options of `sluice run`.
const KEYS: [&str; 9] =
    ["mem", "mem-real", "compute", "policy", "burst", "weight", "priority", "device", "gpus"];

/// A profile, as it is written: by key, the values and their line.
#[derive(Debug, Default)]
struct Words {
    line: usize,
    settings: BTreeMap<&'static str, (usize, Vec<String>)>,
}

/// A value as text. Numbers may be written as such. `None`: it is something else.
fn word(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => {
            let number = i64::from_str_radix(number.as_str(), number.radix());
            number.ok().map(|number| number.to_string())
        }
        DeValue::Float(number) => {
            number.as_str().parse().ok().map(|number: f64| number.to_string())
        }
        _ => None,
    }
}

/// The profiles that are written in a text, and what of it is none, with its line.
fn written(text: &str) -> (BTreeMap<String, Words>, Vec<(usize, String)>) {
    let line = |at: usize| text.get(..at).unwrap_or_default().matches('\n').count() + 1;
    let (file, errors) = DeTable::parse_recoverable(text);
    let of = |error: &toml::de::Error| {
        (line(error.span().map_or(0, |span| span.start)), error.message().to_owned())
    };
    let (mut profiles, mut wrong) = (BTreeMap::new(), errors.iter().map(of).collect::<Vec<_>>());
    for (key, value) in file.get_ref() {
        let at = line(key.span().start);
        let table = (key.get_ref() == "profile").then(|| value.get_ref().as_table()).flatten();
        let Some(table) = table else {
            wrong.push((at, format!("{}: expected [profile.NAME]", Shown(key.get_ref()))));
            continue;
        };
        for (name, value) in table {
            let mut words = Words { line: line(name.span().start), ..Words::default() };
            let Some(settings) = value.get_ref().as_table() else {
                let problem = format!("{}: expected [profile.NAME]", Shown(name.get_ref()));
                wrong.push((words.line, problem));
                continue;
            };
            for (key, value) in settings {
                let at = line(key.span().start);
                let Some(known) = KEYS.into_iter().find(|known| key.get_ref() == known) else {
                    let (key, known) = (Shown(key.get_ref()), KEYS.join(", "));
                    wrong.push((at, format!("{key}: unknown setting; expected one of {known}")));
                    continue;
                };
                let values = match value.get_ref() {
                    DeValue::Array(all) if known == "device" => {
                        all.iter().map(|one| word(one.get_ref())).collect()
                    }
                    one if known != "device" => word(one).map(|one| vec![one]),
                    _ => None,
                };
                match values {
                    Some(values) => _ = words.settings.insert(known, (at, values)),
                    None if known == "device" => {
                        wrong.push((at, "device: expected a list such as [0, 1]".to_owned()));
                    }
                    None => wrong.push((at, format!("{known}: expected a string or a number"))),
                }
            }
            profiles.insert(name.get_ref().to_string(), words);
        }
    }
    (profiles, wrong)
}

/// A profile.
#[derive(Debug, Clone, Default)]
pub(crate) struct Profile {
    limits: LimitArgs,
    device: Vec<String>,
    gpus: Option<GpuRequest>,
}

/// The profiles of a file.
type Profiles = BTreeMap<String, Profile>;

/// The names of all profiles in the files that can be read.
pub(crate) fn names() -> Vec<String> {
    let read = files().into_iter().filter_map(|path| read(&path).ok().flatten());
    read.flat_map(Profiles::into_keys).collect()
}

/// The arguments with what their profile adds. What is said on the command line counts more.
///
/// # Errors
/// [`Error::Profile`]
pub(crate) fn applied(arguments: &RunArgs) -> Result<RunArgs, Error> {
    let mut arguments = arguments.clone();
    let Some(wanted) = arguments.profile.clone() else { return Ok(arguments) };
    let mut all = Profiles::new();
    for path in files() {
        // The user's file is the later one.
        all.extend(read(&path)?.unwrap_or_default());
    }
    let Some(profile) = all.get(&wanted) else {
        let known = all.into_keys().map(|name| Shown(&name).to_string()).collect();
        return Err(ProfileError::Unknown { wanted, known }.into());
    };
    profile.fill(&mut arguments);
    Ok(arguments)
}

/// `sluice config check`: says all that is wrong, a line for each.
///
/// # Errors
/// [`Error::System`]: stdout cannot be written.
pub fn run(command: &ConfigCommand) -> Result<u8, Error> {
    let ConfigCommand::Check { file } = command;
    let mut text = String::new();
    let paths = file.clone().map_or_else(files, |file| vec![file]);
    let mut wrong = Vec::new();
    for path in &paths {
        let shown = Shown(&path.display().to_string()).to_string();
        match read(path) {
            Ok(Some(profiles)) => {
                let names: Vec<_> = profiles.keys().map(|name| Shown(name).to_string()).collect();
                text += &format!(
                    "{shown}: ok; profiles: {}\n",
                    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
                );
            }
            Ok(None) if file.is_some() => {
                let source = rustix::io::Errno::NOENT.into();
                wrong.push(ProfileError::Io { path: path.clone(), source });
            }
            Ok(None) => text += &format!("{shown}: does not exist\n"),
            Err(error) => wrong.extend(error.one_by_one()),
        }
    }
    print(&text)?;
    wrong.iter().for_each(|error| say(&error.to_string()));
    Ok(wrong.into_iter().next().map_or(0, |error| Error::from(error).exit_code()))
}

/// The files, in the order in which later ones count more.
fn files() -> Vec<PathBuf> {
    let folder =
        std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".config"));
    let own = folder.or_else(home).map(|folder| folder.join(OF_USER));
    [Some(PathBuf::from(SYSTEM)), own].into_iter().flatten().collect()
}

/// The profiles of a file; `None`: it is not there.
fn read(path: &Path) -> Result<Option<Profiles>, ProfileError> {
    let io = |source| ProfileError::Io { path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io)?,
    };
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(io)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(ProfileError::Long(path.to_owned()));
    }
    parse(path, &text).map(Some)
}

fn parse(path: &Path, text: &str) -> Result<Profiles, ProfileError> {
    let (written, wrong) = written(text);
    let mut profiles = Profiles::new();
    let in_text =
        |(line, problem)| (line, ProfileError::Text { path: path.to_owned(), line, problem });
    let mut wrong: Vec<(usize, ProfileError)> = wrong.into_iter().map(in_text).collect();
    for (name, words) in written {
        let (profile, problems) = profile(path, &name, &words);
        wrong.extend(problems);
        profiles.insert(name, profile);
    }
    wrong.sort_by_key(|(line, _)| *line);
    ProfileError::of(wrong.into_iter().map(|(_, error)| error).collect()).map(|()| profiles)
}

/// A profile, and what is wrong with it, by line.
fn profile(path: &Path, name: &str, words: &Words) -> (Profile, Vec<(usize, ProfileError)>) {
    fn value<T, E: ToString>(
        (path, profile, words): (&Path, &str, &Words),
        wrong: &mut Vec<(usize, ProfileError)>,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let (line, values) = words.settings.get(key)?;
        let value = values.first()?;
        let parsed = parse(value).map_err(|error| ProfileError::Value {
            path: path.to_owned(),
            line: *line,
            profile: profile.to_owned(),
            key,
            problem: error.to_string(),
            value: value.clone(),
        });
        parsed.map_err(|error| wrong.push((*line, error))).ok()
    }
    let (at, mut wrong) = ((path, name, words), Vec::new());
    let limits = LimitArgs {
        mem: value(at, &mut wrong, "mem", parse_amount),
        mem_real: value(at, &mut wrong, "mem-real", parse_amount),
        compute: value(at, &mut wrong, "compute", parse_percent),
        policy: value(at, &mut wrong, "policy", str::parse::<Policy>),
        soft: value(at, &mut wrong, "burst", parse_percent),
        weight: value(at, &mut wrong, "weight", parse_weight),
        priority: value(at, &mut wrong, "priority", str::parse::<Priority>),
    };
    let gpus = value(at, &mut wrong, "gpus", str::parse::<GpuRequest>);
    let device = words.settings.get("device").map_or_else(Vec::new, |(_, devices)| devices.clone());
    let together = |problem| {
        let (path, line, profile) = (path.to_owned(), words.line, name.to_owned());
        (line, ProfileError::Together { path, line, profile, problem })
    };
    if gpus.is_some() && !device.is_empty() {
        wrong.push(together("device and gpus exclude each other; set only one of them".to_owned()));
    }
    // Without a value that cannot be read, the others may not fit together.
    if wrong.is_empty()
        && let Err(error) = limits::check(&limits.request(), &[])
    {
        wrong.push(together(error.to_string()));
    }
    (Profile { limits, device, gpus }, wrong)
}

impl Profile {
    /// Fills in what the command line leaves open.
    fn fill(&self, arguments: &mut RunArgs) {
        let (own, limits) = (&mut arguments.limits, &self.limits);
        own.mem = own.mem.or(limits.mem);
        own.mem_real = own.mem_real.or(limits.mem_real);
        own.compute = own.compute.or(limits.compute);
        own.policy = own.policy.or(limits.policy);
        own.soft = own.soft.or(limits.soft);
        own.weight = own.weight.or(limits.weight);
        own.priority = own.priority.or(limits.priority);
        if arguments.device.is_empty() && arguments.gpus.is_none() {
            arguments.device.clone_from(&self.device);
            arguments.gpus.clone_from(&self.gpus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use ::limits::units::Amount;
    use clap::Parser;

    fn parsed(text: &str) -> Result<Profiles, String> {
        parse(Path::new("/c.toml"), text).map_err(|error| error.to_string())
    }

    fn run(line: &[&str]) -> RunArgs {
        let cli = Cli::try_parse_from([&["sluice", "run"], line].concat()).unwrap();
        let Command::Run(arguments) = cli.command else { unreachable!() };
        arguments
    }

    #[test]
    fn settings_are_the_options_of_run_and_the_command_line_counts_more() {
        let profiles = parsed(
            r#"
            [profile.small]
            mem = "4GiB"
            compute = 12.5
            [profile.shared]
            mem = "50%"
            mem-real = "1GiB"
            compute = 25
            burst = "60%"
            weight = 7
            priority = "low"
            device = [0, "GPU-1"]
            [profile.empty]
            "#,
        )
        .unwrap();
        let mut arguments = run(&["--compute", "30", "--device", "1", "true"]);
        profiles["small"].fill(&mut arguments);
        assert_eq!(arguments.limits.mem, Some(Amount::Bytes(4 << 30)));
        assert_eq!(arguments.limits.compute, Some(300_000));
        assert_eq!(profiles["small"].limits.compute, Some(125_000));
        profiles["shared"].fill(&mut arguments);
        assert_eq!(
            (arguments.device.as_slice(), arguments.limits.soft),
            (&["1".to_owned()][..], Some(600_000))
        );
        let mut arguments = run(&["true"]);
        profiles["shared"].fill(&mut arguments);
        assert_eq!(arguments.device, ["0", "GPU-1"]);
        assert_eq!(arguments.limits.priority, Some(Priority::Low));
        assert!(profiles["empty"].limits.request().is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (text, words) in [
            ("[profile.a]\nmem = \"4GiB\"\nmemory = 1\n", &["line 3", "memory", "mem-real"][..]),
            ("[profiles.a]\n", &["line 1", "profiles"]),
            ("[profile.a\n", &["/c.toml, line 1"]),
            ("[profile.a]\nmem = [1]\n", &["line 2"]),
            ("[profile.a]\nmem = 8\n", &["profile 'a': mem = 8: ", "8GiB"]),
            ("[profile.a]\ncompute = 101\n", &["compute = 101: "]),
            ("[profile.a]\npolicy = \"fair\"\n", &["policy = fair: ", "balance"]),
            ("[profile.a]\npriority = \"middle\"\n", &["priority = middle: "]),
            ("[profile.a]\nweight = 0\n", &["weight = 0: "]),
            ("[profile.a]\nburst = 60\n", &["profile 'a': ", "--burst needs --compute"]),
            ("[profile.a]\ngpus = 1\ndevice = [0]\n", &["device and gpus"]),
            ("[profile.a]\ngpus = \"some\"\n", &["gpus = some: "]),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
        let text = "[profile.b]\nweight = 0\nmemory = 1\nmem = [1]\n[profile.a]\nmem = 8\ncompute = 101\n[other]\n";
        let all = parse(Path::new("/c.toml"), text).unwrap_err().one_by_one();
        let all: Vec<_> = all.iter().map(ToString::to_string).collect();
        let places = [
            "line 2: profile 'b': weight = 0: ",
            "line 3: memory: unknown setting; expected one of mem, ",
            "line 4: mem: expected a string or a number",
            "line 6: profile 'a': mem = 8: ",
            "line 7: profile 'a': compute = 101: ",
            "line 8: other: expected [profile.NAME]",
        ];
        assert_eq!(all.len(), places.len(), "{all:?}");
        assert!(all.iter().zip(places).all(|(error, place)| error.contains(place)), "{all:?}");
        let none = ProfileError::Unknown { wanted: "x".to_owned(), known: Vec::new() };
        assert!(none.to_string().contains(SYSTEM));
    }
}

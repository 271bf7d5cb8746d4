//! Where variables are read from: a [`Snapshot`], or a test's set.

use super::snapshot::Snapshot;
use std::ffi::{OsStr, OsString};

/// A set of environment variables.
pub trait Environment {
    /// The names of all variables.
    fn names(&self) -> Vec<String>;

    /// The value of a variable that is set to text.
    fn get(&self, name: &str) -> Option<String>;

    /// Whether a variable is set to a value that is not UTF-8.
    fn is_not_text(&self, _name: &str) -> bool {
        false
    }
}

/// A name that is not UTF-8 may still look like an indexed variable; it is listed here and refused later.
impl Environment for Snapshot {
    fn names(&self) -> Vec<String> {
        self.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect()
    }

    fn get(&self, name: &str) -> Option<String> {
        self.value(OsStr::new(name)).and_then(|value| OsString::into_string(value.to_owned()).ok())
    }

    fn is_not_text(&self, name: &str) -> bool {
        self.value(OsStr::new(name)).is_some_and(|value| value.to_str().is_none())
    }
}

#[cfg(test)]
pub(super) mod fake {
    use super::Environment;
    use std::collections::BTreeMap;

    /// The variables of a test.
    #[derive(Default)]
    pub(crate) struct FakeEnvironment {
        pub(crate) values: BTreeMap<String, String>,
        pub(crate) not_text: Option<&'static str>,
    }

    impl<'a, const N: usize> From<[(&'a str, &'a str); N]> for FakeEnvironment {
        fn from(pairs: [(&'a str, &'a str); N]) -> Self {
            let values = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
            Self { values: values.into(), not_text: None }
        }
    }

    impl Environment for FakeEnvironment {
        fn names(&self) -> Vec<String> {
            self.values.keys().cloned().chain(self.not_text.map(str::to_owned)).collect()
        }

        fn get(&self, name: &str) -> Option<String> {
            self.values.get(name).cloned()
        }

        fn is_not_text(&self, name: &str) -> bool {
            self.not_text == Some(name)
        }
    }
}

//! Values that know who set them.

use std::borrow::Cow;

use core::fmt;

/// What the user calls a setting: an option (`--mem`), a variable (`CUDA_MEM_LIMIT_0`), a member of a
/// JSON document (`devices[0].share_ppm`), an annotation of a pod.
pub type Name = Cow<'static, str>;

/// A value, and what it was set by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T> {
    /// The value.
    pub value: T,
    /// What it was set by.
    pub name: Name,
}

impl<T> Named<T> {
    /// A value that `name` has set.
    pub fn new(value: T, name: impl Into<Name>) -> Self {
        Self { value, name: name.into() }
    }
}

impl<T: fmt::Display> fmt::Display for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.value, self.name)
    }
}

/// What the user would have to set, in their own words: an error that misses a setting says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// The memory limit.
    pub memory: &'static str,
    /// The part of it that may be on the device.
    pub real: &'static str,
    /// The share of the device's time.
    pub share: &'static str,
    /// What gives idle time on top of the share.
    pub balance: &'static str,
}

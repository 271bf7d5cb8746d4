//! Values with the name of the setting that set them, so that errors can name the user's setting.

use std::borrow::Cow;

use core::fmt;

/// A setting's name as the user knows it: an option (`--mem`), a variable (`CUDA_MEM_LIMIT_0`), a member of a JSON
/// document (`devices[0].share_ppm`), or an annotation of a pod.
pub type Name = Cow<'static, str>;

/// A value, and the setting that set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T> {
    /// The value.
    pub value: T,
    /// The setting that set it.
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

/// The user's names of settings, for errors about missing ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// The memory limit.
    pub memory: &'static str,
    /// The part of the memory limit that may be on the device.
    pub real: &'static str,
    /// The compute share.
    pub share: &'static str,
    /// The setting that grants idle time on top of the share.
    pub balance: &'static str,
}

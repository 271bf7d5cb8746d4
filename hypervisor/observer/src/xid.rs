//! Errors that the driver reports by a number (XID), and whose fault they are.
//!
//! The numbers are those of NVIDIA's "XID Errors". Which of them say nothing about the device is as in NVIDIA's
//! device plugin for Kubernetes (`ignoredXids`): a program can cause these by itself, and the next one runs. Every
//! other number counts against the device, one that nobody knows yet, too.

use core::fmt;

/// An error's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xid(pub u64);

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidClass {
    /// A program's. The device is as good as before.
    Application,
    /// The device's, or the driver's. It is not to be used before somebody has looked at it.
    Critical,
}

impl Xid {
    /// Whose fault it is.
    #[must_use]
    pub const fn class(self) -> XidClass {
        match self.0 {
            13 | 31 | 43 | 45 | 68 | 109 => XidClass::Application,
            _ => XidClass::Critical,
        }
    }

    /// What it means, in NVIDIA's words.
    #[must_use]
    pub const fn meaning(self) -> Option<&'static str> {
        Some(match self.0 {
            // A kernel read or wrote where it must not, or met an illegal instruction.
            13 => "graphics engine exception",
            31 => "GPU memory page fault",
            // The program was ended, and what it had on the device with it.
            43 => "GPU stopped processing",
            45 => "preemptive cleanup, due to previous errors",
            // The program gave the decoder what it cannot decode.
            68 => "video processor exception",
            // A kernel that cannot be interrupted ran for too long.
            109 => "context switch timeout error",
            48 => "double bit ECC error",
            61 => "internal micro-controller breakpoint or warning",
            62 => "internal micro-controller halt",
            63 => "row remapping or page retirement was recorded",
            64 => "row remapping or page retirement failed",
            74 => "NVLink error",
            79 => "GPU has fallen off the bus",
            92 => "high single-bit ECC error rate",
            94 => "contained memory error",
            95 => "uncontained memory error",
            110 => "security fault error",
            119 => "GSP RPC timeout",
            120 => "GSP error",
            140 => "unrecovered ECC error",
            _ => return None,
        })
    }
}

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XID {}", self.0)?;
        self.meaning().map_or(Ok(()), |meaning| write!(f, " ({meaning})"))
    }
}

//! Errors that the driver reports by a number (XID), and whether a program or the device is to blame.
//!
//! The numbers are from NVIDIA's "XID Errors". The harmless ones are those of NVIDIA's device plugin for Kubernetes
//! (`ignoredXids`): a program can cause them, and the next program runs. Every other number, known or not, counts
//! against the device.

use core::fmt;

/// Number of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xid(pub u64);

/// Whether a program or the device is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidClass {
    /// Caused by a program. The device is not affected.
    Application,
    /// Caused by the device or the driver. The device must not be used until an operator has checked it.
    Critical,
}

impl Xid {
    /// The error's class.
    #[must_use]
    pub const fn class(self) -> XidClass {
        match self.0 {
            13 | 31 | 43 | 45 | 68 | 109 => XidClass::Application,
            _ => XidClass::Critical,
        }
    }

    /// The error's meaning in NVIDIA's words; `None` for an unlisted number.
    #[must_use]
    pub const fn meaning(self) -> Option<&'static str> {
        Some(match self.0 {
            // A kernel made an invalid access or met an illegal instruction.
            13 => "graphics engine exception",
            31 => "GPU memory page fault",
            // The driver ended the program's work on the device.
            43 => "GPU stopped processing",
            45 => "preemptive cleanup, due to previous errors",
            // The program gave the decoder invalid input.
            68 => "video processor exception",
            // A kernel that cannot be preempted ran for too long.
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

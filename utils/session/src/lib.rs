//! Sessions: the processes that share one set of limits. This crate has a session's directory, its pages (one per
//! device), the ledger in them, the membership of a process, and a summary. The limiter, the daemon and `sluice` use
//! it.
//!
//! Each module uses only those above it here:
//!
//! * [`clock`], [`process`]: time, and the identity of processes
//! * [`layout`]: the fields of a page, with the limits; [`work_mark`]: one of them
//! * `user_namespace`: users unknown in this process's user namespace
//! * [`descriptors`]: keeps this crate's descriptors away from the program's
//! * `folder`: a folder that is used by its descriptor
//! * `lock`, [`ledger`]: decisions and arithmetic over a page's fields, without I/O
//! * [`Page`]: the file
//! * [`gate_page`]: memory that a process with stream gates shares with the daemon
//! * [`Membership`]: a process's slot in a page, through which it opens the ledger
//! * [`together`]: devices that are held together, in a page of their own
//! * [`directory`]: the directories of sessions, and the list of all sessions
//! * [`settings`]: the settings of a session's owner
//! * [`allocation`]: what a node mounts into a container, in place of an owner
//! * [`signals`]: a process's inherited signal state, for the programs that it starts
//! * [`node_page`]: the daemon's observations of the devices
//! * [`SessionSummary`]: a session's limits and use
//! * [`taken`]: which processes have taken a change of the limits

pub mod allocation;
pub mod clock;
pub mod descriptors;
pub mod directory;
mod folder;
pub mod gate_page;
pub mod kubelet_logs;
pub mod layout;
pub mod ledger;
mod limits;
mod lock;
mod membership;
pub mod node_page;
mod page;
pub mod process;
pub mod settings;
pub mod signals;
mod summary;
pub mod taken;
pub mod together;
mod user_namespace;
pub mod work_mark;

pub use membership::{First, LedgerGuard, Membership};
pub use page::{
    LimitsLock, Names, OwnThread, Page, PageError, ProcessSummary, Refusals, Summary,
    faults_are_caught, faults_may_change,
};
pub use summary::SessionSummary;

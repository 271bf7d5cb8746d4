//! Sessions: a session is the processes that share one quota. This crate has its directory, its
//! pages (one for each device), the ledger in them, the membership of a process, and a summary of
//! all that.
//!
//! Each module uses only those above it here:
//!
//! * [`clock`], [`process`]: time, and the identity of processes;
//! * [`layout`]: the fields of a page, with the limits; [`work_mark`]: one of them;
//! * `user_namespace`: users whom this process's user namespace does not know;
//! * [`descriptors`]: where this crate's files are among those of the program;
//! * `folder`: a folder that is used by its descriptor;
//! * `lock`, [`ledger`]: decisions and arithmetic over a page's fields, without I/O;
//! * [`Page`]: the file;
//! * [`gate_page`]: what a process and the daemon share while the process's gates are in its streams;
//! * [`Membership`]: a process's slot in a page, from which it opens the ledger;
//! * [`together`]: devices that are held together, in a page of their own;
//! * [`directory`]: where the pages of a session are, and which sessions exist;
//! * [`settings`]: what a session's owner decided;
//! * [`allocation`]: what the node's part for Kubernetes mounts into a container, instead of an owner;
//! * [`signals`]: what a process was started with, for the programs that it starts;
//! * [`node_page`]: what the daemon sees of the devices;
//! * [`SessionSummary`]: what a session has and uses;
//! * [`taken`]: which of its processes have taken a change of its limits.

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

//! Decides on which GPUs of which node a pod's containers have room. The extender and the node agent call it. Pure: no
//! I/O, no clock.
//!
//! A pod is a [`Request`]; what a pod on a node holds is its [`Holding`]. A node's [`Account`] is its registration less the
//! holdings of its pods. [`Account::place`] filters and assigns, [`Account::score`] ranks nodes. On the node,
//! [`Account::give`] assigns GPUs to the one container for which the kubelet asks.

#![forbid(unsafe_code)]

mod account;
mod assign;
mod give;
mod holding;
mod nearest;
mod refusal;
mod request;
mod usage;

pub use account::Account;
pub use give::{Recipient, TooFewGpus};
pub use holding::Holding;
pub use nearest::Offer;
pub use refusal::{Lack, PodRefusal, Refusal};
pub use request::{ContainerRequest, Request, Stage, policy};
pub use usage::Usage;

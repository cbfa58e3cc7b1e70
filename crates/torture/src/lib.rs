//! What `copyhold-torture` and `copyhold-soak` share: a pool with quotas and a log of its
//! daemon; blocks that name the write they are of; seeded choices.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it is threads and time that it is about")]

pub mod content;
pub mod dice;
pub mod error;
pub mod pool;

//! Crash simulation: random histories on a simulated disk, and a model that knows better.
//!
//! Problem.  The state after a crash depends on the writes that had reached the medium, on the
//!           operations under way, and on earlier faults. No hand-written test thinks of the case.
//! Idea.     One seed makes a history: several clients in one deterministic thread, a disk that
//!           loses, tears and reorders what was not flushed, faults, and crashes at any moment,
//!           also during recovery. After each recovery the engine must be what a plain model was
//!           after some prefix of the operations that contains every synced one.
//!
//! A simulation that has never failed proves nothing: [`Plan::broken`] breaks a rule of the engine
//! on purpose, and a test for each shows that this is noticed.

#![forbid(unsafe_code)]

mod damage;
mod dice;
pub mod enumeration;
pub mod faults;
pub mod fs_level;
mod full;
mod growth;
mod machine;
mod memory_orders;
mod mounted;
pub mod pool_level;
mod rogue;
mod run;
mod sabotage;
mod soundness;
mod weather;

pub use dice::Dice;
pub use enumeration::{Enumeration, Tally};
pub use machine::{Machine, damage};
pub use run::{Failure, Level, Outcome, Plan};
pub use sabotage::Sabotage;
pub use weather::Weather;

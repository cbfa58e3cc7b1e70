//! Crash simulation: random histories on a simulated disk, and a model that knows better.
//!
//! Problem.  What a crash leaves depends on which writes had reached the medium, on who was doing
//!           what, and on what had gone wrong before. No hand-written test thinks of the case.
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
mod machine;
mod mounted;
pub mod pool_level;
mod run;
mod sabotage;
mod soundness;
mod weather;

pub use dice::Dice;
pub use enumeration::{Enumeration, Tally};
pub use machine::Machine;
pub use run::{Failure, Level, Outcome, Plan};
pub use sabotage::Sabotage;
pub use weather::Weather;

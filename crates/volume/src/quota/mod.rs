//! Simple quotas: the payer of each extent and node, and the limits of usage.
//!
//! Problem.  Limits per tenant that hold with any number of snapshots, are exact after a crash, and
//!           cost nothing that can be measured: no walk from an extent to its referrers.
//! Idea.     Every extent and node is paid for, for its whole life, by the owner of its *origin
//!           epoch*. Charged when it is born, refunded when it dies, nothing in between.
//! On disk.  `format::item::quota`, in the system table; a row of usage for each origin epoch.
//! In core.  A [`Ledger`]: `rows` by epoch, an account for each owner, a node with running sums and
//!           limits for each group; all counters are atomics.
//!
//! QUOTA-Q1  Counted space has an origin not older than the enabling epoch, at birth and death
//!           (R25).
//! QUOTA-Q2  The sums of an account are those of the rows that name it, or an owner whose heir it
//!           is.
//! QUOTA-Q3  The sums of a group are those of the distinct accounts below it, by however many ways.
//! QUOTA-Q4  `load` of a node is its usage, its reservations and its unflushed edits; of a
//!           subvolume also those of subvolumes held inside it. A hold is given while load stays
//!           within the limit of every node on the way up, or of none.
//! QUOTA-Q5  A reserved byte has one holder: a [`Hold`] has it until it is charged, spent or given
//!           back.
//! QUOTA-Q6  Rows that closing a txg logs are those of its last transaction exactly (R24).
//! QUOTA-Q7  A row goes when it is zero and its epoch has ended (R26), an owner when it is dead and
//!           its last row has gone.
//!
//! Order of locks: groups; a shard of rows or accounts; the way up of one account. A charge takes
//! the last two, shared; none of them is held by one tenant in another one's way.
//!
//! The caller serialises what changes groups or owners, each from its call until the rows that it
//! gives are in a transaction that is applied: then their order in the log is their order here.

mod account;
mod amount;
mod error;
mod groups;
mod hold;
mod ledger;
mod load;
mod mode;
#[cfg(test)]
mod model;
mod node;
mod owners;
mod paths;
#[cfg(test)]
mod reference;
mod replace;
mod request;
mod rows;
mod share;
mod show;
mod sweep;

pub use amount::Amount;
pub use copyhold_format::item::{GroupId, Limits};
pub use error::{Exceeded, Miscount, QuotaError, Resource};
pub use groups::LimitKind;
pub use hold::Hold;
pub use ledger::{Ledger, Room};
pub use load::{Loader, Stray};
pub use owners::{Inherit, Resident};
pub use replace::Replaced;
pub use request::{Request, Tier};
pub use show::{GroupState, GroupUse, Status};

/// Most groups of which one can be a member itself: so creating a subvolume is one transaction of
/// bounded size (R28).
pub const PARENTS_MAX: usize = 16;

/// Edits of the system table, to be logged as they are, in this order.
pub type Rows = Vec<(copyhold_types::Key, copyhold_pool::Edit)>;

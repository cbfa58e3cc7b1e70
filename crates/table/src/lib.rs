//! Tables: an immutable base on disk, and the edits that it does not have yet.
//!
//! Problem.  Every metadata change goes to the log at once; settling each in its tree at once would
//!           write a path of nodes per edit.
//! Idea.     A table is a *base*, B-trees of packed nodes, and a *delta*, the edits in memory. It
//!           is cut in *partitions*, the subtree under one lowest inner node, which are flushed
//!           one at a time: freeze the delta, merge it in key order, write the touched nodes to
//!           new places, install the new root. There is nothing above partitions: their list is in
//!           memory, and on disk it is the items of the table of tables. Where the base cannot be
//!           read, or merging would rewrite much for little, the frozen edits become a *layer*
//!           instead, a sorted run over the base.
//! I/O.      None of its own. Nodes come from a [`NodeSource`] and go to a [`NodeSink`], which the
//!           pool implements (cache, copies, repair, allocation, digests).
//!
//! ```text
//!   look up   table.get / range / last_below (nodes, …).await; get_cached never waits
//!   edit      table.apply(txg, key, edit)             sync, infallible: join last (R1)
//!   flush     job     = table.freeze(start, …)        the delta's edits, or a bounded part of them
//!             flushed = job.merge(nodes, sink).await  reads and writes nodes; or, to make a layer,
//!                       job.spill(nodes, sink, room).await  which reads no base. Then wait for the
//!                                                     writes, flush the device and, in one
//!                                                     transaction,
//!             edits   = table.install(job, flushed)   put `edits` in the table of tables, release
//!                                                     `flushed.replaced`, log the allocations
//!             table.abort(job)                        if any of it failed: nothing has happened
//!   fork      child   = Table::over(parent, id)     the same content; no more edits of parent
//!             edits   = child.adopt()               when the parent is settled: its partitions
//!   recover   r = RecoveringTable::new(id); r.apply(txg, key, edit) …; r.finish(…, descriptors)
//!   policy    table.stats(), table.pin()
//!   rest      resting = table.rest()                while nothing refers to a table without edits
//!             table   = resting.open(id, limits)    the same again
//!   verify    table.for_each_node / for_each_item
//! ```
//!
//! TABLE-T1  An item's newest version is found in this order: delta, frozen delta, layers, base. A
//!           reader takes all of them at one moment, under one lock, and keeps to them until its
//!           end.
//! TABLE-T2  `pin`: every edit of an older txg is settled, in a base or layer. The log may be
//!           trimmed up to it.
//! TABLE-T3  `complete_to` of a partition: all its edits of txgs up to this one are settled.
//!           Replay may drop these edits; replaying more than needed results in the same table
//!           (edits are absolute, and replay always covers all of the log from some point on).
//! TABLE-T4  Partitions cover all keys: the first starts at `Key::MIN`, each ends where the next
//!           starts.
//!
//! Locks: the list of partitions, then one partition. Neither is held across an await.

#![forbid(unsafe_code)]

mod cache;
mod cursor;
mod delta;
mod edits;
mod error;
mod flush;
mod fork;
mod merge;
#[cfg(test)]
mod model;
mod owner;
mod packer;
mod partition;
mod pile;
mod read;
mod read_ahead;
mod recovery;
mod rest;
mod settled;
mod source;
mod spill;
#[cfg(test)]
mod store;
mod table;
mod value;
mod walk;

pub use cache::{CacheStats, NodeCache};
pub use delta::{Delta, EDIT_BYTES, Weight};
pub use error::TableError;
pub use flush::{DescriptorEdit, FlushJob, FreezePoint};
pub use merge::{Flushed, Part};
pub use read::{Differing, PartialItems, ReadBounds};
pub use recovery::RecoveringTable;
pub use rest::RestingTable;
pub use settled::LAYERS_HANDED;
pub use source::{NodeFuture, NodeSink, NodeSource};
pub use spill::MergeSize;
pub use table::{Cached, Limits, PartitionStats, Table};
pub use value::{Edit, Value};
pub use walk::NodeVisit;

//! Who is charged with what, read out of btrfs's own trees.
//!
//! Problem.  `btrfs qgroup show` tells one number per group, data and tree blocks together; old
//!           versions know nothing of simple mode.
//! Idea.     The quota tree gives usage, limits and relations. The extent tree names the owner of
//!           each data extent and when it was born, so data is recounted, and what is left of the
//!           usage is tree blocks.
//!
//! BTRFS-B1  Usage of a subvolume's group is at least its recounted data, and the rest is whole
//!           nodes.
//! BTRFS-B2  Counted are extents born in or after the generation in which quotas were enabled.
//!
//! Figures are of the last commit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;

use crate::error::{On, SuiteError};
use crate::filesystem::Row;
use crate::ioctl::{self, Item};
use crate::scenario::{GroupId, State};

pub(super) const NODE_BYTES: u64 = 16 << 10;

const ROOT_TREE: u64 = 1;
const EXTENT_TREE: u64 = 2;
const QUOTA_TREE: u64 = 8;

const ROOT_ITEM: u32 = 132;
const EXTENT_ITEM: u32 = 168;
const STATUS_ITEM: u32 = 240;
const INFO_ITEM: u32 = 242;
const LIMIT_ITEM: u32 = 244;
const RELATION_ITEM: u32 = 246;

const OWNER_REFERENCE: u8 = 172;
const FLAG_DATA: u64 = 1;
const LIMITS_REFERENCED: u64 = 1;
const TOP_LEVEL: u64 = 5;
const FIRST_SUBVOLUME: u64 = 256;

#[derive(Default)]
pub(super) struct Records {
    referenced: BTreeMap<GroupId, u64>,
    limits: BTreeMap<GroupId, u64>,
    parents: BTreeMap<GroupId, Vec<GroupId>>,
    data: BTreeMap<u64, u64>,
    live: BTreeSet<u64>,
}

impl Records {
    /// `None` where quotas are off.
    pub(super) fn read(root: &File) -> Result<Option<Records>, SuiteError> {
        let quota = match ioctl::items(root, QUOTA_TREE) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            items => items.on("the quota tree")?,
        };
        let roots = ioctl::items(root, ROOT_TREE).on("the root tree")?;
        let extents = ioctl::items(root, EXTENT_TREE).on("the extent tree")?;
        Ok(Some(Records::of(&quota, &roots, &extents)))
    }

    fn of(quota: &[Item], roots: &[Item], extents: &[Item]) -> Records {
        let mut records = Records::default();
        let mut enabled = 0;
        for item in quota {
            let child = group(item.object);
            let target = group(item.offset);
            match item.kind {
                STATUS_ITEM => enabled = wide(item, 32),
                INFO_ITEM => drop(records.referenced.insert(target, wide(item, 8))),
                LIMIT_ITEM if wide(item, 0) & LIMITS_REFERENCED != 0 => {
                    records.limits.insert(target, wide(item, 8));
                }
                // Each relation is there in both directions.
                RELATION_ITEM if child.level < target.level => {
                    records.parents.entry(child).or_default().push(target);
                }
                _ => {}
            }
        }
        let subvolumes = roots.iter().filter(|item| is_subvolume(item) && references(item) > 0);
        records.live = subvolumes.map(|item| item.object).collect();
        for item in extents.iter().filter(|item| item.kind == EXTENT_ITEM) {
            // References, generation and flags, then the inline references, the owner first.
            let is_counted = wide(item, 8) >= enabled && wide(item, 16) & FLAG_DATA != 0;
            if is_counted && item.value.get(24) == Some(&OWNER_REFERENCE) {
                *records.data.entry(wide(item, 25)).or_default() += item.offset;
            }
        }
        records
    }

    pub(super) fn rows(&self) -> Result<Vec<Row>, SuiteError> {
        self.referenced.iter().map(|(&group, &usage)| self.row(group, usage)).collect()
    }

    fn row(&self, group: GroupId, usage: u64) -> Result<Row, SuiteError> {
        let metadata = if group.level == 0 {
            self.metadata(group)?
        } else {
            let leaves = self.leaves(group);
            leaves.into_iter().map(|leaf| self.metadata(leaf)).sum::<Result<u64, _>>()?
        };
        let is_live = group.level > 0 || self.live.contains(&group.id);
        let state = match usage {
            _ if is_live => State::Live,
            0 => State::Stale,
            _ => State::Tombstone,
        };
        Ok(Row {
            group,
            state,
            // A group that members were taken from and given to at the wrong time may be anything.
            data: usage.saturating_sub(metadata),
            metadata: metadata.min(usage),
            limit: self.limits.get(&group).copied(),
            parents: self.parents.get(&group).cloned().unwrap_or_default(),
        })
    }

    /// BTRFS-B1.
    fn metadata(&self, group: GroupId) -> Result<u64, SuiteError> {
        let usage = self.referenced.get(&group).copied().unwrap_or_default();
        let data = self.data.get(&group.id).copied().unwrap_or_default();
        let metadata = usage.checked_sub(data).filter(|rest| rest.is_multiple_of(NODE_BYTES));
        metadata.ok_or_else(|| {
            SuiteError::Records(format!(
                "BTRFS-B1: usage of {group} is {usage}, its extents are {data}"
            ))
        })
    }

    /// The groups of subvolumes under a group, each once.
    fn leaves(&self, of: GroupId) -> BTreeSet<GroupId> {
        let members = self.parents.iter().filter(|(_, parents)| parents.contains(&of));
        let under = members.flat_map(|(&member, _)| match member.level {
            0 => BTreeSet::from([member]),
            _ => self.leaves(member),
        });
        under.collect()
    }
}

/// Whether deletion of some subvolume is not over.
pub(super) fn has_dying_subvolumes(root: &File) -> Result<bool, SuiteError> {
    let roots = ioctl::items(root, ROOT_TREE).on("the root tree")?;
    Ok(roots.iter().any(|item| is_subvolume(item) && references(item) == 0))
}

fn is_subvolume(item: &Item) -> bool {
    let is_user = item.object == TOP_LEVEL || item.object >= FIRST_SUBVOLUME;
    // Ids from the top down are the kernel's own.
    item.kind == ROOT_ITEM && is_user && item.object < 1 << 48
}

/// Zero once the subvolume is deleted.
fn references(root: &Item) -> u64 {
    wide(root, 216) & u64::from(u32::MAX)
}

fn group(id: u64) -> GroupId {
    GroupId { level: (id >> 48) as u16, id: id & ((1 << 48) - 1) }
}

fn wide(item: &Item, at: usize) -> u64 {
    let bytes = item.value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(object: u64, kind: u32, offset: u64, fields: &[u64]) -> Item {
        let value = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
        Item { object, kind, offset, value }
    }

    fn extent(generation: u64, bytes: u64, owner: u64) -> Item {
        let mut extent = item(1, EXTENT_ITEM, bytes, &[1, generation, FLAG_DATA]);
        extent.value.push(OWNER_REFERENCE);
        extent.value.extend(owner.to_le_bytes());
        extent
    }

    fn root(id: u64, references: u32) -> Item {
        let mut value = vec![0; 439];
        value[216..220].copy_from_slice(&references.to_le_bytes());
        Item { object: id, kind: ROOT_ITEM, offset: 0, value }
    }

    #[test]
    fn data_is_recounted_and_the_rest_is_metadata() {
        let parent = (1 << 48) | 100;
        let quota = [
            item(0, STATUS_ITEM, 0, &[1, 9, 9, 0, 7]),
            item(0, INFO_ITEM, 256, &[9, 8192 + NODE_BYTES, 0, 0, 0]),
            item(0, INFO_ITEM, 257, &[9, 4096, 0, 0, 0]),
            item(0, INFO_ITEM, 258, &[9, 0, 0, 0, 0]),
            item(0, INFO_ITEM, parent, &[9, 8192 + NODE_BYTES, 0, 0, 0]),
            item(0, LIMIT_ITEM, 256, &[1, 1 << 20, 0, 0, 0]),
            item(256, RELATION_ITEM, parent, &[]),
            item(parent, RELATION_ITEM, 256, &[]),
        ];
        let extents = [extent(7, 8192, 256), extent(6, 4096, 256), extent(8, 4096, 257)];
        let records = Records::of(&quota, &[root(256, 1), root(257, 0)], &extents);
        let rows = records.rows().unwrap();
        let [a, dead, stale, group] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((a.data, a.metadata, a.limit), (8192, NODE_BYTES, Some(1 << 20)));
        assert_eq!((a.state, a.parents.as_slice()), (State::Live, [group.group].as_slice()));
        assert_eq!((dead.state, stale.state), (State::Tombstone, State::Stale));
        assert_eq!((group.data, group.metadata), (8192, NODE_BYTES));
    }

    #[test]
    fn usage_below_the_extents_is_noticed() {
        let quota = [item(0, INFO_ITEM, 256, &[9, 4096, 0, 0, 0])];
        let records = Records::of(&quota, &[], &[extent(7, 8192, 256)]);
        assert!(records.rows().unwrap_err().to_string().contains("BTRFS-B1"));
    }
}

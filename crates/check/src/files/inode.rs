//! One inode: its item against all else that it has.
//!
//! INODE-I1  An inode has an inode item, and only items that its type has.
//! INODE-I2  Extents ascend, do not overlap, never cross a multiple of 32 blocks (P11), are of an
//!           epoch that the subvolume has seen, and sum up to the inode's count of allocated
//!           blocks.
//! INODE-I3  A name, of an entry or an attribute, is under the key that its hash gives (R41).
//! INODE-I4  What an inode counts (entries, attributes, bytes of a target) it has.
//! INODE-I5  ACLs can be parsed, and an access ACL and the mode say the same of owner, group and
//!           others.
//! INODE-I6  An extent with tuples beside its blocks is on a device that has such, and its birth
//!           is no txg that is yet to come. The label says so, as it does of extents without
//!           checksums, and of files for which either is wanted.
//!
//! INODE-I4, INODE-I5 and the sum of INODE-I2 are not asked of a file that is being removed in
//! steps.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::FormatError;
use copyhold_format::item::{
    ACCESS_ACL, Acl, ChecksumMode, Content, DEFAULT_ACL, DIRENT, DIRENT_SUBVOL, DirBucket, EXTENT,
    EXTENT_BLOCKS_MAX, Extent, ExtentState, INLINE, INODE, InodeFlags, InodeItem, SYMLINK, XATTR,
    XATTR_VALUE, XATTR_VALUE_PIECE, XattrBucket, XattrValue, dirent_bucket, inode_key,
    parse_inline, parse_symlink, xattr_bucket, xattr_piece,
};
use copyhold_format::label::Features;
use copyhold_pool::{birth_of, features_of};
use copyhold_types::{BLOCK_BYTES, Key, SubvolId};

use super::Walk;
use super::data::DataJob;
use super::index::DIRECTORY;
use crate::checker::Checker;
use crate::problem::{FileId, Owner, Problem};
use crate::refs::Ref;

/// Attributes that the inode must say it has, since only then they are looked for.
const ACLS: [(&[u8], u16); 2] =
    [(ACCESS_ACL, InodeFlags::ACCESS_ACL), (DEFAULT_ACL, InodeFlags::DEFAULT_ACL)];
const REGULAR: u8 = 8;
const LINK: u8 = 10;

/// The state of an inode so far.
pub(super) struct Current {
    file: FileId,
    item: Option<InodeItem>,
    /// Its inode item is there, though it may mean nothing.
    has_item: bool,
    items: u64,
    /// First file block behind the last extent.
    end: u64,
    blocks: u64,
    entries: u64,
    attributes: u64,
    /// The ACLs among them: each name's flag and value, as far as it has been seen.
    acls: BTreeMap<&'static [u8], (u16, Vec<u8>)>,
    /// Pieces of long values that are still to come: how long, and of which attribute.
    pieces: BTreeMap<Key, (usize, String)>,
    inline: bool,
    target: Option<u64>,
    first_extent: Option<u64>,
}

impl Current {
    pub(super) fn new(file: FileId) -> Current {
        Current {
            file,
            item: None,
            has_item: false,
            items: 0,
            end: 0,
            blocks: 0,
            entries: 0,
            attributes: 0,
            acls: BTreeMap::new(),
            pieces: BTreeMap::new(),
            inline: false,
            target: None,
            first_extent: None,
        }
    }

    pub(super) fn ino(&self) -> u64 {
        self.file.ino.0
    }

    fn kind(&self) -> Option<u8> {
        self.item.map(|item| (item.mode >> 12) as u8)
    }

    pub(super) fn item(
        &mut self,
        walk: &mut Walk<'_>,
        checker: &mut Checker,
        key: Key,
        value: &[u8],
    ) {
        self.items += 1;
        let parsed = match key.kind {
            INODE if key.offset == 0 => self.inode_item(walk, value),
            INLINE if key.offset == 0 => {
                self.inline = true;
                self.expect(checker, key, REGULAR, "it is not a regular file");
                parse_inline(value).map(drop)
            }
            SYMLINK if key.offset == 0 => {
                self.target = Some(value.len() as u64);
                self.expect(checker, key, LINK, "it is not a symlink");
                parse_symlink(value).map(drop)
            }
            DIRENT => self.bucket(walk, checker, key, value),
            XATTR => self.attributes(walk, checker, key, value),
            XATTR_VALUE => self.piece(checker, key, value),
            EXTENT => self.extent(walk, checker, key, value),
            _ => {
                checker.report.add(Problem::UnknownItem { table: walk.table(), key });
                Ok(())
            }
        };
        if let Err(error) = parsed {
            let why = error.to_string();
            checker.report.add(Problem::Item { file: self.file, key, why });
        }
    }

    fn inode_item(&mut self, walk: &mut Walk<'_>, value: &[u8]) -> Result<(), FormatError> {
        self.has_item = true;
        walk.inodes += u64::from(self.file.ino >= walk.bounds.counted_from);
        let item = InodeItem::parse(value)?;
        let kind = (item.mode >> 12) as u8;
        walk.index.add_inode(self.file.ino, kind, item.nlink, item.parent);
        self.item = Some(item);
        Ok(())
    }

    /// INODE-I1: the item belongs to inodes of `kind` only.
    fn expect(&self, checker: &mut Checker, key: Key, kind: u8, why: &'static str) {
        if self.kind().is_some_and(|found| found != kind) {
            checker.report.add(Problem::Misplaced { file: self.file, key, why });
        }
    }

    fn bucket(
        &mut self,
        walk: &mut Walk<'_>,
        checker: &mut Checker,
        key: Key,
        value: &[u8],
    ) -> Result<(), FormatError> {
        self.expect(checker, key, DIRECTORY, "it is not a directory");
        let bucket = DirBucket::parse(value)?;
        let mut names = BTreeSet::new();
        for entry in bucket.iter() {
            self.entries += 1;
            checker.report.verified.names += 1;
            if entry.kind == DIRENT_SUBVOL {
                let (holder, directory) = (self.file.subvol, self.file.ino);
                walk.holders.push(directory);
                let subvol = SubvolId(entry.ino.0 as u32);
                checker.subvol_entries.push((holder, directory, subvol));
            } else {
                walk.index.add_name(self.file.ino, entry.ino, entry.kind);
            }
            let why = match () {
                () if dirent_bucket(&walk.item.hash_key, entry.name) != key.offset => {
                    "it is under another name's hash"
                }
                () if !names.insert(entry.name) => "it is there twice",
                () => continue,
            };
            let name = String::from_utf8_lossy(entry.name).into_owned();
            checker.report.add(Problem::Entry { dir: self.file, name, why: why.into() });
        }
        Ok(())
    }

    fn attributes(
        &mut self,
        walk: &Walk<'_>,
        checker: &mut Checker,
        key: Key,
        value: &[u8],
    ) -> Result<(), FormatError> {
        for attribute in XattrBucket::parse(value)?.iter() {
            self.attributes += 1;
            checker.report.verified.attributes += 1;
            let name = String::from_utf8_lossy(attribute.name).into_owned();
            if xattr_bucket(&walk.item.hash_key, attribute.name) != key.offset {
                let why = "it is under another name's hash".into();
                checker.report.add(Problem::Xattr { file: self.file, name, why });
                continue;
            }
            for (acl, flag) in ACLS.iter().filter(|(acl, _)| *acl == attribute.name) {
                let here = match attribute.value {
                    XattrValue::Here(value) => value.to_vec(),
                    XattrValue::Pieces(_) => Vec::new(),
                };
                self.acls.insert(acl, (*flag, here));
            }
            let XattrValue::Pieces(len) = attribute.value else { continue };
            for n in 0..attribute.value.pieces() {
                let piece = xattr_piece(self.file.ino, key.offset, attribute.index, n);
                let bytes = (len - n * XATTR_VALUE_PIECE).min(XATTR_VALUE_PIECE);
                self.pieces.insert(piece, (bytes, name.clone()));
            }
        }
        Ok(())
    }

    fn piece(&mut self, checker: &mut Checker, key: Key, value: &[u8]) -> Result<(), FormatError> {
        let file = self.file;
        match self.pieces.remove(&key) {
            None => {
                let why = "no attribute has this piece of a value";
                checker.report.add(Problem::Misplaced { file, key, why });
            }
            Some((bytes, name)) if bytes == value.len() => {
                if let Some((_, acl)) = self.acls.get_mut(name.as_bytes()) {
                    acl.extend_from_slice(value);
                }
            }
            Some((bytes, name)) => {
                let why = format!("a piece of its value has {} bytes of {bytes}", value.len());
                checker.report.add(Problem::Xattr { file, name, why });
            }
        }
        Ok(())
    }

    fn extent(
        &mut self,
        walk: &mut Walk<'_>,
        checker: &mut Checker,
        key: Key,
        value: &[u8],
    ) -> Result<(), FormatError> {
        self.expect(checker, key, REGULAR, "it is not a regular file");
        let extent = Extent::parse(value)?;
        let (block, blocks) = (key.offset, extent.blocks());
        checker.report.verified.extents += 1;
        let wrong = self.extent_is_wrong(walk, block, &extent);
        if let Some(why) = wrong.or_else(|| checksums_are_wrong(checker, &extent.state)) {
            checker.report.add(Problem::Extent { file: self.file, block, why });
        }
        self.end = self.end.max(block.saturating_add(blocks.into()));
        self.blocks += u64::from(blocks);
        self.first_extent = self.first_extent.or(Some(block));
        let run = extent.pointer.run;
        let (by, is_read) = (Owner::File { file: self.file, block }, checker.reach.has(run));
        if checker.counting {
            checker.refer_again(run, by);
            walk.refs.push(Ref::new(Content::Data, extent.pointer, [1]));
        } else {
            checker.refer(run, by);
        }
        // Extents that snapshots share are read once.
        let content = extent.state;
        if content != ExtentState::Unwritten
            && checker.options.data
            && !(checker.counting && is_read)
        {
            walk.jobs.push(DataJob { file: self.file, block, run, content });
        }
        Ok(())
    }

    /// INODE-I2.
    fn extent_is_wrong(&self, walk: &Walk<'_>, block: u64, extent: &Extent) -> Option<String> {
        let (epoch, origin) = (extent.pointer.epoch, extent.pointer.origin);
        let last = block.saturating_add(u64::from(extent.blocks()) - 1);
        let chunk = u64::from(EXTENT_BLOCKS_MAX);
        if block < self.end {
            return Some("it overlaps the one before".into());
        }
        if block / chunk != last / chunk {
            return Some(format!("its {} blocks cross a multiple of {chunk}", extent.blocks()));
        }
        if epoch > walk.bounds.newest {
            let now = walk.bounds.newest;
            return Some(format!("it is of epoch {epoch}, and the subvolume is at {now}"));
        }
        (epoch.0 == 0 || origin.0 == 0).then(|| "it is of no epoch".into())
    }

    /// There are no more items of it.
    pub(super) fn finish(mut self, walk: &mut Walk<'_>, checker: &mut Checker) {
        let file = self.file;
        if !self.has_item {
            if !checker.is_lost(walk.table(), inode_key(file.ino)) {
                checker.report.add(Problem::NoInode { file, items: self.items });
            }
            return;
        }
        let Some(item) = self.item else { return };
        checker.report.verified.inodes += 1;
        if file.ino.0 >= walk.bounds.mark && file.ino != copyhold_types::InodeNo::ROOT {
            let (what, number, mark) = ("inode", file.ino.0, walk.bounds.mark);
            checker.report.add(Problem::IdMark { what, number, mark });
        }
        if item.nlink == 0 && walk.orphans.contains(&file.ino.0) {
            checker.report.verified.orphans += 1;
            return;
        }
        if !walk.is_partly_lost(checker, file.ino.0) {
            self.check_counts(checker, &item);
        }
    }

    /// INODE-I4, and the sum of INODE-I2.
    fn check_counts(&mut self, checker: &mut Checker, item: &InodeItem) {
        let file = self.file;
        let has_places = uses_modes(checker);
        let mut field = |field, said: u64, found: u64| {
            if said != found {
                checker.report.add(Problem::Field { file, field, said, found });
            }
        };
        if !has_places {
            field(
                "checksum mode",
                item.checksum_mode.code().into(),
                ChecksumMode::Item.code().into(),
            );
        }
        field("number of attributes", item.xattrs.into(), self.attributes);
        match self.kind() {
            Some(DIRECTORY) => field("number of entries", item.size, self.entries),
            Some(LINK) => field("size", item.size, self.target.unwrap_or(item.size)),
            Some(REGULAR) => {
                field("allocated size", item.allocated, self.blocks * BLOCK_BYTES as u64);
            }
            _ => {}
        }
        if self.kind() == Some(LINK) && self.target.is_none() {
            checker.report.add(Problem::NoTarget { file });
        }
        let says_inline = item.has.has(InodeFlags::INLINE);
        if says_inline && !self.inline {
            checker.report.add(Problem::NoInline { file });
        }
        if self.inline && (!says_inline || self.first_extent == Some(0)) {
            let key = Key::new(file.ino.0, INLINE, 0);
            let why = "its first block is elsewhere";
            checker.report.add(Problem::Misplaced { file, key, why });
        }
        for (acl, flag) in ACLS {
            if self.acls.contains_key(acl) != item.has.has(flag) {
                let name = String::from_utf8_lossy(acl).into_owned();
                let why = "the inode says otherwise, so it is not looked at or not found".into();
                checker.report.add(Problem::Xattr { file, name, why });
            }
        }
        match self.pieces.is_empty() {
            true => self.check_acls(checker, item),
            false => self.tell_missing_pieces(checker),
        }
    }

    fn tell_missing_pieces(&mut self, checker: &mut Checker) {
        let file = self.file;
        for (_, name) in std::mem::take(&mut self.pieces).into_values() {
            let why = "a piece of its value is missing".into();
            checker.report.add(Problem::Xattr { file, name, why });
        }
    }

    /// INODE-I5.
    fn check_acls(&self, checker: &mut Checker, item: &InodeItem) {
        for (name, (flag, value)) in &self.acls {
            let mode = item.mode & 0o777;
            let why = match Acl::parse(value) {
                Err(error) => error.to_string(),
                Ok(acl) if *flag == InodeFlags::ACCESS_ACL && acl.mode() != mode => {
                    format!("it goes with mode {:03o}, and the mode is {mode:03o}", acl.mode())
                }
                Ok(_) => continue,
            };
            let name = String::from_utf8_lossy(name).into_owned();
            checker.report.add(Problem::Acl { file: self.file, name, why });
        }
    }
}

/// Whether the label says that extents may have another checksum mode than the item.
fn uses_modes(checker: &Checker) -> bool {
    features_of(&checker.pool).incompat & Features::CHECKSUM_MODES != 0
}

/// INODE-I6.
fn checksums_are_wrong(checker: &Checker, content: &ExtentState) -> Option<String> {
    let mode = content.checksum_mode().filter(|mode| *mode != ChecksumMode::Item)?;
    let pool = &checker.pool;
    if !uses_modes(checker) {
        return Some(format!("its checksum mode is \"{mode}\", which the label does not say"));
    }
    let birth = content.birth()?;
    if pool.device().protection().is_none() {
        return Some("its checksums are beside its blocks, and the device has none there".into());
    }
    // A birth is the low half of a txg: half of all numbers are before the open one.
    let age = birth_of(pool.open_txg()).wrapping_sub(birth);
    (age > u32::MAX / 2)
        .then(|| format!("its blocks were born in txg {birth}, which is yet to come"))
}

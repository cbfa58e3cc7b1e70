//! POSIX ACLs: the values of the attributes `system.posix_acl_access` and
//! `system.posix_acl_default`.
//!
//! ```text
//! version u32 (2), then per entry:  tag u16 · permissions u16 · uid or gid u32
//! ```
//!
//! The entries are sorted by tag, users and groups by id; where there are any of these, a mask is,
//! too, and it takes the place of the group in the mode. An ACL is as long as an attribute can be:
//! 8191 entries. No bytes at all, and a version alone, are an ACL without entries.

use crate::FormatError;

pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

const WHAT: &str = "ACL";
const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;

/// The class of users that an entry is for.
pub const USER_OBJ: u16 = 0x01;
pub const NAMED_USER: u16 = 0x02;
pub const GROUP_OBJ: u16 = 0x04;
pub const NAMED_GROUP: u16 = 0x08;
pub const MASK: u16 = 0x10;
pub const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    pub tag: u16,
    pub perm: u16,
    pub id: u32,
}

/// A parsed ACL: its bytes are known to be good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acl<'a>(&'a [u8]);

impl<'a> Acl<'a> {
    pub fn parse(value: &'a [u8]) -> Result<Acl<'a>, FormatError> {
        if value.is_empty() {
            return Ok(Acl(value));
        }
        let cut_short = FormatError::Short { what: WHAT, len: value.len() };
        let (version, entries) = value.split_first_chunk().ok_or(cut_short.clone())?;
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(bad("version", version.into()));
        }
        if entries.len() % ENTRY_BYTES != 0 {
            return Err(cut_short);
        }
        let acl = Acl(entries);
        acl.check()?;
        Ok(acl)
    }

    fn check(&self) -> Result<(), FormatError> {
        let mut before: Option<AclEntry> = None;
        for entry in self.entries() {
            if !matches!(entry.tag, USER_OBJ | NAMED_USER | GROUP_OBJ | NAMED_GROUP | MASK | OTHER)
            {
                return Err(bad("tag", entry.tag.into()));
            }
            if entry.perm > 7 {
                return Err(bad("permissions", entry.perm.into()));
            }
            let is_named = matches!(entry.tag, NAMED_USER | NAMED_GROUP);
            let is_sorted = before.is_none_or(|before| {
                before.tag < entry.tag
                    || (before.tag == entry.tag && is_named && before.id < entry.id)
            });
            if !is_sorted {
                let detail = format!("the entry with tag {} and id {}", entry.tag, entry.id);
                return Err(FormatError::Order { what: WHAT, detail });
            }
            before = Some(entry);
        }
        let has = |tag| self.perm(tag).is_some();
        let needs_mask = has(NAMED_USER) || has(NAMED_GROUP);
        let needed = [USER_OBJ, GROUP_OBJ, OTHER].into_iter().chain(needs_mask.then_some(MASK));
        let missing = needed.into_iter().find(|tag| !self.is_empty() && !has(*tag));
        missing.map_or(Ok(()), |tag| Err(bad("no entry with tag", tag.into())))
    }

    pub fn entries(&self) -> impl Iterator<Item = AclEntry> + use<'a> {
        self.0.chunks_exact(ENTRY_BYTES).map(|raw| AclEntry {
            tag: u16::from_le_bytes([raw[0], raw[1]]),
            perm: u16::from_le_bytes([raw[2], raw[3]]),
            id: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
        })
    }

    pub fn len(&self) -> usize {
        self.0.len() / ENTRY_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a mode expresses all of it.
    pub fn is_plain(&self) -> bool {
        self.len() == 3
    }

    /// The permissions that the first entry with this tag grants.
    pub fn perm(&self, tag: u16) -> Option<u16> {
        self.entries().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    /// The permission bits that go with it.
    pub fn mode(&self) -> u16 {
        let group = self.perm(MASK).or(self.perm(GROUP_OBJ)).unwrap_or(0);
        self.perm(USER_OBJ).unwrap_or(0) << 6 | group << 3 | self.perm(OTHER).unwrap_or(0)
    }
}

pub fn encode_acl(entries: impl IntoIterator<Item = AclEntry>) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        out.extend_from_slice(&entry.tag.to_le_bytes());
        out.extend_from_slice(&entry.perm.to_le_bytes());
        out.extend_from_slice(&entry.id.to_le_bytes());
    }
    out
}

fn bad(field: &'static str, value: u64) -> FormatError {
    FormatError::Field { what: WHAT, field, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: u32 = u32::MAX;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        encode_acl(entries.iter().map(|&(tag, perm, id)| AclEntry { tag, perm, id }))
    }

    #[test]
    fn a_named_user_needs_a_mask() {
        let plain = [(USER_OBJ, 6, NONE), (GROUP_OBJ, 4, NONE), (OTHER, 0, NONE)];
        assert!(Acl::parse(&acl(&plain)).unwrap().is_plain());
        let named = [
            (USER_OBJ, 6, NONE),
            (NAMED_USER, 7, 5),
            (GROUP_OBJ, 4, NONE),
            (MASK, 5, NONE),
            (OTHER, 0, NONE),
        ];
        assert_eq!(Acl::parse(&acl(&named)).unwrap().mode(), 0o650);
        let no_mask: Vec<_> = named.iter().copied().filter(|entry| entry.0 != MASK).collect();
        assert!(Acl::parse(&acl(&no_mask)).is_err());
        let mut unsorted = named;
        unsorted.swap(0, 1);
        assert!(Acl::parse(&acl(&unsorted)).is_err());
        assert!(Acl::parse(&acl(&named)[..11]).is_err());
        for wrong in [(USER_OBJ, 8, NONE), (0x40, 6, NONE), (OTHER, 6, NONE)] {
            let mut entries = named;
            entries[0] = wrong;
            assert!(Acl::parse(&acl(&entries)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn no_entries_are_an_acl_and_another_version_is_none() {
        assert!(Acl::parse(b"").unwrap().is_empty());
        assert!(Acl::parse(&acl(&[])).unwrap().is_empty());
        assert!(Acl::parse(&[3, 0, 0, 0]).is_err());
        assert!(Acl::parse(&[2, 0, 0]).is_err());
    }
}

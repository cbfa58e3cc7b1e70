//! Extensions at the end of requests that create something: security contexts and groups.
//!
//! On the wire a list of [`wire::ExtHeader`]s with their bodies, each padded to 8 bytes. They are
//! walked once when the request is parsed, so that the iterators cannot fail.

use zerocopy::FromBytes;

use super::error::ParseError;
use super::wire;

/// The checked extensions of one request; empty for most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extensions<'a> {
    bytes: &'a [u8],
}

/// A label that a security module wants on the new inode, as an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityContext<'a> {
    /// Name of the attribute, such as `security.selinux`.
    pub name: &'a [u8],
    pub value: &'a [u8],
}

impl<'a> Extensions<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Extensions<'a>, ParseError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (kind, body, next) = split(rest).ok_or(ParseError::Extension)?;
            if kind <= wire::MAX_SECURITY_CONTEXTS {
                let found = Contexts { left: kind, bytes: body }.count();
                if found != kind as usize {
                    return Err(ParseError::Extension);
                }
            }
            rest = next;
        }
        Ok(Extensions { bytes })
    }

    pub fn security_contexts(&self) -> impl Iterator<Item = SecurityContext<'a>> + use<'a> {
        walk(self.bytes)
            .filter(|(kind, _)| *kind <= wire::MAX_SECURITY_CONTEXTS)
            .flat_map(|(kind, bytes)| Contexts { left: kind, bytes })
    }

    /// The supplementary group of the caller that owns the directory, if the kernel sent one.
    pub fn groups(&self) -> impl Iterator<Item = u32> + use<'a> {
        walk(self.bytes).filter(|(kind, _)| *kind == wire::EXT_GROUPS).flat_map(|(_, body)| {
            let count = u32::read_from_prefix(body).map_or(0, |(count, _)| count as usize);
            let groups = body.get(4..).unwrap_or_default().chunks_exact(4);
            groups.take(count).map(|four| u32::from_ne_bytes(four.try_into().expect("four bytes")))
        })
    }
}

/// Kind and body of the first extension, and the bytes behind it.
fn split(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (header, _) = wire::ExtHeader::read_from_prefix(bytes).ok()?;
    let size = header.size as usize;
    let body = bytes.get(size_of::<wire::ExtHeader>()..size)?;
    let next = bytes.get(size.next_multiple_of(8)..).unwrap_or_default();
    Some((header.kind, body, next))
}

fn walk(bytes: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (kind, body, next) = split(rest)?;
        rest = next;
        Some((kind, body))
    })
}

struct Contexts<'a> {
    left: u32,
    bytes: &'a [u8],
}

impl<'a> Iterator for Contexts<'a> {
    type Item = SecurityContext<'a>;

    fn next(&mut self) -> Option<SecurityContext<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (header, rest) = wire::Secctx::read_from_prefix(self.bytes).ok()?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        let (name, rest) = (&rest[..end], &rest[end + 1..]);
        let (value, rest) = rest.split_at_checked(header.size as usize)?;
        self.bytes = rest;
        Some(SecurityContext { name, value })
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn context(name: &str, value: &[u8]) -> Vec<u8> {
        let header = wire::Secctx { size: value.len() as u32, padding: 0 };
        [header.as_bytes(), name.as_bytes(), &[0], value].concat()
    }

    fn extension(kind: u32, body: &[u8]) -> Vec<u8> {
        let header = wire::ExtHeader { size: 8 + body.len() as u32, kind };
        let mut bytes = [header.as_bytes(), body].concat();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn contexts_and_groups_are_found_behind_one_another() {
        let two = [context("security.selinux", b"u:r:t\0"), context("security.x", b"")].concat();
        let groups = [1u32.to_ne_bytes(), 7u32.to_ne_bytes()].concat();
        let bytes = [extension(2, &two), extension(wire::EXT_GROUPS, &groups)].concat();
        let extensions = Extensions::parse(&bytes).unwrap();
        let found: Vec<_> = extensions.security_contexts().collect();
        assert_eq!(found[0].name, b"security.selinux");
        assert_eq!(found[0].value, b"u:r:t\0");
        assert_eq!(found[1], SecurityContext { name: b"security.x", value: b"" });
        assert_eq!(extensions.groups().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_context_longer_than_its_extension_is_refused() {
        let mut body = context("security.selinux", b"label");
        body[0] = 200;
        assert!(Extensions::parse(&extension(1, &body)).is_err());
        assert!(Extensions::parse(&[1, 2, 3]).is_err());
        assert!(Extensions::parse(wire::ExtHeader { size: 4, kind: 1 }.as_bytes()).is_err());
    }
}

//! Names that a directory can hold.

use copyhold_format::item::NAME_MAX;

use crate::{FsError, Result};

/// A name that an entry may have: any bytes but "/" and zero, and neither "." nor "..".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Of a name to be looked up or removed.
    pub(crate) fn parse(name: &'a [u8]) -> Result<Name<'a>> {
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong { len: name.len(), max: NAME_MAX });
        }
        if name.is_empty() {
            return Err(FsError::NotFound);
        }
        if name.iter().any(|&byte| byte == 0 || byte == b'/') {
            return Err(FsError::Invalid("a name contains no slash and no zero byte"));
        }
        Ok(Name(name))
    }

    /// Of a name to be made: "." and ".." exist everywhere.
    pub(crate) fn to_make(name: &'a [u8]) -> Result<Name<'a>> {
        let name = Name::parse(name)?;
        if name.is_dots() { Err(FsError::Exists) } else { Ok(name) }
    }

    pub(crate) fn is_dots(&self) -> bool {
        matches!(self.0, b"." | b"..")
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_255_bytes_are_good_and_longer_ones_are_not() {
        assert!(Name::parse(&[b'x'; 255]).is_ok());
        assert!(matches!(
            Name::parse(&[b'x'; 256]),
            Err(FsError::NameTooLong { len: 256, max: 255 })
        ));
        assert!(Name::parse(b"\xff\xfe\n").is_ok());
        assert!(matches!(Name::parse(b"a/b"), Err(FsError::Invalid(_))));
        assert!(matches!(Name::to_make(b".."), Err(FsError::Exists)));
    }
}

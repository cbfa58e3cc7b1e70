//! Values and edits as they are held in deltas.
//!
//! An edit takes 40 bytes, and a value of up to 38 bytes lies in it: an extent of one or two blocks
//! costs no allocation.

use std::fmt;
use std::ops::Deref;

use copyhold_format::node::ValueRef;

/// Bytes of a value in the edit itself.
const INLINE_BYTES: usize = 38;

/// The bytes of an item. Cheap to clone when short.
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    Heap(Box<[u8]>),
}

/// One absolute change of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    Put(Value),
    Delete,
}
const _: () = assert!(size_of::<Edit>() == 40);

impl Value {
    /// A value of `len` bytes that `fill` writes; they are zeros before.
    fn filled(len: usize, fill: impl FnOnce(&mut [u8])) -> Value {
        if len <= INLINE_BYTES {
            let mut bytes = [0; INLINE_BYTES];
            fill(&mut bytes[..len]);
            return Value(Repr::Inline { len: len as u8, bytes });
        }
        let mut bytes = vec![0; len].into_boxed_slice();
        fill(&mut bytes);
        Value(Repr::Heap(bytes))
    }

    /// Bytes outside of the value itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.0 {
            Repr::Inline { .. } => 0,
            Repr::Heap(bytes) => bytes.len() + 16,
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Heap(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Value {
        Value::filled(bytes.len(), |out| out.copy_from_slice(bytes))
    }
}

impl<const N: usize> From<&[u8; N]> for Value {
    fn from(bytes: &[u8; N]) -> Value {
        Value::from(&bytes[..])
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Value {
        if bytes.len() <= INLINE_BYTES {
            return Value::from(&bytes[..]);
        }
        Value(Repr::Heap(bytes.into_boxed_slice()))
    }
}

impl From<ValueRef<'_>> for Value {
    fn from(value: ValueRef<'_>) -> Value {
        Value::filled(value.len(), |out| value.copy_to(out))
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Value {}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Edit {
    pub fn put(value: impl Into<Value>) -> Edit {
        Edit::Put(value.into())
    }

    /// The value that is put; `None` for a delete.
    pub fn value(&self) -> Option<&Value> {
        match self {
            Edit::Put(value) => Some(value),
            Edit::Delete => None,
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.value().map_or(0, Value::heap_bytes)
    }
}

impl From<Option<Value>> for Edit {
    fn from(value: Option<Value>) -> Edit {
        value.map_or(Edit::Delete, Edit::Put)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_any_length_are_what_was_put() {
        for len in [0, 1, 37, 38, 39, 1000] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            assert_eq!(&Value::from(&bytes[..])[..], bytes);
            assert_eq!(Value::from(bytes.clone()), Value::from(&bytes[..]));
        }
    }
}

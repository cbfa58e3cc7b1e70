//! Errors of the parser.

use thiserror::Error;

use super::opcode::Opcode;

/// Why bytes are no request.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseError {
    #[error("message of {len} bytes has no header")]
    NoHeader { len: usize },
    #[error("message of {found} bytes declares a length of {said}")]
    Length { said: u32, found: usize },
    #[error("operation {number} is not known to this version")]
    Opcode { number: u32 },
    #[error("{opcode:?} with {found} bytes of arguments, {wanted} wanted")]
    Short { opcode: Opcode, wanted: usize, found: usize },
    #[error("{opcode:?} with a name that is empty or has no end")]
    Name { opcode: Opcode },
    #[error("{opcode:?} with an invalid value")]
    Value { opcode: Opcode },
    #[error("extension with a length that does not fit")]
    Extension,
}

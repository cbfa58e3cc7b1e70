//! Tokens in questions and answers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A proof that the caller has a directory open (`adapter/tokens.rs`), in hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    pub fn from_random(words: [u64; 2]) -> Token {
        Token(format!("{:016x}{:016x}", words[0], words[1]))
    }

    /// As setxattr(2) presents it.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// A log that shows a question does not show how to repeat it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

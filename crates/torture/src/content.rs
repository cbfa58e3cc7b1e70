//! What a block holds: a token that no other write has used, so that content names its write.

pub const BLOCK: usize = 4096;

/// Names one block of one write. Zero is a hole, or what a hole reads as.
pub type Token = u64;

/// Bytes of a line.
pub const LINE: usize = 16;

/// Each line begins with the token and ends with a number made of it and of the line's place.
pub fn block(token: Token) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    if token == 0 {
        return bytes;
    }
    for (number, line) in bytes.chunks_exact_mut(LINE).enumerate() {
        line[..8].copy_from_slice(&token.to_le_bytes());
        line[8..].copy_from_slice(&seal(token, number).to_le_bytes());
    }
    bytes
}

/// The token of a whole block; `None` for a mixture, or for what nobody has written.
pub fn token(bytes: &[u8]) -> Option<Token> {
    let (first, _) = bytes.split_first_chunk::<8>()?;
    let token = u64::from_le_bytes(*first);
    (bytes == block(token)).then_some(token)
}

/// Ends each line.
pub fn seal(token: Token, line: usize) -> u64 {
    (token ^ line as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_gives_its_token_back_and_a_mixture_none() {
        let (one, two) = (block(1), block(2));
        assert_eq!(token(&one), Some(1));
        assert_eq!(token(&block(0)), Some(0));
        let torn = [&one[..512], &two[512..]].concat();
        assert_eq!(token(&torn), None);
        assert_eq!(token(&one[..BLOCK - 1]), None);
    }
}

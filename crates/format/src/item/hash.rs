//! Where a name is: its keyed hash, the bucket in the key, the cookie of a listing (R41).
//!
//! SipHash-2-4 with a key per subvolume, which its snapshots inherit: a user who chooses names
//! cannot make them collide. A bucket is the hash without its low bits and without its highest; an
//! entry's index in the bucket takes their place in the cookie, so a cookie fits 63 bits and stays
//! valid while the entry lives. Cookies below 256 mean no entry: 0 is the start, 1 ".", 2 "..".

/// The key of a subvolume's hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKey(pub [u8; 16]);

impl HashKey {
    /// SipHash-2-4.
    pub fn hash(&self, name: &[u8]) -> u64 {
        let (k0, k1) = self.0.split_at(8);
        let (k0, k1) = (word(k0), word(k1));
        let mut v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        let mut chunks = name.chunks_exact(8);
        for chunk in &mut chunks {
            absorb(&mut v, word(chunk));
        }
        let mut last = [0; 8];
        last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
        last[7] = name.len() as u8;
        absorb(&mut v, u64::from_le_bytes(last));
        v[2] ^= 0xff;
        (0..4).for_each(|_| round(&mut v));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

/// The key offset under which a directory holds `name`.
pub fn dirent_bucket(key: &HashKey, name: &[u8]) -> u64 {
    let bucket = key.hash(name) & 0x7fff_ffff_ffff_ff00;
    bucket.max(0x100)
}

/// The key offset under which an inode holds the attribute `name`; its low 16 bits are zero.
pub fn xattr_bucket(key: &HashKey, name: &[u8]) -> u64 {
    key.hash(name) & !0xffff
}

/// The cookie behind the entry `index` of `bucket`.
pub fn cookie(bucket: u64, index: u8) -> u64 {
    bucket | u64::from(index)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

fn absorb(v: &mut [u64; 4], m: u64) {
    v[3] ^= m;
    round(v);
    round(v);
    v[0] ^= m;
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_siphash_2_4() {
        // The reference vectors: key 00..0f, input 00..n.
        let key = HashKey(std::array::from_fn(|n| n as u8));
        let input: Vec<u8> = (0..15).collect();
        assert_eq!(key.hash(&[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(key.hash(&input), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn buckets_leave_room_for_the_index_and_the_reserved_cookies() {
        for n in 0..1000u32 {
            let bucket = dirent_bucket(&HashKey([7; 16]), &n.to_le_bytes());
            assert_eq!(bucket & 0xff, 0);
            assert!((0x100..1 << 63).contains(&cookie(bucket, 255)));
        }
    }
}
